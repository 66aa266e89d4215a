"""A reader of GBNF, the grammars of llama.cpp and of those that learned from it.

Invariant: what comes out is a grammar whose every name is defined and whose size and depth are
bounded; anything else is a `RequestError` with the line, the piece and what is allowed there.  The
text is read once.  Does not know how a grammar is matched: that is for `sampling.sources`.
"""

import re
from dataclasses import dataclass

from flyweight.errors import RequestError, nearest
from flyweight.params.structured import NAME
from flyweight.validation.untrusted import shown

DEEPEST = 48  # parentheses within each other
MOST_MARKS = 3  # of repetition, one after the other
MOST_RULES = 4096
MOST_REPEATS = 10_000
HIGHEST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)  # halves of pairs, which no text has

MARK = re.compile(r"^[ \t]*+[A-Za-z0-9_-]++[ \t]*+::=", re.M)
PIECE = re.compile(
    r"(?P<blank>(?:[ \t]|\#[^\r\n]*+)++)|(?P<line>\r\n|\r|\n)|(?P<name>[A-Za-z0-9_-]++)"
    r"|(?P<is>::=)|(?P<text>\"(?:[^\"\\]|\\.)*+\")|(?P<class>\[(?:[^\]\\]|\\.)*+\])"
    r"|(?P<token>!?<[^<>\s]*+>)|(?P<mark>[|()*+?{},.])|(?P<other>.)",
    re.S,
)
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nrt\\\"\[\]-]))")
PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
SPECIAL = re.compile(r"<[A-Za-z0-9_|/.:@-]+>")
ELEMENTS = '"text", [a-z], ., a rule\'s name, <token>, ( )'
ESCAPES = r"\n \r \t \\ \" \[ \] \- \xHH \uHHHH \UHHHHHHHH"
REPEATS = f"{{m}}, {{m,}} or {{m,n}} of 0 to {MOST_REPEATS}, the least first"
ONE_LINE = "a rule ends with its line, unless that ends with | or is within ( )"

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class GbnfChars:
    """One character out of ranges, which are in order and apart."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class GbnfToken:
    """A special token by its spelling."""

    spelling: str


@dataclass(frozen=True, slots=True)
class GbnfName:
    """A rule."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class GbnfSequence:
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class GbnfChoice:
    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class GbnfRepeat:
    """So many of a thing; a `most` of None is without end."""

    item: "Node"
    least: int
    most: int | None


Node = GbnfChars | GbnfToken | GbnfName | GbnfSequence | GbnfChoice | GbnfRepeat


def is_gbnf(text: str) -> bool:
    """Whether a line of it defines a rule as GBNF does; in Lark that is `name:`."""
    return MARK.search(text.replace("\r", "\n")) is not None


def read_gbnf(text: str) -> dict[str, Node]:
    """The rules by name, `root` among them.  Raises `RequestError`."""
    rules = _GbnfReader(text).read_rules()
    if "root" not in rules:
        raise make_gbnf_error(
            1, f"no rule is named 'root'{nearest('root', rules)}; a text begins with it"
        )
    for node in rules.values():
        _check_defined(node, rules)
    return rules


def make_gbnf_error(line: int, what: str) -> RequestError:
    return RequestError(f": line {line}: {what}", f"{NAME}.grammar", code="bad_constraint")


def merge_ranges(ranges: list[tuple[int, int]]) -> Ranges:
    """The same characters, in order and apart, without halves of pairs."""
    found: list[tuple[int, int]] = []
    low, high = SURROGATES
    parts = [(a, min(b, low - 1)) for a, b in ranges] + [(max(a, high + 1), b) for a, b in ranges]
    for first, last in sorted(part for part in parts if part[0] <= part[1]):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def _check_defined(node: Node, rules: dict[str, Node]) -> None:
    if isinstance(node, GbnfName):
        if node.name not in rules:
            hint = nearest(node.name, rules)
            raise make_gbnf_error(node.line, f"the rule {shown(node.name)} is not defined{hint}")
    elif isinstance(node, GbnfRepeat):
        _check_defined(node.item, rules)
    elif isinstance(node, GbnfSequence | GbnfChoice):
        for part in node.items if isinstance(node, GbnfSequence) else node.options:
            _check_defined(part, rules)


