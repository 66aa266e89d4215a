"""What an operator asked for, in the words it was asked in; the ledger holds it against what is.

Invariant: holds no secret.  Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT = "by default"


@dataclass(frozen=True, slots=True)
class SettingRequest:
    """Something asked for that is no setting of the engine: what became of it, and why."""

    feature: str
    requested: str
    effective: str
    reason: str


@dataclass(frozen=True, slots=True)
class SettingRequests:
    """What a user asked for: options as they were written by name, and what became of some.
    `plain` are told where no feature tells of them.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    noted: tuple[SettingRequest, ...] = ()
    plain: tuple[SettingRequest, ...] = ()

    def of(self, *names: str) -> str:
        """How a feature was asked for."""
        said = [self.given[name] for name in names if name in self.given]
        return ", ".join(said) or DEFAULT
