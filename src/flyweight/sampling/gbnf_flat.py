"""GBNF's rules without nesting: each is so many of some rows of symbols.

Invariant: the texts are those of the grammar that was read, and each rule that is left is reached
from rule 0 and makes some text.  Does not know how anything is matched.
"""

from collections import defaultdict
from dataclasses import dataclass

from flyweight.sampling.gbnf import (
    GbnfChars,
    GbnfChoice,
    GbnfName,
    GbnfRepeat,
    GbnfSequence,
    GbnfToken,
    Node,
    make_gbnf_error,
    merge_ranges,
)


@dataclass(frozen=True, slots=True)
class FlatWord:
    """What the rule of a number says, matched by a regex in one piece, except an `empty` text."""

    regex: str
    number: int
    empty: bool


Symbol = int | GbnfChars | GbnfToken | FlatWord  # a number is a rule's


@dataclass(slots=True)
class FlatRule:
    """From `least` to `most` (None: any number) times one of the rows."""

    rows: list[list[Symbol]]
    least: int = 1
    most: int | None = 1


def flatten_rules(read: dict[str, Node]) -> dict[int, FlatRule]:
    """Rules by number; `root` is 0.  Raises `RequestError` where there is not text at all."""
    rules = _Flat(read).rules
    makes = _find_productive(rules)
    if 0 not in makes:
        raise make_gbnf_error(1, "no text satisfies it: what begins at 'root' never ends")
    for rule in rules:
        rule.rows = [row for row in rule.rows if all(not _lacks(one, makes) for one in row)]
        if not rule.rows:  # none of them, which is allowed as often as that
            rule.rows, rule.least, rule.most = [[]], 1, 1
    return {number: rules[number] for number in _find_reached(rules)}


class _Flat:
    """Names' rules come first, what is nested in them after."""

    def __init__(self, read: dict[str, Node]) -> None:
        names = ["root", *(name for name in read if name != "root")]
        self._numbers = {name: number for number, name in enumerate(names)}
        self.rules = [FlatRule([]) for _ in names]
        for name, rule in zip(names, list(self.rules), strict=True):
            node = read[name]
            if isinstance(node, GbnfRepeat):
                rule.rows, rule.least, rule.most = self._make_rows(node.item), node.least, node.most
                _settle(rule)
            else:
                rule.rows = self._make_rows(node)

    def _make_rows(self, node: Node) -> list[list[Symbol]]:
        if not isinstance(node, GbnfChoice):
            return [self._make_row(node)]
        # Characters that are alternatives of each other are one class.
        ranges = [pair for one in node.options if isinstance(one, GbnfChars) for pair in one.ranges]
        rows = [self._make_row(one) for one in node.options if not isinstance(one, GbnfChars)]
        return [[GbnfChars(merge_ranges(ranges))], *rows] if ranges else rows

    def _make_row(self, node: Node) -> list[Symbol]:
        if isinstance(node, GbnfSequence):
            return [self._make_symbol(one) for one in node.items]
        return [self._make_symbol(node)]

    def _make_symbol(self, node: Node) -> Symbol:
        if isinstance(node, GbnfChars | GbnfToken):
            return node
        if isinstance(node, GbnfName):
            return self._numbers[node.name]
        repeat = node if isinstance(node, GbnfRepeat) else GbnfRepeat(node, 1, 1)
        rule = FlatRule(self._make_rows(repeat.item), repeat.least, repeat.most)
        _settle(rule)
        self.rules.append(rule)
        return len(self.rules) - 1


def _settle(rule: FlatRule) -> None:
    """Nothing, however often, is nothing once."""
    if rule.most == 0 or not any(rule.rows):
        rule.rows, rule.least, rule.most = [[]], 1, 1


def _lacks(symbol: Symbol, makes: set[int]) -> bool:
    return isinstance(symbol, int) and symbol not in makes


def _find_productive(rules: list[FlatRule]) -> set[int]:
    """The rules that make a text, in time that grows with their length: each row waits for the
    rules in it, and a rule that makes one notifies the rows that wait.
    """
    waiting: dict[int, list[tuple[int, int]]] = defaultdict(list)
    missing: dict[tuple[int, int], int] = {}
    ready: list[int] = []
    for number, rule in enumerate(rules):
        for i, row in enumerate(rule.rows):
            named = [one for one in row if isinstance(one, int)]
            missing[number, i] = len(named)
            for one in named:
                waiting[one].append((number, i))
        if rule.least == 0 or any(not missing[number, i] for i in range(len(rule.rows))):
            ready.append(number)
    makes = set(ready)
    while ready:
        for place in waiting[ready.pop()]:
            missing[place] -= 1
            if not missing[place] and place[0] not in makes:
                makes.add(place[0])
                ready.append(place[0])
    return makes


def _find_reached(rules: list[FlatRule]) -> list[int]:
    found, open_ = {0: None}, [0]
    while open_:
        for row in rules[open_.pop()].rows:
            for one in row:
                if isinstance(one, int) and one not in found:
                    found[one] = None
                    open_.append(one)
    return list(found)


def spell_class(chars: GbnfChars) -> str:
    """A class as a regex has it."""
    parts = [_escape(a) if a == b else f"{_escape(a)}-{_escape(b)}" for a, b in chars.ranges]
    return f"[{''.join(parts)}]"


def _escape(code: int) -> str:
    one = chr(code)
    return one if one.isascii() and one.isalnum() else f"\\x{{{code:X}}}"


def get_mark(rule: FlatRule) -> str:
    """The mark for how often, the same in a regex and in Lark."""
    marks = {(1, 1): "", (0, 1): "?", (0, None): "*", (1, None): "+"}
    most = "" if rule.most is None else rule.most
    return marks.get((rule.least, rule.most), f"{{{rule.least},{most}}}")