class _GbnfReader:
    """Goes through the pieces once; `_at` is the next one."""

    def __init__(self, text: str) -> None:
        self._pieces: list[tuple[str, str]] = []
        for one in PIECE.finditer(text):
            if one.lastgroup != "blank":
                self._pieces.append((str(one.lastgroup), one.group()))
            if one.lastgroup == "other":  # refused when it is met; behind it, quotes might not pair
                break
        self._pieces.append(("end", ""))
        self._at, self._line = 0, 1

    def read_rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while self._skip() != "end":
            line, name = self._line, self._piece
            if self._kind != "name":
                raise self._make_error(f"no rule begins so; allowed: name ::= …; {ONE_LINE}")
            self._advance()
            if self._kind != "is":
                raise self._make_error(f"::= is missing after {shown(name)}; {ONE_LINE}")
            if name in found:
                raise make_gbnf_error(line, f"the rule {shown(name)} is defined twice")
            if len(found) == MOST_RULES:
                raise make_gbnf_error(line, f"more rules than {MOST_RULES}")
            self._advance()
            self._skip()
            found[name] = self._read_choice(0)
            if self._kind not in ("line", "end"):
                raise self._make_error(
                    f"not here; allowed: {ELEMENTS}, * + ? {{m,n}}, |, a new line"
                )
        return found

    @property
    def _kind(self) -> str:
        return self._pieces[self._at][0]

    @property
    def _piece(self) -> str:
        return self._pieces[self._at][1]

    def _advance(self) -> None:
        kind, piece = self._pieces[self._at]
        if kind in ("line", "text", "class"):
            self._line += piece.count("\n") + (piece == "\r")
        self._at += 1

    def _skip(self) -> str:
        """Past ends of lines, to a piece of the kind it returns."""
        while self._kind == "line":
            self._advance()
        return self._kind

    def _make_error(self, what: str) -> RequestError:
        piece = shown(self._piece, 40) if self._kind not in ("line", "end") else "the end"
        return make_gbnf_error(self._line, f"{piece}: {what}")

    def _read_choice(self, depth: int) -> Node:
        options = [self._read_sequence(depth)]
        while self._piece == "|":
            self._advance()
            self._skip()
            options.append(self._read_sequence(depth))
        return options[0] if len(options) == 1 else GbnfChoice(tuple(options))

    def _read_sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while True:
            if depth:
                self._skip()
            item = self._read_element(depth)
            if item is None:
                return items[0] if len(items) == 1 else GbnfSequence(tuple(items))
            items.append(self._read_repetition(item, depth))

    def _read_element(self, depth: int) -> Node | None:
        kind, piece, line = self._kind, self._piece, self._line
        if piece == "(":
            return self._read_group(depth)
        found: Node
        if kind == "text":
            chars = tuple(GbnfChars(((code, code),)) for code, _ in self._read_codes(piece[1:-1]))
            found = chars[0] if len(chars) == 1 else GbnfSequence(chars)
        elif kind == "class":
            found = self._read_class(piece)
        elif kind == "token":
            found = self._read_token(piece)
        elif kind == "name":
            if self._pieces[self._at + 1][0] == "is":
                if depth:
                    return None
                raise self._make_error(
                    'a rule begins on a line of its own; an empty one is name ::= ""'
                )
            found = GbnfName(piece, line)
        elif piece == ".":
            found = GbnfChars(merge_ranges([(0, HIGHEST)]))
        else:
            if kind == "other":
                raise self._make_unexpected(piece)
            if piece and piece in "*+?{":
                raise self._make_error("nothing stands before it that could be repeated")
            return None
        self._advance()
        return found

    def _make_unexpected(self, piece: str) -> RequestError:
        if piece in ('"', "["):
            return self._make_error("no end of it was found")
        return self._make_error(f"not known here; allowed: {ELEMENTS}")

    def _read_group(self, depth: int) -> Node:
        line = self._line
        if depth == DEEPEST:
            raise self._make_error(f"more than {DEEPEST} parentheses within each other")
        self._advance()
        found = self._read_choice(depth + 1)
        if self._piece != ")":
            raise self._make_error(f"')' is missing, for the '(' of line {line}")
        self._advance()
        return found

    def _read_token(self, piece: str) -> GbnfToken:
        if piece.startswith("!"):
            raise self._make_error("'any token but this' is not supported; allowed: <token>")
        if piece.startswith("<["):
            raise self._make_error(
                "a token by its id is not supported; allowed: its spelling, <token>"
            )
        if SPECIAL.fullmatch(piece) is None:
            raise self._make_error(
                "no special token; allowed: letters, digits and _ | / . : @ - in < >"
            )
        return GbnfToken(piece)

    def _read_class(self, piece: str) -> GbnfChars:
        negated = piece.startswith("[^")
        inside = piece[1 + negated : -1]
        if not inside:
            raise self._make_error("a class without characters; ']' as one is written \\]")
        ranges: list[tuple[int, int]] = []
        codes = self._read_codes(inside)
        at = 0
        while at < len(codes):
            # A '-' that is the last, or comes after a backslash, is literal.
            last = at + 2 if codes[at + 1 : at + 2] == [(ord("-"), False)] else at
            last = last if last < len(codes) else at
            low, high = codes[at][0], codes[last][0]
            if high < low:
                pair = shown(f"{chr(low)}-{chr(high)}")
                raise self._make_error(f"the range {pair} ends before it begins")
            ranges.append((low, high))
            at = last + 1
        found = merge_ranges(ranges)
        if negated:
            edges = [-1, *(edge for pair in found for edge in pair), HIGHEST + 1]
            found = merge_ranges(
                [(a + 1, b - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]
            )
        if not found:
            raise self._make_error("no character fits this class")
        return GbnfChars(found)

    def _read_codes(self, text: str) -> list[tuple[int, bool]]:
        """The characters of a string or class, and whether each was written as an escape."""
        found: list[tuple[int, bool]] = []
        at = 0
        while at < len(text):
            if text[at] != "\\":
                found.append((ord(text[at]), False))
                at += 1
                continue
            one = ESCAPE.match(text, at)
            if one is None:
                raise self._make_error(
                    f"{text[at : at + 2]!r} is not an escape; allowed: {ESCAPES}"
                )
            digits = one[1] or one[2] or one[3]
            code = int(digits, 16) if digits else ord(PLAIN.get(one[4], one[4]))
            if code > HIGHEST or (self._kind == "text" and 0xD800 <= code <= 0xDFFF):
                raise self._make_error(
                    f"{one[0]} is no character; allowed: to 10FFFF, no D800 to DFFF"
                )
            found.append((code, True))
            at = one.end()
        return found

    def _read_repetition(self, item: Node, depth: int) -> Node:
        for _ in range(MOST_MARKS + 1):
            if depth:
                self._skip()
            piece = self._piece
            if self._kind != "mark" or piece not in "*+?{":
                return item
            if piece == "{":
                least, most = self._read_bounds(depth)
            else:
                least, most = piece == "+", 1 if piece == "?" else None
                self._advance()
            item = GbnfRepeat(item, int(least), most)
        raise self._make_error(
            f"more than {MOST_MARKS} marks of repetition; parentheses are clearer"
        )

    def _read_bounds(self, depth: int) -> tuple[int, int | None]:
        line, parts = self._line, [""]
        while parts[-1] != "}" and len(parts) < 6:
            self._advance()
            if depth:
                self._skip()
            if self._kind not in ("name", "mark"):
                break
            parts.append(self._piece)
        piece = shown("{" + "".join(parts), 40)
        written = re.fullmatch(r" ([0-9]{1,9})(?: (,)(?: ([0-9]{1,9}))?)? \}", " ".join(parts))
        if written is None:
            raise make_gbnf_error(line, f"{piece} is not a repetition; allowed: {REPEATS}")
        least = int(written[1])
        most = least if written[2] is None else int(written[3]) if written[3] else None
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            raise make_gbnf_error(line, f"{piece} is out of range; allowed: {REPEATS}")
        self._advance()
        return least, most
