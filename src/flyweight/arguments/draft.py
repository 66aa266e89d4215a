"""A choice being made: the options that were given, and what they have set so far.

Invariant: an option is read by its name on the command line, whoever gave it.  Knows no option.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flyweight.arguments.stance import Value, written
from flyweight.arguments.wishes import SettingRequest
from flyweight.errors import ConfigError


@dataclass(slots=True)
class DraftArguments:
    """`options` by name, `models` that were named without one.  `engine` are fields of `Settings`,
    `server` of the server's settings; `wishes` what became of options that set no field.
    """

    options: Mapping[str, Value]
    models: Sequence[str] = ()
    engine: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    wishes: list[SettingRequest] = field(default_factory=list)

    def wish(self, name: str, active: str, why: str) -> None:
        self.wishes.append(
            SettingRequest(f"--{name}", written(name, self.options[name]), active, why)
        )

    def conflict(self, one: str, other: str) -> None:
        """Raises `ConfigError` where both were given."""
        if one in self.options and other in self.options:
            raise ConfigError(f"--{one} and --{other} exclude each other; give one of them")

    def text(self, name: str) -> str:
        """The value of an option that has one.  Raises `ConfigError`."""
        value = self.options[name]
        if not isinstance(value, str):
            raise ConfigError(f"--{name} = {value!r} is not valid; allowed: text or a number")
        return value

    def many(self, name: str) -> list[str]:
        """The values of an option that may have several."""
        value = self.options[name]
        return value if isinstance(value, list) else [str(value)]
