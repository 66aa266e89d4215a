"""Which rules of a grammar the lexer may take as words, which is what makes masks cheap.

Invariant: no text is lost.  The lexer goes on while any word that is allowed at a place does, and
forgets those that were whole before.  So a rule becomes a word only where no character by which it
goes on could also be what follows a word, or a character, that began at the same place and is whole
by then.  Where that cannot be shown with bounded effort, characters remain.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import groupby

from flyweight.sampling.gbnf import GbnfChars
from flyweight.sampling.gbnf_automata import (
    Alphabet,
    Automaton,
    AutomatonProduct,
    AutomatonTooLarge,
    Effort,
    intersect,
    list_bits,
    make_automaton,
    make_single,
)
from flyweight.sampling.gbnf_flat import FlatRule, FlatWord, Symbol, get_mark, spell_class

STEPS, STEPS_EACH = 600_000, 150_000  # of a grammar, of a word; 600,000 take 0.2 to 0.3 s
LONGEST = 20_000  # ranges of a word's characters, each repetition counted
DEEPEST = 60  # rules within a word
MOST_SPOTS = 1_500
MOST_RANGES = 4_000  # of all classes together


def form_words(rules: dict[int, FlatRule]) -> dict[int, FlatRule]:
    """The same texts."""
    classes = [
        one for rule in rules.values() for one in _list_symbols(rule) if isinstance(one, GbnfChars)
    ]
    if sum(len(one.ranges) for one in set(classes)) > MOST_RANGES:
        return rules
    try:
        return _Words(_group_rows(rules), Alphabet(classes)).choose() or rules
    except AutomatonTooLarge:
        return rules


def _group_rows(rules: dict[int, FlatRule]) -> dict[int, FlatRule]:
    """With rules of their own for what could be one word within a rule that could not."""
    plain, found = _find_plain(rules), dict(rules)

    def fresh(rows: list[list[Symbol]]) -> int:
        number = 1 + max(rules) + len(found) - len(rules)
        found[number] = FlatRule(rows)
        return number

    for number, rule in rules.items():
        if number in plain:
            continue
        rows: list[list[Symbol]] = []
        words: list[list[Symbol]] = []
        for row in rule.rows:
            runs = groupby(row, lambda one: isinstance(one, GbnfChars) or one in plain)
            parts = [(could, list(run)) for could, run in runs]
            cut = [[fresh([run])] if could and len(run) > 1 else run for could, run in parts]
            whole = all(could for could, _ in parts)
            (words if whole else rows).append([one for run in cut for one in run])
        rows += [[fresh(words)]] if len(words) > 1 else words
        found[number] = FlatRule(rows, rule.least, rule.most)
    return found


def _list_symbols(rule: FlatRule) -> Iterator[Symbol]:
    return (one for row in rule.rows for one in row)


def _find_plain(rules: Mapping[int, FlatRule]) -> dict[int, int]:
    """The rules that could be words, and how long: without tokens, and never leading back."""
    above: dict[int, list[int]] = defaultdict(list)
    missing: dict[int, int] = {}
    for number, rule in rules.items():
        inside = [one for one in _list_symbols(rule) if not isinstance(one, GbnfChars)]
        missing[number] = len(inside)
        for one in inside:
            if isinstance(one, int):  # a token is missing forever
                above[one].append(number)
    found: dict[int, int] = {}
    depths: dict[int, int] = {}
    ready = [number for number, count in missing.items() if not count]
    for number in ready:  # it grows meanwhile
        rule = rules[number]
        inner = [one for one in _list_symbols(rule) if isinstance(one, int)]
        size = sum(len(one.ranges) for one in _list_symbols(rule) if isinstance(one, GbnfChars))
        size += sum(found[one] for one in inner)
        size = (size + len(rule.rows) + 1) * max(rule.least, rule.most or 1)
        depth = 1 + max((depths[one] for one in inner), default=0)
        if size > LONGEST or depth > DEEPEST:
            continue
        found[number], depths[number] = size, depth
        for one in above[number]:
            missing[one] -= 1
            if not missing[one]:
                ready.append(one)
    return found


class _Words:
    def __init__(self, rules: dict[int, FlatRule], alphabet: Alphabet) -> None:
        self._rules, self._alphabet = rules, alphabet
        self._plain = _find_plain(rules)
        self._effort = Effort(STEPS)
        self._known: dict[int, Automaton | None] = {}

    def choose(self) -> dict[int, FlatRule] | None:
        """From the longest words down, until none could swallow what is not its own; None where no
        word is left.
        """
        refused: set[int] = set()
        while True:
            words, view = self._view(refused)
            if not words:
                return None
            wrong = _Places(view, words, self._alphabet, self._effort).find_wrong()
            if not wrong:
                return view
            refused |= wrong

    def _view(self, refused: set[int]) -> tuple[dict[int, Automaton], dict[int, FlatRule]]:
        """The rules with the outermost that may be words as such."""
        words: dict[int, Automaton] = {}
        view: dict[int, FlatRule] = {}
        open_ = [0]
        while open_:
            number = open_.pop()
            if number in view:
                continue
            self._effort.spend(1)
            rule = self._rules[number]
            word = None if number in refused else self._make_automaton(number)
            if word is None:
                view[number] = rule
                open_ += [one for one in _list_symbols(rule) if isinstance(one, int)]
            else:
                words[number] = word
                piece = FlatWord(_write_regex(number, self._rules), number, word.empty)
                view[number] = FlatRule([[piece]], int(not word.empty))
        return words, view

    def _make_automaton(self, number: int) -> Automaton | None:
        """None where it takes too much, or could only be nothing."""
        if number not in self._plain:
            return None
        if number not in self._known:
            effort, found = Effort(min(STEPS_EACH, self._effort.left)), None
            with suppress(AutomatonTooLarge):
                found = make_automaton(number, self._rules, self._alphabet.sets, effort)
            self._effort.spend(STEPS_EACH if found is None else STEPS_EACH - effort.left)
            self._known[number] = found if found is not None and found.nexts[0] else None
        return self._known[number]


def _write_regex(number: int, rules: Mapping[int, FlatRule]) -> str:
    rule = rules[number]
    rows = "|".join("".join(_spell(one, rules) for one in row) for row in rule.rows)
    return f"(?:{rows}){get_mark(rule)}"


def _spell(symbol: Symbol, rules: Mapping[int, FlatRule]) -> str:
    if isinstance(symbol, int):
        return _write_regex(symbol, rules)
    assert isinstance(symbol, GbnfChars)
    return spell_class(symbol)


class _Places:
    """Where the lexer may stand.  A spot is a character or a word at its place in a rule; sets of
    them are numbers with a bit for each.
    """

    def __init__(
        self,
        rules: Mapping[int, FlatRule],
        words: Mapping[int, Automaton],
        alphabet: Alphabet,
        effort: Effort,
    ) -> None:
        self._rules, self._alphabet, self._effort = rules, alphabet, effort
        self._automata: list[Automaton] = []
        self._owners: list[int] = []  # the rule that is a word, or -1
        self._spots: dict[int, list[list[int]]] = {}  # of each rule: rows of spots, -1 for a rule
        ones = {letters: make_single(letters) for letters in alphabet.sets.values()}
        for number, rule in rules.items():
            self._spots[number] = [
                [self._add_spot(one, words, ones) for one in row] for row in rule.rows
            ]
        if len(self._automata) > MOST_SPOTS:
            raise AutomatonTooLarge
        self._empty: set[int] = set()
        self._first = dict.fromkeys(rules, 0)
        self._after = dict.fromkeys(rules, 0)
        self._next = [0] * len(self._automata)

    def _add_spot(
        self, symbol: Symbol, words: Mapping[int, Automaton], ones: Mapping[int, Automaton]
    ) -> int:
        if isinstance(symbol, int):
            return -1
        if isinstance(symbol, FlatWord):
            self._automata.append(words[symbol.number])
        else:  # what a token is no character begins
            letters = self._alphabet.sets[symbol] if isinstance(symbol, GbnfChars) else 0
            self._automata.append(ones.get(letters) or make_single(0))
        self._owners.append(symbol.number if isinstance(symbol, FlatWord) else -1)
        return len(self._automata) - 1

    def find_wrong(self) -> set[int]:
        """The words that could go on where another one should have ended."""
        while self._begin():
            pass
        while self._follow():
            pass
        leads = [self._alphabet.leads(one.nexts[0]) for one in self._automata]
        found: set[int] = set()
        meetings: dict[tuple[int, int], AutomatonProduct] = {}
        follows = [0] * len(leads)
        for spot, after in enumerate(self._next):
            for one in list_bits(after):
                self._effort.spend(1)
                follows[spot] |= leads[one]
        for one, other in self._list_pairs(meetings):
            meeting = meetings[one, other]
            if self._alphabet.leads(meeting.past_first) & follows[one]:
                found.add(self._owners[other])
            if self._alphabet.leads(meeting.past_second) & follows[other]:
                found.add(self._owners[one])
        return found

    def _list_pairs(
        self, meetings: dict[tuple[int, int], AutomatonProduct]
    ) -> Iterator[tuple[int, int]]:
        """The spots that may be open at one place, by twos; also one with itself."""
        overlapping = [0] * len(self._automata)
        open_: list[tuple[int, int]] = []

        def join(some: int, others: int) -> None:
            for one in list_bits(some):
                new = others & ~overlapping[one]
                overlapping[one] |= new
                for other in list_bits(new):
                    self._effort.spend(1)
                    overlapping[other] |= 1 << one
                    open_.append((one, other))

        join(self._first[0], self._first[0])
        while open_:
            one, other = open_.pop()
            meeting = intersect(self._automata[one], self._automata[other], self._effort)
            meetings[one, other] = meeting
            if meeting.both or one == other:
                join(self._next[one], self._next[other])
            yield one, other

    def _begin(self) -> bool:
        """What each rule may begin with, a step nearer; whether there was one."""
        moved = False
        for number in reversed(list(self._rules)):
            rule = self._rules[number]
            empty, first = rule.least == 0, 0
            for row, spots in zip(rule.rows, self._spots[number], strict=True):
                self._effort.spend(1 + len(row))
                for symbol, spot in zip(row, spots, strict=True):
                    first |= self._first[symbol] if isinstance(symbol, int) else 1 << spot
                    if symbol not in self._empty:
                        break
                else:
                    empty = True
            if first != self._first[number] or empty != (number in self._empty):
                moved, self._first[number] = True, first
                self._empty |= {number} if empty else set()
        return moved

    def _follow(self) -> bool:
        """What may come after each spot and rule, a step nearer; whether there was one."""
        moved = False
        for number, rule in self._rules.items():
            again = rule.most is None or rule.most > 1
            end = self._after[number] | (self._first[number] if again else 0)
            for row, spots in zip(rule.rows, self._spots[number], strict=True):
                self._effort.spend(1 + len(row))
                after = end
                for symbol, spot in zip(reversed(row), reversed(spots), strict=True):
                    if isinstance(symbol, int):
                        moved |= bool(after & ~self._after[symbol])
                        self._after[symbol] |= after
                        kept = after if symbol in self._empty else 0
                        after = self._first[symbol] | kept
                    else:
                        moved |= bool(after & ~self._next[spot])
                        self._next[spot] |= after
                        after = 1 << spot
        return moved
