"""A choice in progress: the options that were given, what they have set so far, what is refused.

Invariant: an option is read by its name on the command line, also where it is a keyword.  Every
option sets a field, is noted with the value that is in effect, or is refused; all refusals are
collected.  Knows no option.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from flyweight.arguments.compat import SECRET, Support
from flyweight.arguments.options import Flag, Value, convert, format_value, spell_switch
from flyweight.errors import OWN_NAMES, ConfigError, FieldNames

DEFAULT = "by default"
FILES = (  # options that name some
    "api-key-file", "chat-template", "lora-modules", "log-file", "tokenizer",
    "uds", "ssl-certfile", "ssl-keyfile",
)  # fmt: skip
FOLDERS = re.compile(r"[^\s=\"{}<>%]*/")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class SettingRequest:
    """A requested option that is no setting of the engine: its effective value, and why."""

    feature: str
    requested: str
    effective: str
    reason: str


@dataclass(frozen=True, slots=True)
class SettingRequests:
    """What a user requested: options as they were written, by name, and the effective values of
    some.  `plain` are listed where no feature lists them.  Holds no secret.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    noted: tuple[SettingRequest, ...] = ()
    plain: tuple[SettingRequest, ...] = ()

    def of(self, *names: str) -> str:
        """How a feature was requested."""
        found = [self.given[name] for name in names if name in self.given]
        return ", ".join(found) or DEFAULT


@dataclass(slots=True)
class DraftArguments:
    """`options` by name, `models` that were named without one.  `engine` are fields of `Settings`,
    `server` of the server's settings; `notes` what became of options that set no field.
    """

    options: Mapping[str, Value]
    models: Sequence[str] = ()
    engine: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    notes: list[SettingRequest] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def note(self, name: str, active: str, why: str) -> None:
        self.notes.append(
            SettingRequest(f"--{name}", write_option(name, self.options[name]), active, why)
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

    def set(self, flag: Flag, value: Any) -> None:
        """Puts the value of an option into the field that it sets."""
        owner, _, name = flag.sets.partition(".")
        (self.engine if owner == "engine" else self.server)[name] = convert(flag, value)

    def attempt(self, work: Callable[[], Any]) -> None:
        """Does it, or collects why not."""
        try:
            work()
        except ConfigError as error:
            self.refusals += error.lines

    def apply(
        self,
        supports: Mapping[str, Support],
        find: Callable[[str, Value], "Meaning | None"],
    ) -> None:
        """Applies each option by what `find` returns for it; options of `supports` are noted, or
        refused.
        """
        steps: list[Meaning] = []
        for name, value in self.options.items():
            support = supports.get(name)
            if support is None:
                step = find(name, value)
                steps += [step] if step is not None else []
                continue
            refusal = support.refusal(value)
            if refusal is None or (name == "tokenizer" and format_value(value) in self._models()):
                self.note(name, support.active, support.why)
            else:
                self.refusals.append(refusal)
        for step in steps:
            self.attempt(partial(step, self))

    def _models(self) -> list[str]:
        """The model as it was named: its vocabulary may be requested by the same name."""
        model = self.options.get("model")
        return [*self.models, model] if isinstance(model, str) else [*self.models]

    def make(
        self,
        make: Callable[[dict[str, Any]], Made],
        given: Mapping[str, Any],
        names: FieldNames = OWN_NAMES,
    ) -> Made | None:
        """Settings from their fields.  A field that is refused is left out, so that further
        refusals are found; errors have the `names` of options.
        """
        left = dict(given)
        while True:
            try:
                return make(left)
            except ConfigError as error:
                path = error.path
                self.refusals += error.rename(names).lines
                if left.pop(path, None) is None:
                    return None


Meaning = Callable[[DraftArguments], None]


def write_option(name: str, value: Value) -> str:
    """An option and its value as they were written, cut, and without the folders of files: every
    client with a key may read it in the effective configuration.
    """
    if isinstance(value, bool):
        return spell_switch(name, value)
    if name in SECRET:
        return f"--{name}"
    text = format_value(value)
    return f"--{name} {FOLDERS.sub('', text) if name in FILES else text}"[:200]
