"""Where the last tokens of a text occurred before: an index of one text that grows.

Invariant: it finds the longest match there is, among the newest WALK occurrences of the last 8, 4
or 2 tokens.  It takes 16 to 48 bytes a token, and a look-up costs the same however long the text
is.  Knows no requests.
"""

from array import array
from collections.abc import Sequence
from zlib import crc32

WALK = 64  # occurrences looked at
MOST_ENDS = 16  # matches of the whole context, after which no more are looked for
ORDERS = (8, 4, 2)  # tokens whose occurrences are chained; no match is shorter than the last
LEAST_HEADS = 256


class OccurrenceChain:
    """Ends of runs of `order` tokens with the same hash, the newest first: `heads` by hash, and
    before[end], the end before it; 0 ends a chain.  Runs that differ may share one.
    """

    def __init__(self, order: int) -> None:
        self.order = order
        self.heads, self.before = array("i", bytes(4 * LEAST_HEADS)), array("i")

    def extend(self, tokens: Sequence[int], stop: int) -> None:
        """Adds the ends below `stop` that are not there yet."""
        if stop > len(self.heads):
            size = 1 << (2 * stop - 1).bit_length()
            self.heads, self.before = array("i", bytes(4 * size)), array("i")
        heads, before, width = self.heads, self.before, 4 * self.order
        start, mask = len(before), len(heads) - 1
        base = max(0, start - self.order)
        raw = array("i", tokens[base:stop]).tobytes()
        for end in range(start, stop):
            if end < self.order:
                before.append(0)
                continue
            at = 4 * (end - base)
            place = crc32(raw[at - width : at]) & mask
            before.append(heads[place])
            heads[place] = end

    def find_newest(self, context: "array[int]") -> int:
        """Where the run that ends the context may have ended last; 0 for nowhere."""
        if len(context) < self.order:
            return 0
        return self.heads[crc32(context[-self.order :].tobytes()) & (len(self.heads) - 1)]


class SuffixIndex:
    """The index of one text, which callers hold: `tokens` are always the same ones, or more."""

    def __init__(self) -> None:
        self.chains = [OccurrenceChain(order) for order in ORDERS]

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds every place that has a next token."""
        for chain in self.chains:
            chain.extend(tokens, len(tokens))

    def find(
        self, tokens: Sequence[int], context: "array[int]", known: int = 0
    ) -> tuple[int, list[int]]:
        """The length of the longest match of the context's end, and where such matches end, the
        newest first.  `known` is an end that is looked at too: of the last match, moved on.
        """
        longest = count_common(tokens, known, context) if known else 0
        ends = [known] if longest else []
        for chain in self.chains:
            if longest > 2 * chain.order:
                break
            end = chain.find_newest(context)
            for _ in range(WALK):
                if not end or (longest == len(context) and len(ends) >= MOST_ENDS):
                    break
                length = count_common(tokens, end, context)
                if length >= chain.order:  # else another run with the same hash
                    if length > longest:
                        longest, ends = length, [end]
                    elif length == longest and end != known:
                        ends.append(end)
                end = chain.before[end]
            if longest >= chain.order:
                break
        return (longest, ends) if longest >= ORDERS[-1] else (0, [])


def count_common(tokens: Sequence[int], end: int, context: "array[int]") -> int:
    """How many tokens before `end` equal the context's last ones."""
    width, length = min(len(context), end), 0
    if tokens[end - width : end] == context[len(context) - width :]:
        return width
    while length < width and tokens[end - 1 - length] == context[-1 - length]:
        length += 1
    return length
