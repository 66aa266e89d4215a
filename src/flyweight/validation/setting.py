"""A setting as data: the field of a settings class carries its option, help, unit and range.

Invariant: `flyweight serve --help`, the options of other commands, the keywords of `LLM`, the range
check and the defaults shown are made from the same field.  Knows no setting.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from math import inf
from numbers import Integral
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args

from flyweight.errors import ConfigError, nearest

# count: a whole number, 32k too; size: bytes, 8MiB too; words: several values; object: JSON
Kind = Literal["whole", "count", "size", "number", "text", "switch", "words", "object"]
KINDS: Mapping[Any, Kind] = MappingProxyType(
    {int: "whole", float: "number", bool: "switch", str: "text", tuple[str, ...]: "words"}
)


@dataclass(frozen=True, slots=True)
class Setting:
    """`group` is a heading of --help ("": there is no option), `unit` the placeholder of the value.
    `low` and `high` bound numbers (None: no bound), `choices` are all valid texts.  `option` is the
    option's name where it is not the field's; `special` options are parsed by a function of their
    own.  `also` are further spellings of the option, `none` values that mean None, `default` is the
    default in words where it is no plain value.
    """

    group: str
    help: str
    unit: str = ""
    kind: Kind | None = None
    low: int = 1
    high: int | None = None
    choices: tuple[str, ...] = ()
    option: str = ""
    special: bool = False
    also: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    default: str = ""


def setting(default: Any, group: str, help: str, unit: str = "", **more: Any) -> Any:
    """A field with its `Setting`; `more` are fields of that, and `words` its default in words."""
    made = Setting(group, help, unit, default=more.pop("words", ""), **more)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"setting": made})
    return field(default=default, metadata={"setting": made})


def find_setting(known: "Field[Any]") -> Setting | None:
    """The `Setting` of a field; None for one that no option sets."""
    return known.metadata.get("setting")


def find_kind(known: "Field[Any]") -> Kind:
    """The kind of value that the option of a field takes."""
    found = find_setting(known)
    if found is not None and found.kind:
        return found.kind
    return KINDS[find_types(known)[0]]


def find_types(known: "Field[Any]") -> tuple[Any, ...]:
    """The types of a field; None is the last."""
    return (known.type,) if known.type in KINDS else get_args(known.type) or (known.type,)


def check_settings(settings: Any) -> None:
    """Checks whole numbers, switches and choices by their declarations; NumPy's whole numbers
    become Python's.  Raises `ConfigError`.
    """
    for known in fields(settings):
        found, types, value = find_setting(known), find_types(known), getattr(settings, known.name)
        if found is None or (value is None and NoneType in types):
            continue
        if types[0] is int:
            whole(known.name, value, found.low, found.high)
            object.__setattr__(settings, known.name, int(value))
        elif types[0] is bool:
            check_choice(known.name, value, (True, False))
        elif found.choices:
            check_choice(known.name, value, found.choices)
        elif types == (str, NoneType) and not isinstance(value, str):
            raise ConfigError("is not valid", known.name, value=value, allowed="a name, or none")


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raises `ConfigError` unless `value` is one of `allowed`."""
    if isinstance(value, bool) != isinstance(allowed[0], bool) or value not in allowed:
        hint = nearest(str(value).lower(), map(str, allowed))
        raise ConfigError(
            "is not valid", name, value=value, allowed=f"{', '.join(map(str, allowed))}{hint}"
        )


def check_real(name: str, value: object, high: float, allowed: str, near: str) -> None:
    """Raises `ConfigError` unless `value` is a finite number above 0 and up to `high`."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not (known and 0 < value <= high and value < inf):  # type: ignore[operator]
        raise ConfigError(
            "is out of range", name, value=value, allowed=allowed, hint=f"nearest valid: {near}"
        )


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
