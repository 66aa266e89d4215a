"""Kinds of sampling options: what a declaration in `sampling_params.py` says, and its check.

Invariant: everything about one option (range, meaning, APIs, names, command line, column) is in its
declaration, and everything else is made from that.  Standard library only; knows no option by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from numbers import Real
from typing import Any

from flyweight.validation.ranges import (
    check_kind,
    check_list,
    number,
    require,
    strings,
    whole,
    within,
)

OPENAI, LLAMACPP, OLLAMA = "openai", "llamacpp", "ollama"
EVERY_API = (OPENAI, LLAMACPP, OLLAMA)


@dataclass(frozen=True)
class SamplingOption:
    """One option of `SamplingParams`.

    `doc` is its meaning, for the OpenAPI document, `--help` and docs/sampling.md, where `details`
    (Markdown) follow.  `values` are the allowed values in words, where its kind does not say them.
    `apis` are those whose bodies get a field from this declaration, `names` its names in APIs that
    have another one; `limit` is the field of `ServerSettings` that limits it in a body.
    `cli` is the placeholder of its value in `flyweight run --help`, "" if it is no option there;
    `flags` are its spellings if they are not its name, `run_default` is its default there and
    `cli_default` the same in words, if they are not what it otherwise is.
    `generation_config` is its key in a model's generation_config.json.
    `column` is the column of `wire.SampleBatch` that holds it; options of one column are adjacent,
    and those of `cuts`, which no kernel knows, are fields of `wire.CutRow`.
    `filters` marks options that remove candidates, and at their default remove none.
    """

    doc: str
    _: KW_ONLY
    details: str = ""
    values: str = ""
    apis: tuple[str, ...] = EVERY_API
    names: Mapping[str, str] = field(default_factory=dict)
    limit: str = ""
    cli: str = ""
    flags: tuple[str, ...] = ()
    run_default: Any = None
    cli_default: str = ""
    generation_config: str = ""
    column: str = ""
    filters: bool = False

    @property
    def range(self) -> str:
        """The allowed values in words."""
        return self.values

    def name_in(self, name: str, api: str) -> str:
        """What an API calls the option `name`."""
        return self.names.get(api, name)

    def validate(self, name: str, value: Any) -> Any:
        """The value as `SamplingParams` keeps it.  Raises `RequestError`."""
        return value


@dataclass(frozen=True)
class NumberOption(SamplingOption):
    """A number from `low` to `high`.  `same` are values outside the range with the values that they
    mean.
    """

    low: float
    high: float | None = None
    _: KW_ONLY
    same: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def range(self) -> str:
        span = self.values or self.span
        return "; ".join(
            [span, *(f"{one} is {format_words(kept)}" for one, kept in self.same.items())]
        )

    @property
    def span(self) -> str:
        return f"{self.low} or more" if self.high is None else f"{self.low:g} to {self.high:g}"

    @property
    def lowest(self) -> float:
        """The least value that is accepted."""
        return min([self.low, *map(float, self.same)])

    def settle(self, value: Any) -> Any:
        """What a value means."""
        return self.same.get(value, value) if self.same and isinstance(value, Real) else value


@dataclass(frozen=True)
class RealOption(NumberOption):
    """A finite real number; `above` excludes `low` itself."""

    high: float
    _: KW_ONLY
    above: bool = False

    @property
    def span(self) -> str:
        return f"above {self.low:g}, up to {self.high:g}" if self.above else super().span

    def validate(self, name: str, value: Any) -> Any:
        if not self.above:
            return within(name, self.settle(value), self.low, self.high)
        found = number(name, value)
        near = self.high if found > self.high else self.high / 100
        require(self.low < found <= self.high, name, found, self.span, float(near))
        return found


@dataclass(frozen=True)
class TemperatureOption(RealOption):
    """0, or a number from `low` to `high`."""

    @property
    def range(self) -> str:
        return f"0 (greedy), or {self.low} to {self.high:.0f}"

    @property
    def lowest(self) -> float:
        return 0

    def validate(self, name: str, value: Any) -> float:
        found = number(name, value)
        near = self.high if found > 1 else 0.0 if found < self.low / 2 else self.low
        require(found == 0 or self.low <= found <= self.high, name, found, self.range, near)
        return found


@dataclass(frozen=True)
class WholeOption(NumberOption):
    """A whole number; `none`: or none."""

    low: int
    high: int | None = None
    _: KW_ONLY
    none: bool = False

    def validate(self, name: str, value: Any) -> Any:
        value = self.settle(value)
        found = whole(name, value, self.low, self.high, none=self.none)
        return None if value is None else found


@dataclass(frozen=True)
class SwitchOption(SamplingOption):
    """True or false."""

    def validate(self, name: str, value: Any) -> Any:
        require(isinstance(value, bool), name, value, "true or false")
        return value


@dataclass(frozen=True)
class TextsOption(SamplingOption):
    """Up to `most` strings of 1 to `longest` characters; `alone`: bodies may have one string."""

    most: int
    longest: int
    _: KW_ONLY
    alone: bool = False

    @property
    def range(self) -> str:
        return f"up to {self.most} strings of 1 to {self.longest:,} characters"

    def validate(self, name: str, value: Any) -> Any:
        return strings(name, value, self.most, self.longest)


@dataclass(frozen=True)
class TokenIdsOption(SamplingOption):
    """Token ids, each once; a body has up to `most`.  `none`: none is not the same as no ids."""

    most: int
    _: KW_ONLY
    none: bool = False

    @property
    def range(self) -> str:
        return self.values or "token ids"

    def validate(self, name: str, value: Any) -> Any:
        if self.none and value is None:
            return None
        found = tuple(dict.fromkeys(whole(name, i, 0, None) for i in check_list(name, value)))
        require(bool(found) or not self.none, name, [], "one id or more, or none for all")
        return tuple(sorted(found)) if self.none else found


@dataclass(frozen=True)
class ObjectOption(SamplingOption):
    """Another kind of value: what `check`, given its name and value, keeps."""

    check: Callable[[str, Any], Any]
    _: KW_ONLY
    apis: tuple[str, ...] = ()

    def validate(self, name: str, value: Any) -> Any:
        return self.check(name, value)


def make_instance_check(kind: type) -> Callable[[str, Any], Any]:
    """A check that a value is of a class, or none."""

    def check(name: str, value: Any) -> Any:
        known = value is None or isinstance(value, kind)
        check_kind(known, name, value, f"a {kind.__name__}, or none")
        return value

    return check


def check_functions(name: str, value: Any) -> tuple[Any, ...]:
    """Functions, or none.  Raises `RequestError`."""
    found = check_list(name, value)
    for f in found:
        require(callable(f), name, f, "functions")
    return found


def check_biases(name: str, value: Any) -> dict[int, float]:
    """Token ids to numbers from -100 to 100, or none.  Raises `RequestError`."""
    found = value or {}
    require(isinstance(found, Mapping), name, found, "a mapping of token ids to numbers")
    return {whole(name, i, 0, None): within(name, b, -100, 100) for i, b in found.items()}


def format_words(value: object) -> str:
    """A default or a value as the documentation shows it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
