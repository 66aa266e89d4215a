"""Beam search, as vLLM's bodies ask for it: `use_beam_search`, `length_penalty`, and as many beams
as there are choices (`best_of`, or `n`).

Invariant: whatever else would have a say in which tokens come is refused by name; answers are known
at the end, so a stream brings each of them in one piece.
"""

from dataclasses import fields
from typing import Any, Protocol

from flyweight.errors import RequestError, field_names
from flyweight.params.tasks import BeamSearchParams
from flyweight.server.apis.sampling_fields import params_of
from flyweight.types import SamplingParams

OWN = {"n", "best_of", "max_tokens", "ignore_eos", "include_stop_str_in_output", "temperature",
       "seed"}  # fmt: skip
UNDRAWN = (0.0, 1.0)  # temperatures that change nothing where nothing is drawn


class BeamOptions(Protocol):
    """A body that may ask for a search."""

    use_beam_search: bool | None
    length_penalty: float | None

    def to_options(self, defaults: dict[str, Any]) -> dict[str, Any]: ...


def make_params(body: BeamOptions, options: dict[str, Any]) -> SamplingParams | BeamSearchParams:
    """What a body asks for, `options` being its own and the server's.  Raises `RequestError`."""
    params = params_of(options)
    if body.use_beam_search:
        return make_beam_params(body, params_of(body.to_options({})))
    if body.length_penalty not in (None, 1.0):
        raise RequestError(
            "has an effect only with use_beam_search",
            "length_penalty",
            value=body.length_penalty,
            allowed="1, or any with use_beam_search",
        )
    return params


def make_beam_params(body: BeamOptions, given: SamplingParams) -> BeamSearchParams:
    """Of a body whose own options are `given`."""
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
