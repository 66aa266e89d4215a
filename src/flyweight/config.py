"""Settings and limits: every knob has a default, a range check and one line of help.

Invariant: a `Limits` or `Settings` that exists is consistent.  The only module that reads the
environment.  Standard library only.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from numbers import Integral
from pathlib import Path
from typing import Any, Self

from flyweight.errors import ConfigError, nearest
from flyweight.spec import KV_BYTES

CHOICES = {
    "activations": ("int8", "bf16", "f32"),
    "kv_cache_dtype": ("auto", *KV_BYTES),
    "backend": ("cpu", "reference"),
    "load_format": ("auto", "gguf", "safetensors", "pt"),
}
KEPT = "20GiB"  # of packed weights, all models together
LEAST_MODEL_LEN = 512  # a shorter context is only chosen when asked for
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def whole(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raises `ConfigError` unless `value` is a whole number from low to high (None: no end)."""
    allowed = f"a whole number, {low}" + (" or more" if high is None else f" to {high}")
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ConfigError("is not valid", name, value=value, allowed=allowed)
    near = max(low, value if high is None else min(value, high))
    if near != value:
        raise ConfigError(
            "is out of range", name, value=value, allowed=allowed, hint=f"nearest valid: {near}"
        )


def unknown(name: str, known: Collection[str]) -> str:
    """The refusal of a setting that does not exist."""
    return f"unknown setting {name!r}{nearest(name, known)}; docs/python-api.md lists all settings"


def peer_python(given: str | None) -> str:
    """The interpreter that has the engines we are measured beside: the one given, else
    FLYWEIGHT_PEER_PYTHON; empty for the one that runs.
    """
    return given or os.environ.get("FLYWEIGHT_PEER_PYTHON") or ""


def data_folder() -> Path | None:
    """FLYWEIGHT_DATA: a folder of texts and traces to measure and test with, if there is one."""
    given = os.environ.get("FLYWEIGHT_DATA")
    return Path(given) if given else None


def openai_key() -> str:
    """OPENAI_API_KEY, which clients of servers send; empty where there is none."""
    return os.environ.get("OPENAI_API_KEY") or ""


def served_key() -> tuple[str, str]:
    """The key that clients of a server started without one are to send, after its variable's name:
    FLYWEIGHT_API_KEY, else VLLM_API_KEY; empty where neither is set.
    """
    names = ("FLYWEIGHT_API_KEY", "VLLM_API_KEY")
    given = [(name, os.environ.get(name, "").strip()) for name in names]
    return next((pair for pair in given if pair[1]), ("", ""))


def fault_asked_for() -> str:
    """FLYWEIGHT_FAULT, what is to go wrong in a server under test; nothing without
    FLYWEIGHT_TESTING=1.
    """
    testing = os.environ.get("FLYWEIGHT_TESTING") == "1"
    return os.environ.get("FLYWEIGHT_FAULT", "") if testing else ""


