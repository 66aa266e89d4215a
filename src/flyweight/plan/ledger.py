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
        self._server: Hashable | None = None  # whose reservation has the API server's part

    @property
    def held(self) -> int:
        """Bytes that a further engine counts as held."""
        return self.base + self.reserved

    @property
    def reserved(self) -> int:
        return sum(self._reserved.values())

    @property
    def counts_server(self) -> bool:
        """Whether a reservation has the API server's part."""
        return self._server is not None

    def reserve(self, owner: Hashable, size: int, *, server: bool = False) -> None:
        """An engine may hold so many bytes, those of the API server among them if `server`."""
        self._reserved[owner] = size
        if server:
            self._server = owner

    def release(self, owner: Hashable) -> None:
        """It is gone; nothing where it has reserved nothing."""
        self._reserved.pop(owner, None)
        if self._server == owner:
            self._server = None
