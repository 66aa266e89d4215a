"""How much memory the engines of one process may hold together, and what each has reserved.

Invariant: the sum of what is held and reserved is what the next plan counts as held, so plans that
fit one after another fit together.  Allocates nothing; knows no model.
"""

from collections.abc import Hashable


class MemoryLedger:
    """Of one process, which held `base` bytes before its first engine."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._reserved: dict[Hashable, int] = {}

    @property
    def held(self) -> int:
        """Bytes that a further engine counts as held."""
        return self.base + self.reserved

    @property
    def reserved(self) -> int:
        return sum(self._reserved.values())

    def reserve(self, owner: Hashable, size: int) -> None:
        """An engine may hold so many bytes."""
        self._reserved[owner] = size

    def release(self, owner: Hashable) -> None:
        """It is gone; nothing where it has reserved nothing."""
        self._reserved.pop(owner, None)
