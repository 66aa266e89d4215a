"""JSON Schema's patterns (ECMA-262) as the regexes that enforce them.

Invariant: what comes out matches nothing that the pattern would not; what the two syntaxes read
differently is written out, or refused by name.  The states that counts come to are estimated from
the text alone, before a text meets the lexer's limit.  Knows no grammar engine.
"""

import re
from typing import NoReturn

from flyweight.sampling.schema_keywords import UnsupportedSchema
from flyweight.validation.untrusted import shown

# ECMA's white space and line ends, which are not the enforcing engine's.
SPACE = (
    r"\t\n\x0B\x0C\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}"
    r"\x{3000}\x{FEFF}"
)
REWRITTEN = {r"\s": f"[{SPACE}]", r"\S": f"[^{SPACE}]"}
DOT = r"[^\n\r\x{2028}\x{2029}]"
PART = re.compile(r"\\(?:u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)|.", re.S)
GROUP = re.compile(r"\((?!\?)|\(\?(?::|<[A-Za-z_])")
SAME = set("dDwWtnrvfpP") | set("^$\\.*+?()[]{}|/-")  # escapes that mean the same in both
ANY_CASE = "(?i)"
CASELESS = re.compile(r"\\[uxkpP]|\(\?<|\[\^")  # whose letters are not all to be seen
CLASSES = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]?|.", re.S)
LETTERS = re.compile(r"\\.|[A-Za-z]-[A-Za-z]|[A-Za-z]")
CLASH = "&-~"  # twice within brackets: operators here, plain characters there
MOST_STATES = 28_000  # states that counts may come to; a lexer has 32,000
# States of a character that may take several bytes, or an escape in JSON; and of one that is any
# but some (measured with 152,000 tokens).
WIDE, WIDEST = 9, 18
LONGEST_TEXT = 3000  # characters of a JSON string whose length is limited
COUNTED = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|\((?:\?(?:[:=!]|<[=!]|P?<\w+>))?|\)|\{(\d+)(,?)(\d*)\}|[|*+?]|.",
    re.S,
)
NARROW = re.compile(r"\\[dwnrtfv.\\^$*+?()\[\]{}|/-]|\[[^^\\]*\]|[ -~]")


def translate_pattern(pattern: str, where: str) -> str:
    """The pattern in the enforcing engine's syntax.  Raises `UnsupportedSchema` at `where`."""
    if pattern.startswith(ANY_CASE):
        pattern = _match_both_cases(pattern[len(ANY_CASE) :], where)
    if problem := find_long_count(pattern):
        raise UnsupportedSchema(where, problem)
    if re.search(r"\{,|\[\^?\]", pattern):
        _refuse(pattern, where, "'{,', '[]' or '[^]'")
    found: list[str] = [""]
    inside = False  # of brackets
    for match in PART.finditer(pattern):
        part = match.group()
        if part.startswith("\\"):
            part = _rewrite_escape(part, pattern, where)
        elif inside:
            if part == "[":
                _refuse(pattern, where, "'[' within brackets; write '\\['")
            if part in CLASH and found[-1] == part:
                _refuse(pattern, where, f"'{part}{part}' within brackets")
            inside = part != "]"
        elif part == "(" and not GROUP.match(pattern, match.start()):
            opening = pattern[match.start() : match.start() + 3]
            _refuse(pattern, where, f"{opening!r}: only plain and named groups")
        else:
            inside = part == "["
            part = DOT if part == "." else part
        found.append(part)
    return "".join(found)


def _match_both_cases(pattern: str, where: str) -> str:
    """The pattern with both cases of each letter: the flag is Python's and PCRE's."""
    if not pattern.isascii() or CASELESS.search(pattern):
        _refuse(ANY_CASE + pattern, where, "letters of both cases that are not ASCII")

    def in_brackets(found: re.Match[str]) -> str:
        part = found.group()
        if len(part) == 3 and part[0].islower() != part[2].islower():
            _refuse(ANY_CASE + pattern, where, f"{part!r} together with {ANY_CASE!r}")
        return part if part[0] == "\\" else part + part.swapcase()

    def outside(found: re.Match[str]) -> str:
        part = found.group()
        if part[0] == "[":
            return LETTERS.sub(in_brackets, part)
        return f"[{part}{part.swapcase()}]" if part.isalpha() else part

    return CLASSES.sub(outside, pattern)


def _rewrite_escape(part: str, pattern: str, where: str) -> str:
    letter = part[1:2]
    if part in REWRITTEN:
        return REWRITTEN[part]
    if letter in "ux" and len(part) > 2:
        return rf"\x{{{part[2:].strip('{}')}}}"
    if letter in SAME:
        return part
    if not letter or letter.isalnum():
        _refuse(pattern, where, f"the escape {part!r}")
    return rf"\x{{{ord(letter):X}}}"  # of what needs none


def _refuse(pattern: str, where: str, what: str) -> NoReturn:
    raise UnsupportedSchema(where, f"the pattern {shown(pattern)} has {what}: not supported")


def find_long_count(pattern: str) -> str:
    """Why a text could outgrow the lexer by counts of the pattern; empty where none could."""
    size = count_states(pattern)
    if size <= MOST_STATES:
        return ""
    return (
        f"the counts of the pattern {shown(pattern)} come to about {size} states; allowed: up to "
        f"{MOST_STATES}; a smaller count, or * or + for any number, has fewer"
    )


def count_states(pattern: str) -> int:
    """States of a pattern, each of whose counts is written out."""
    sums, last = [0], 0  # of the groups that are open, and the last part
    for found in COUNTED.finditer(pattern):
        part = found.group()
        if part[0] == "(":
            sums.append(0)
            last = 0
        elif part == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif found[1] is not None:
            least, most = int(found[1][:9]), found[3][:9]
            times = min(int(most) if most else least + (found[2] == ","), MOST_STATES + 1)
            sums[-1] += last * (max(times, 1) - 1)
            last = 0
        elif part not in "|*+?":
            last = _count_part(part)
            sums[-1] += last
    return sum(sums)


def _count_part(part: str) -> int:
    """Of one character or class."""
    if part.startswith(("[^", "\\S", "\\W", "\\D")):
        return WIDEST
    return 1 if part.isascii() and part != "." and NARROW.fullmatch(part) else WIDE
