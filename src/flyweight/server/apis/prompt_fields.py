"""Prompts and beam search as request bodies have them.

Invariant: what a body calls one prompt is one prompt; its first item shows which form it has.
Options that have no effect in a beam search are refused by name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from flyweight.errors import RequestError, field_names
from flyweight.params.tasks import BeamSearchParams
from flyweight.requests.prompts import PIECE, encode_prompt
from flyweight.server.apis.sampling_fields import Id, make_sampling_params
from flyweight.server.request_model import RequestModel
from flyweight.types import SamplingParams

# Only the first error of a list is reported.
Ids = Annotated[list[Id], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Prompts = str | Ids | Texts | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
OWN = {"n", "best_of", "max_tokens", "ignore_eos", "include_stop_str_in_output", "temperature",
       "seed"}  # fmt: skip
UNDRAWN = (0.0, 1.0)  # temperatures that change nothing where nothing is drawn


def split_prompts(given: Any) -> list[Any]:
    """The separate prompts."""
    single = isinstance(given, str) or isinstance(given[0], int)
    return [given] if single else list(given)


def choose_source(body: object, sources: Sequence[str]) -> str:
    """The only one of these fields that a body has.  Raises `RequestError`."""
    given = [name for name in sources if getattr(body, name) is not None]
    if len(given) == 1:
        return given[0]
    raise RequestError(
        f"and {' and '.join(given[:-1])} exclude each other" if given else "is missing",
        given[-1] if given else sources[0],
        code="" if given else "missing_field",
        allowed=f"exactly one of {', '.join(sources)}",
    )


def require_source(source: str, excluded: Iterable[str]) -> dict[str, Any]:
    """The JSON schema of a body that has `source`, and none of the excluded fields."""
    nulls = {name: {"type": "null"} for name in excluded}
    return {"required": [source], "properties": {source: {"not": {"type": "null"}}, **nulls}}


class PromptFit(Protocol):
    """A body with fields for the encoding of its prompts."""

    add_special_tokens: bool | None
    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None


def fit_prompts(
    prompts: list[Any], body: PromptFit, model: RequestModel, answer: int = 1
) -> list[Any]:
    """Prompts with or without special tokens, cut as the body says, with `answer` more tokens of
    the context left; those that take time to encode are functions.
    """
    special, cuts = body.add_special_tokens is not False, body.truncate_prompt_tokens is not None
    if special and not cuts:
        return prompts
    return [partial(_fit_prompt, one, body, model, answer) for one in prompts]


def _fit_prompt(one: Any, body: PromptFit, model: RequestModel, answer: int) -> dict[str, Any]:
    """Raises `RequestError`."""
    special, cuts = body.add_special_tokens is not False, body.truncate_prompt_tokens is not None
    longest = model.max_model_len
    text, ids = (one, []) if isinstance(one, str) else (None, one)
    if text is not None:
        if cuts:
            check_size("prompt", text, get_max_bytes(model))
        whole = None if cuts else longest
        ids = encode_prompt(model.tokenizer, text, whole, add_special=special)
    kept = truncate_ids(ids, body, longest - answer)
    return {"prompt": text if len(kept) == len(ids) else None, "prompt_token_ids": kept}


def get_max_bytes(model: RequestModel) -> int:
    """The size limit of a text that is read completely even if it does not fit."""
    return max(model.settings.max_tokenize_bytes, PIECE * model.max_model_len)


def check_size(name: str, text: str, most: int) -> None:
    """Raises `RequestError` where a text is too long to be read to its end."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise RequestError(
            f"has {size} bytes", name, allowed=f"at most {most} (--max-tokenize-bytes)"
        )


def truncate_ids(ids: list[int], body: PromptFit, limit: int) -> list[int]:
    """The last ids, or the first (if the `right` is cut off); -1: as many as fit."""
    most = body.truncate_prompt_tokens
    most = limit if most == -1 else most
    if most is None or len(ids) <= most:
        return ids
    return ids[:most] if body.truncation_side == "right" else ids[len(ids) - most :]


class BeamOptions(Protocol):
    """A body that may request a beam search."""

    use_beam_search: bool | None
    length_penalty: float | None

    def to_options(self, defaults: dict[str, Any]) -> dict[str, Any]: ...


def make_params(body: BeamOptions, options: dict[str, Any]) -> SamplingParams | BeamSearchParams:
    """The parameters of a body, whose `options` include the server's defaults.  Raises
    `RequestError`.
    """
    params = make_sampling_params(options)
    if body.use_beam_search:
        return make_beam_params(body, make_sampling_params(body.to_options({})))
    if body.length_penalty not in (None, 1.0):
        raise RequestError(
            "has an effect only with use_beam_search",
            "length_penalty",
            value=body.length_penalty,
            allowed="1, or any with use_beam_search",
        )
    return params


def make_beam_params(body: BeamOptions, given: SamplingParams) -> BeamSearchParams:
    """The parameters of a beam search, from the body's own options.  Raises `RequestError`."""
    usual = SamplingParams()
    for field in fields(SamplingParams):
        if field.name not in OWN and getattr(given, field.name) != getattr(usual, field.name):
            raise RequestError(
                "has no effect in a beam search; leave it or use_beam_search out", field.name
            )
    if given.temperature not in UNDRAWN:
        raise RequestError(
            "has no effect in a beam search",
            "temperature",
            value=given.temperature,
            allowed="0, 1",
        )
    many = "n" if given.best_of is None else "best_of"
    with field_names({"beam_width": many}):
        return BeamSearchParams(
            beam_width=given.best_of or given.n,
            max_tokens=given.max_tokens,
            length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
            ignore_eos=given.ignore_eos,
            include_stop_str_in_output=given.include_stop_str_in_output,
        )
