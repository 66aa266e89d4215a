"""Turns at something that one may have at a time.

Invariant: of those who wait the lightest is next, then who came first; one who leaves while he
waits is passed over.  Knows nothing of what is done.
"""

import asyncio
from heapq import heappop, heappush
from itertools import count


class ExclusiveTurns:
    """One place."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = count()

    def take(self) -> bool:
        """Whether it was free, and is ours now."""
        if self._taken:
            return False
        self._taken = True
        return True

    async def enter(self, weight: int) -> None:
        """Waits until it is ours."""
        if self.take():
            return
        turn = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (weight, next(self._number), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came, and nobody is here to use it
                self.leave()
            raise

    def leave(self) -> None:
        """Hands it on."""
        while self._waiting:
            turn = heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False
