"""The messages of the engine: what a caller asks and what comes back.  Frozen data, standard
library only.

Invariant: a `SamplingParams` that exists is valid; a `Request` holds tokens, never text.  This
module does not know models, arrays, or tokenizers.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from numbers import Integral, Real

from flyweight.errors import RequestError

MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOPS, LONGEST_STOP = 64, 1024  # stop strings, and characters of one
LEAST_REPETITION = 1e-4  # a logit divided by less may leave float32
COLDEST, HOTTEST = 1e-4, 1e6  # temperatures; below is as good as greedy, above as uniform


def _require(ok: bool, name: str, value: object, allowed: str, near: object = None) -> None:
    if not ok:
        hint = "" if near is None else f"; nearest valid: {near}"
        raise RequestError(f"{name} = {value!r} is out of range; allowed: {allowed}{hint}", name)


def _number(name: str, value: object) -> float:
    """Any real number, NumPy's scalars too, as a float."""
    found = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # a whole number too large for a float
            found = float(value)
    _require(math.isfinite(found), name, value, "a finite number")
    return found


def _listed(name: str, value: object) -> tuple[object, ...]:
    if value is None:
        return ()
    _require(isinstance(value, list | tuple | set | frozenset), name, value, "a list, or none")
    return tuple(value)  # type: ignore[arg-type]


def _whole(name: str, value: object, low: int, high: int | None, *, none: bool = False) -> int:
    """A whole number, NumPy's too, as an int; 0 for an allowed None, which the caller keeps."""
    if value is None and none:
        return 0
    top = "" if high is None else f" to {high}"
    allowed = f"a whole number, {low}{top or ' or more'}" + (", or none" if none else "")
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise RequestError(f"{name} = {value!r} is not valid; allowed: {allowed}", name)
    found = int(value)
    ok = found >= low and (high is None or found <= high)
    _require(ok, name, found, allowed, low if found < low else high)
    return found


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens; names and meanings are vLLM's.  Raises `RequestError` when out of
    range.

    `temperature` 0 is greedy.  `top_k` 0 or -1 keeps every token.  `seed` None draws one for the
    request.  `logprobs` n asks for the n best raw log-probabilities beside the chosen token's.
    `stop` strings are cut from the text unless `include_stop_str_in_output`.  `max_tokens` None
    means up to the context's end.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._settle(
            "stop", (self.stop,) if isinstance(self.stop, str) else _listed("stop", self.stop)
        )
        self._settle("stop_token_ids", _listed("stop_token_ids", self.stop_token_ids))
        bias = self.logit_bias or {}
        _require(isinstance(bias, Mapping), "logit_bias", bias, "a mapping of token ids to numbers")
        self._settle("logit_bias", dict(bias))
        self._settle("top_k", 0 if self.top_k == -1 else self.top_k)
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ):
            self._settle(name, _number(name, getattr(self, name)))
        self._check_ranges()
        self._check_lists()

    def _settle(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _settle_whole(self, name: str, low: int, high: int | None, *, none: bool = False) -> None:
        value = getattr(self, name)
        found = _whole(name, value, low, high, none=none)
        self._settle(name, None if value is None else found)

    def _check_ranges(self) -> None:
        t, p = self.temperature, self.top_p
        near = HOTTEST if t > 1 else 0.0 if t < COLDEST / 2 else COLDEST
        allowed = f"0 (greedy), or {COLDEST} to {HOTTEST:.0f}"
        _require(t == 0 or COLDEST <= t <= HOTTEST, "temperature", t, allowed, near)
        _require(0 < p <= 1, "top_p", p, "above 0, up to 1", 1.0 if p > 1 else 0.01)
        _require(
            0 <= self.min_p <= 1, "min_p", self.min_p, "0 to 1", min(max(self.min_p, 0.0), 1.0)
        )
        r = self.repetition_penalty
        near = 10.0 if r > 10 else LEAST_REPETITION
        _require(
            LEAST_REPETITION <= r <= 10, "repetition_penalty", r, f"{LEAST_REPETITION} to 10", near
        )
        for name in ("presence_penalty", "frequency_penalty"):
            v = getattr(self, name)
            _require(-2 <= v <= 2, name, v, "-2 to 2", min(max(v, -2.0), 2.0))
        self._settle_whole("n", 1, MAX_CHOICES)
        self._settle_whole("top_k", 0, None)
        self._settle_whole("seed", -(2**63), 2**64 - 1, none=True)
        self._settle_whole("max_tokens", 1, None, none=True)
        self._settle_whole("min_tokens", 0, self.max_tokens)
        self._settle_whole("logprobs", 0, MAX_LOGPROBS, none=True)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            flag = getattr(self, name)
            _require(isinstance(flag, bool), name, flag, "true or false")

    def _check_lists(self) -> None:
        few, allowed = len(self.stop) <= MAX_STOPS, f"up to {MAX_STOPS} strings"
        _require(few, "stop", f"{len(self.stop)} strings", allowed, MAX_STOPS)
        for s in self.stop:
            fits = isinstance(s, str) and 0 < len(s) <= LONGEST_STOP
            allowed = f"strings of 1 to {LONGEST_STOP} characters"
            _require(fits, "stop", s if fits else str(s)[:80], allowed)
        ids = (_whole("stop_token_ids", i, 0, None) for i in self.stop_token_ids)
        self._settle("stop_token_ids", tuple(ids))
        for i, bias in self.logit_bias.items():
            _whole("logit_bias", i, 0, None)
            b = _number("logit_bias", bias)
            _require(
                -100 <= b <= 100, "logit_bias", bias, "-100 to 100", min(max(b, -100.0), 100.0)
            )
        self._settle("logit_bias", {int(i): float(b) for i, b in self.logit_bias.items()})


class Finish(Enum):
    """Why a sequence ended; the values are OpenAI's words where it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Request:
    """What one caller asked, as tokens.  `salt` separates tenants in the prefix cache; `stop_ids`
    is the resolved union of the model's end-of-sequence ids (empty when `ignore_eos`) and
    `params.stop_token_ids`.  Lower `priority` goes first.  Raises `RequestError`.
    """

    id: str
    tokens: tuple[int, ...]
    params: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    max_tokens: int = 16
    seed: int = 0
    priority: int = 0
    arrival: float = 0.0
    salt: str = ""
    adapter: str = ""

    def __post_init__(self) -> None:
        _require(isinstance(self.salt, str), "salt", self.salt, "text")
        _whole("priority", self.priority, -(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Timings:
    """Monotonic seconds: `arrival`, `scheduled` (first step), `first` (first token), `last` (newest
    token).
    """

    arrival: float
    scheduled: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw log-probabilities at one position: the chosen token's, its rank (1 = best), and the best
    few.
    """

    chosen: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top: tuple[float, ...] = ()


@dataclass(slots=True)
class Event:
    """The engine's only output: new tokens of choice `index` of request `id`.  `finish` is set on
    the last one.  (Not frozen: that would cost 128 sequences 0.2 ms a step.)
    """

    id: str
    index: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    stop_token: int | None = None
    cached: int = 0
    timings: Timings | None = None
