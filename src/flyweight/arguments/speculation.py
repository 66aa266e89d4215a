"""`--speculative-config`: what vLLM takes, read strictly; what this engine has of it.

Invariant: what is accepted is what `NgramDrafter` does.  Draft models and trained heads are refused
by name.
"""

from dataclasses import dataclass
from typing import Any

from flyweight.config import whole
from flyweight.errors import CheckpointError, ConfigError, nearest
from flyweight.validation.untrusted import parse_object, shown

OPTION = "--speculative-config"
METHODS = (
    "ngram", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "suffix",
)  # fmt: skip
KNOWN = (
    "method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min",
    "draft_tensor_parallel_size", "quantization", "max_model_len", "revision",
    "disable_by_batch_size", "disable_padded_drafter_batch", "parallel_drafting",
)  # fmt: skip
TAKEN = KNOWN[:5]
MOST, LONGEST = 64, 1024


@dataclass(frozen=True, slots=True)
class Speculation:
    """Up to `tokens` guesses a step, after a match of the last `longest` down to `shortest`."""

    tokens: int
    longest: int
    shortest: int


def read(text: str) -> Speculation:
    """Raises `ConfigError`."""
    try:
        given = parse_object(text.encode(), OPTION)
    except CheckpointError as error:
        example = '{"method": "ngram", "num_speculative_tokens": 4}'
        raise ConfigError(f"{error}; allowed: an object such as {example}") from None
    for name in given:
        if name not in KNOWN:
            raise ConfigError(f"{OPTION}: {shown(name)} is unknown{nearest(name, KNOWN)}")
    tokens = given.get("num_speculative_tokens")
    if tokens is None:
        raise ConfigError(f"{OPTION}: num_speculative_tokens is missing; allowed: 1 to {MOST}")
    _whole("num_speculative_tokens", tokens, 1, MOST)
    _is_ngram(given)
    for name in given:
        if name not in TAKEN:
            raise ConfigError(f"{OPTION}: {name} does not apply to ngram; leave it out")
    longest = given.get("prompt_lookup_max", given.get("prompt_lookup_min", 5))
    _whole("prompt_lookup_max", longest, 1, LONGEST)
    shortest = given.get("prompt_lookup_min", min(2, longest))
    _whole("prompt_lookup_min", shortest, 1, longest)
    return Speculation(tokens, longest, shortest)


def _whole(name: str, value: object, low: int, high: int) -> None:
    try:
        whole(name, value, low, high)
    except ConfigError as error:
        raise ConfigError(f"{OPTION}: {error}") from None


def _is_ngram(given: dict[str, Any]) -> None:
    """Raises where anything but prompt lookup is asked for."""
    model, method = given.get("model"), given.get("method")
    if method is None:
        method = "ngram" if model in (None, "ngram", "[ngram]") else "draft_model"
    if method not in METHODS:
        hint = nearest(str(method), METHODS)
        raise ConfigError(f"{OPTION}: method = {shown(method)} is not valid; allowed: ngram{hint}")
    if method != "ngram":
        of = f" (model = {shown(model)})" if model is not None else ""
        raise ConfigError(
            f"{OPTION}: method = {method!r}{of} is not supported yet; leave it out, or use "
            f'{{"method": "ngram", "num_speculative_tokens": {given["num_speculative_tokens"]}}}, '
            "which drafts from the prompt"
        )
