"""Text of one sequence as it is generated: never a broken character, never a part of a stop string.

Invariant: all `push` results and `finish()` joined equal the full decode of the ids, cut at the
stop string that is complete first (of several complete at the same character, the longest), however
the ids were split over pushes. Ids after the stop are ignored.
"""

from collections.abc import Sequence

from flyweight.text.tokenizer import Tokenizer


class Detokenizer:
    """`prompt_ids` only decide how the text begins (a space, an unfinished character); they are not
    repeated.  A stop string that is complete within the first `least` ids does not count.

    `stopped` is the stop string found; `pushed` counts the ids taken, up to and including the one
    that completed it.
    """

    __slots__ = (
        "_early", "_held", "_include", "_least", "_parts", "_stop", "_stream", "pushed", "stopped",
    )  # fmt: skip

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
        skip_special: bool = True,
        include_stop: bool = False,
        least: int = 0,
    ) -> None:
        assert all(stop), "an empty stop string"
        self._stream = tokenizer.stream(prompt_ids, skip_special)
        self._stop = tuple(stop)
        self._include = include_stop
        self._least = least
        self._held = ""  # settled text that may be the start of a stop string
        self._early = 0  # of it, what came of the first `least` ids: no stop string ends there
        self._parts: list[str] = []
        self.pushed = 0
        self.stopped: str | None = None

    @property
    def text(self) -> str:
        """Everything emitted so far."""
        return "".join(self._parts)

    def push(self, ids: Sequence[int]) -> str:
        """Take more ids; return the text that is now safe to show."""
        first = len(self._parts)
        for token in ids:
            if self.stopped is not None:
                break
            self.pushed += 1
            self._take(self._stream.push(token))
        return "".join(self._parts[first:])

    def finish(self) -> str:
        """No more ids will come: return what was held back.  Call once."""
        if self.stopped is not None:
            return ""
        first = len(self._parts)
        self._take(self._stream.finish())
        if self.stopped is None:
            self._emit(len(self._held))
        return "".join(self._parts[first:])

    def _take(self, text: str) -> None:
        if not text:
            return
        self._held += text
        if self.pushed <= self._least:
            self._early = len(self._held)
        found = self._find_first_stop()
        if found is None:
            self._emit(len(self._held) - self._could_begin_stop())
            return
        start, self.stopped = found
        self._emit(start + (len(self.stopped) if self._include else 0))
        self._held = ""

    def _find_first_stop(self) -> tuple[int, str] | None:
        """The stop string whose last character comes first; a longer one wins a tie."""
        found = []
        for word in self._stop:
            start = self._held.find(word, max(0, self._early + 1 - len(word)))
            if start >= 0:
                found.append((start + len(word), start, word))
        return min(found)[1:] if found else None

    def _could_begin_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = 0
        for word in self._stop:
            for size in range(min(len(word) - 1, len(self._held)), longest, -1):
                if self._held.endswith(word[:size]):
                    longest = size
                    break
        return longest

    def _emit(self, size: int) -> None:
        if size:
            self._parts.append(self._held[:size])
            self._held = self._held[size:]
            self._early = max(0, self._early - size)