def beside_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment for another process of ours, with `more` in it."""
    return {**os.environ, **more}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler must never exceed.  Raises `ConfigError` when out of range.

    `max_model_len` tokens of prompt and answer together; `max_num_seqs` sequences and
    `max_num_batched_tokens` tokens in a step; `blocks` blocks of `block_size` tokens of K/V;
    `max_chunk` most prompt tokens of one sequence in a step (None: no limit of its own);
    `draft_tokens` most guesses a step; `hidden_rows` most hidden states handed out in a step,
    `scored` most prompt tokens in one whose log-probabilities are wanted (0: none may be).
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    blocks: int
    prefix_caching: bool = True
    max_chunk: int | None = None
    draft_tokens: int = 4
    hidden_rows: int = 256
    scored: int = 256

    def __post_init__(self) -> None:
        whole("block_size", self.block_size, 1, 1024)
        whole("blocks", self.blocks, 1, (2**31 - 1) // self.block_size)  # slots are 32-bit
        whole("max_model_len", self.max_model_len, 2)
        whole("max_num_seqs", self.max_num_seqs, 1)
        # every decode gets its token every step
        whole("max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs)
        whole("draft_tokens", self.draft_tokens, 0, 64)
        whole("hidden_rows", self.hidden_rows, 1)
        whole("scored", self.scored, 0)
        if self.max_chunk is not None:
            whole("max_chunk", self.max_chunk, 1)


def parse_bytes(text: str, total: int, name: str = "memory_limit") -> int:
    """`6GiB`, `512MB`, `80%` (of `total`) or plain bytes.  Raises `ConfigError`."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]{0,3}|%)\s*", text, re.ASCII)
    if match is None:
        raise ConfigError("is not a size; write 6GiB, 512MB or 80%", name, value=text)
    number, unit = Fraction(match[1]), match[2].lower()
    if unit == "%":
        if not 0 < number <= 100:
            raise ConfigError(
                "is out of range",
                name,
                value=text,
                allowed="above 0% to 100%",
                hint=f"nearest valid: {('100%' if number else '1%')}",
            )
        return int(total * number / 100)
    scale = (UNITS | BINARY).get(unit.removesuffix("b"))
    if scale is None:
        raise ConfigError(": unknown unit; write 6GiB, 512MB or 80%", name, value=text)
    return int(number * scale)


