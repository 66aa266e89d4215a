"""String formats: those that patterns of ours enforce, those of the grammar engine, and others.

Invariant: a pattern matches nothing that its format does not allow; a name that no draft defines
annotates, unless it is nearly a format's.  Standard library only.
"""

from flyweight.errors import count_edits

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

# RFC 3986, without addresses in brackets.
_HEX = "%[0-9A-Fa-f]{2}"
_NAME = rf"(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_HEX})"
_SEGMENT = rf"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|{_HEX})"  # without a colon
_CHAR = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_HEX})"
_HOST = rf"//(?:(?:{_NAME}|:)*@)?{_NAME}*(?::[0-9]*)?(?:/{_CHAR}*)*"
_ROOT = rf"/(?:{_CHAR}+(?:/{_CHAR}*)*)?"
_TAIL = rf"(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?"
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*:"
REFERENCE = (
    rf"(?:{_SCHEME}(?:{_HOST}|{_ROOT}|{_CHAR}+(?:/{_CHAR}*)*)?|{_HOST}|{_ROOT}"
    rf"|{_SEGMENT}+(?:/{_CHAR}*)*)?{_TAIL}"
)

_STEPS = "(?:/(?:[^/~]|~[01])*)*"  # RFC 6901

# ECMA-262's, with groups within groups, and no lookarounds and references.
_ATOM = (
    r"(?:[A-Za-z0-9 _,;:!@#%&=<>'~/-]|\.|\\[dDwWsSnrtfv\\.*+?()\[\]{}|^$/]"
    r"|\[\^?(?:[A-Za-z0-9 _.,;:]|\\[dws]|a-z|A-Z|0-9)+\])"
)
_TIMES = r"(?:(?:[*+?]|\{[0-9]{1,2},?\})\??)?"
_EDGE = r"[$^]|\\[bB]"
_FLAT = f"(?:{_ATOM}{_TIMES}|{_EDGE})*"
_GROUP = rf"\((?:\?:)?{_FLAT}(?:\|{_FLAT})*\)"
_NESTED = f"(?:(?:{_ATOM}|{_GROUP}){_TIMES}|{_EDGE})*"
REGEX = rf"{_NESTED}(?:\|{_NESTED})*"

TIGHT = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "hostname": HOSTNAME,
    "uri-reference": REFERENCE,
    "json-pointer": _STEPS,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_STEPS})",
    "regex": REGEX,
}
# Whose own grammar in llguidance is no looser than JSON-Schema-Test-Suite.
KEPT = ("email", "ipv4", "ipv6", "uri", "uuid", "duration")
LACKING_FORMATS = ("idn-email", "idn-hostname", "iri", "iri-reference", "uri-template")


def find_meant_format(name: str) -> str:
    """The format that an unknown name is a misspelling of; empty where it is of none."""
    bare = name[:40].casefold().replace("_", "-")
    found = ((count_edits(bare, known), known) for known in (*TIGHT, *KEPT, *LACKING_FORMATS))
    wrong, known = min(found)
    return known if wrong <= (1 if len(known) < 8 else 2) else ""


def is_ignored_format(name: object) -> bool:
    """Whether a format annotates: one that no draft defines."""
    return isinstance(name, str) and not find_meant_format(name)
