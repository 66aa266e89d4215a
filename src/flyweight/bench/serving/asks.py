"""What is to be asked: prompts, lengths, and when.

Invariant: a `LoadRequest` says all that a dialect needs to make its body; equal seeds make equal
asks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A prompt of `length` tokens, `output` tokens wanted; `at` seconds after the start where a
    trace says so.
    """

    prompt: Prompt
    length: int
    output: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestManner:
    """What all requests of a load have in common: the model's name, or several that take turns, and
    fields of the body.
    """

    models: tuple[str, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False
    logprobs: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