@dataclass(frozen=True, slots=True)
class PackedCacheSettings:
    """Where packed weights are kept between starts (None: nowhere), and how many bytes of them."""

    folder: Path | None
    room: int

    @classmethod
    def of_environment(cls) -> Self:
        """FLYWEIGHT_CACHE, or flyweight in XDG_CACHE_HOME or in ~/.cache; FLYWEIGHT_CACHE_SIZE."""
        room = parse_bytes(
            os.environ.get("FLYWEIGHT_CACHE_SIZE") or KEPT, 0, "FLYWEIGHT_CACHE_SIZE"
        )
        own = os.environ.get("FLYWEIGHT_CACHE")
        if own:
            return cls(Path(own).expanduser(), room)
        shared = os.environ.get("XDG_CACHE_HOME", "")
        if os.path.isabs(shared):  # others are to be ignored, its specification says
            return cls(Path(shared) / "flyweight", room)
        try:
            return cls(Path.home() / ".cache" / "flyweight", room)
        except RuntimeError:  # nobody's home: a user id that no list of users knows
            return cls(None, room)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may choose about an engine; names are vLLM's where it has one.  Raises
    `ConfigError`.

    `model` None is the story model inside the package.  `max_model_len` None is the longest context
    that fits, up to the model's own.  `memory_limit` covers everything the process holds, as text
    (6GiB, 80%) or bytes.  `threads` None is the cores we may use.  `kv_cache_dtype` "auto" is the
    backend's choice.  `blocks` 0 is as many K/V blocks as are useful and fit.  `draft_tokens` above
    0 turns prompt-lookup speculation on: guesses after a match of the last `prompt_lookup_max` down
    to `prompt_lookup_min` tokens.  `kv_cache_metrics` times how long K/V blocks stay, for a share
    `kv_cache_metrics_sample` of them.  `long_prefill_token_threshold` is most tokens of one prompt
    in a step, `kv_cache_memory_bytes` what K/V may take (0: no limit of their own).
    `prompt_logprob_rows` is how many rows of logits a step may compute for prompt_logprobs,
    `max_logprobs` how many a request may ask for beside each token's own (-1: all).  `isa` forces
    an instruction set (else FLYWEIGHT_ISA, else the best there is).  `seed` seeds the requests
    that have none of their own.  `revision` is a branch, a tag or a commit of a model on the
    Hub; `offline` makes no network call.  `packed_cache` keeps packed weights between starts.
    `load_format` is what the model's files must be.
    `adapters` are folders of LoRA adapters by the names requests call them.
    """

    model: str | os.PathLike[str] | None = None
    max_model_len: int | None = None
    memory_limit: str | int = "80%"
    threads: int | None = None
    activations: str = "int8"
    kv_cache_dtype: str = "auto"
    block_size: int = 32
    blocks: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = True
    kv_cache_metrics: bool = False
    kv_cache_metrics_sample: float = 0.01
    long_prefill_token_threshold: int = 0
    kv_cache_memory_bytes: int = 0
    draft_tokens: int = 0
    prompt_lookup_max: int = 5
    prompt_lookup_min: int = 2
    prompt_logprob_rows: int = 256
    max_logprobs: int = 20
    seed: int | None = None
    backend: str = "cpu"
    isa: str | None = None
    offline: bool = False
    packed_cache: bool = True
    load_format: str = "auto"
    revision: str | None = None
    adapters: Mapping[str, str | os.PathLike[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = isinstance(self.adapters, Mapping) and all(
            isinstance(name, str) and name and isinstance(path, str | os.PathLike)
            for name, path in self.adapters.items()
        )
        if not named:
            raise ConfigError(
                "is not valid",
                "adapters",
                value=str(self.adapters)[:80],
                allowed="names to folders",
            )
        if not isinstance(self.model, str | os.PathLike | None):
            raise ConfigError("is not valid", "model", value=self.model, allowed="a path, or none")
        for name in ("isa", "revision"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise ConfigError("is not valid", name, value=value, allowed="a name, or none")
        for known in fields(self):  # NumPy's whole numbers become our own
            value = getattr(self, known.name)
            if isinstance(value, Integral) and not isinstance(value, bool):
                object.__setattr__(self, known.name, int(value))
        for name, allowed in CHOICES.items():
            self._one_of(name, getattr(self, name), allowed)
        for name in ("enable_prefix_caching", "kv_cache_metrics", "offline", "packed_cache"):
            self._one_of(name, getattr(self, name), (True, False))
        parse_bytes(str(self.memory_limit), 1)
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.max_model_len is not None:
            whole("max_model_len", self.max_model_len, 2, 1 << 24)
        if self.threads is not None:
            whole("threads", self.threads, 1, 256)
        if self.seed is not None:
            whole("seed", self.seed, -(2**63), 2**64 - 1)
        whole("block_size", self.block_size, 1, 1024)
        whole("blocks", self.blocks, 0, (2**31 - 1) // self.block_size)
        whole("max_num_seqs", self.max_num_seqs, 1, 4096)
        # every decode gets its token every step
        whole("max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs, 1 << 20)
        whole("long_prefill_token_threshold", self.long_prefill_token_threshold, 0, 1 << 24)
        whole("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 0, 1 << 50)
        if self.blocks and self.kv_cache_memory_bytes:
            raise ConfigError("blocks and kv_cache_memory_bytes exclude each other; give one")
        whole("draft_tokens", self.draft_tokens, 0, 64)
        whole("prompt_lookup_max", self.prompt_lookup_max, 1, 1024)
        whole("prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max)
        whole("prompt_logprob_rows", self.prompt_logprob_rows, 0, 256)
        whole("max_logprobs", self.max_logprobs, -1, 64)
        share = self.kv_cache_metrics_sample
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ConfigError(
                "is out of range",
                "kv_cache_metrics_sample",
                value=share,
                allowed="above 0 to 1",
                hint="nearest valid: 0.01",
            )
        if self.blocks and self.max_model_len:
            least = -(-self.max_model_len // self.block_size)
            if self.blocks < least:
                raise ConfigError(
                    f"of {self.block_size} tokens hold less than one sequence of max_model_len = "
                    f"{self.max_model_len}",
                    "blocks",
                    value=self.blocks,
                    hint=f"nearest valid: {least}",
                )

    def _one_of(self, name: str, value: object, allowed: tuple[object, ...]) -> None:
        if value not in allowed:
            words = [str(x) for x in allowed]
            hint = nearest(str(value), words)
            raise ConfigError(
                "is not valid", name, value=value, allowed=f"{', '.join(words)}{hint}"
            )

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Settings from keywords, with FLYWEIGHT_ISA read where no instruction set was named;
        unknown names are refused.
        """
        known = {f.name for f in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(unknown(name, known))
        isa = given.pop("isa", None) or os.environ.get("FLYWEIGHT_ISA") or None
        return cls(**given, isa=isa)
