"""How many states of a lexer a pattern's counts come to, before a text meets the lexer's limit.

Invariant: an estimate from the text of a pattern alone, in time that grows with its length; other
causes of many states are the grammar engine's to find.  Standard library only.
"""

import re

from flyweight.errors import RequestError
from flyweight.validation.untrusted import shown

MOST = 28_000  # states that counts may come to; a lexer has 32,000
# States of a character that may take several bytes, or an escape in JSON; and of one that is any
# but some (measured with 152,000 tokens).
WIDE, WIDEST = 9, 18
LONGEST_TEXT = 3000  # characters of a JSON string whose length is limited
PART = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|\((?:\?(?:[:=!]|<[=!]|P?<\w+>))?|\)|\{(\d+)(,?)(\d*)\}|[|*+?]|.",
    re.S,
)
NARROW = re.compile(r"\\[dwnrtfv.\\^$*+?()\[\]{}|/-]|\[[^^\\]*\]|[ -~]")


def check_counts(pattern: str, place: str, field: str) -> None:
    """Raises `RequestError` where a text could outgrow the lexer by counts of the pattern."""
    size = counted(pattern)
    if size > MOST:
        raise RequestError(
            f"{place}: the counts of the pattern {shown(pattern)} come to about {size} states; "
            f"allowed: up to {MOST}; a smaller count, or * or + for any number, has fewer",
            field,
        )


def counted(pattern: str) -> int:
    """States of a pattern, each of whose counts is written out."""
    sums, last = [0], 0  # of the groups that are open, and the last part
    for found in PART.finditer(pattern):
        part = found.group()
        if part[0] == "(":
            sums.append(0)
            last = 0
        elif part == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif found[1] is not None:
            least, most = int(found[1][:9]), found[3][:9]
            times = min(int(most) if most else least + (found[2] == ","), MOST + 1)
            sums[-1] += last * (max(times, 1) - 1)
            last = 0
        elif part not in "|*+?":
            last = _states(part)
            sums[-1] += last
    return sum(sums)


def _states(part: str) -> int:
    """Of one character or class."""
    if part.startswith(("[^", "\\S", "\\W", "\\D")):
        return WIDEST
    return 1 if part.isascii() and part != "." and NARROW.fullmatch(part) else WIDE
