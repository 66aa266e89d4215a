"""A setting as data: the field of a settings class carries its option, help, unit and range.

Invariant: `flyweight serve --help`, the validation and the defaults shown are made from the same
field.  Knows no setting.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

# count: a whole number, 32k too; size: bytes, 8MiB too; words: several values
Kind = Literal["whole", "count", "size", "number", "text", "switch", "words"]
KINDS: Mapping[Any, Kind] = MappingProxyType(
    {int: "whole", float: "number", bool: "switch", str: "text", tuple[str, ...]: "words"}
)


@dataclass(frozen=True, slots=True)
class Setting:
    """`group` is a heading of --help, `unit` the placeholder of the value.  `low` and `high` bound
    numbers (None: no bound).  `option` is the option's name where it is not the field's; `special`
    options are parsed by a function of their own.  `also` are further spellings of the option.
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


def setting(default: Any, group: str, help: str, unit: str = "", **more: Any) -> Any:
    """A field with its `Setting`; `more` are fields of that."""
    made = Setting(group, help, unit, **more)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"setting": made})
    return field(default=default, metadata={"setting": made})


def find_setting(known: "Field[Any]") -> Setting | None:
    """The `Setting` of a field; None for one that no option sets."""
    return known.metadata.get("setting")
