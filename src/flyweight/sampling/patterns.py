"""JSON Schema's patterns (ECMA-262) as the regex dialect that enforces them, and formats as
patterns.

Invariant: what comes out matches nothing that the pattern would not; what the two dialects read
differently is written out, or refused by name.  Standard library only; knows no schema.
"""

import re
from typing import NoReturn

from flyweight.errors import RequestError
from flyweight.validation.untrusted import shown

FIELD = "structured_outputs"
# ECMA's white space and line ends, which are not the enforcing dialect's.
SPACE = (
    r"\t\n\x0B\x0C\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}"
    r"\x{3000}\x{FEFF}"
)
REWRITTEN = {r"\s": f"[{SPACE}]", r"\S": f"[^{SPACE}]"}
DOT = r"[^\n\r\x{2028}\x{2029}]"
PART = re.compile(r"\\(?:u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)|.", re.S)
GROUP = re.compile(r"\((?!\?)|\(\?(?::|<[A-Za-z_])")
SAME = set("dDwWtnrvfpP") | set("^$\\.*+?()[]{}|/-")  # escapes that mean the same in both
CLASH = "&-~"  # twice within brackets: operators here, plain characters there

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
DATE = f"(?:{_YEAR}-(?:{_DAY}|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_CLOCK})"
_AN, _ANH = "[A-Za-z0-9]", "[A-Za-z0-9-]"
# 1 to 63 characters, no hyphen at an end, and none at both the third and the fourth place, where
# internationalised names have them.
_LABEL = f"{_AN}(?:{_AN}|{_ANH}(?:{_AN}(?:{_ANH}{{0,59}}{_AN})?|-{_AN}(?:{_ANH}{{0,58}}{_AN})?))?"
HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
LONGEST_HOST = 253
TIGHT = {"date": DATE, "time": TIME, "date-time": f"{DATE}T{TIME}", "hostname": HOSTNAME}
# Whose own grammar in llguidance is no looser than JSON-Schema-Test-Suite.
KEPT = ("email", "ipv4", "ipv6", "uri", "uuid", "duration")


def translated(pattern: str, where: str) -> str:
    """The pattern in the enforcing dialect.  Raises `RequestError` that names `where`."""
    if re.search(r"\{,|\[\^?\]", pattern):
        _refuse(pattern, where, "'{,', '[]' or '[^]'")
    found: list[str] = [""]
    inside = False  # of brackets
    for match in PART.finditer(pattern):
        part = match.group()
        if part.startswith("\\"):
            part = _escape(part, pattern, where)
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


def _escape(part: str, pattern: str, where: str) -> str:
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
    raise RequestError(
        f"{FIELD}.json: at {shown(where)}: the pattern {shown(pattern)} has {what}: not supported",
        FIELD,
    )
