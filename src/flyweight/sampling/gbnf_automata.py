"""Words of a grammar as automata: which characters may come next, and where a word is whole.

Invariant: states are reached by one way each for a text (deterministic), the first one has no way
back to it, and what is built is bounded by an `Effort`, counted and not timed, so that the outcome
is the same on every machine.  Does not know which words a grammar should have.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flyweight.sampling.gbnf import GbnfChars
from flyweight.sampling.gbnf_flat import FlatRule

Arcs = list[list[tuple[int, int]]]  # of each state: a set of characters, and where they lead


class AutomatonTooLarge(Exception):
    """More work than it is worth."""


class Effort:
    """Steps that may still be taken."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise AutomatonTooLarge


class Alphabet:
    """Characters that no class distinguishes are one letter; a set of letters is a number with one
    bit for each.
    """

    def __init__(self, classes: Iterable[GbnfChars]) -> None:
        found = list(dict.fromkeys(classes))
        edges = [(at, i) for i, one in enumerate(found) for a, b in one.ranges for at in (a, b + 1)]
        letters: dict[int, int] = {}
        self._leads: list[int] = []
        inside, begun = 0, 0
        for at, i in sorted(edges):
            if inside and at > begun:
                letter = letters.setdefault(inside, len(letters))
                self._leads += [0] * (letter == len(self._leads))
                self._leads[letter] |= _leads(begun, at - 1)
            inside ^= 1 << i
            begun = at
        self.sets = dict.fromkeys(found, 0)
        for who, letter in letters.items():
            for i in list_bits(who):
                self.sets[found[i]] |= 1 << letter

    def leads(self, letters: int) -> int:
        """The first bytes of their UTF-8, a bit each."""
        found = 0
        for letter in list_bits(letters):
            found |= self._leads[letter]
        return found


def _leads(first: int, last: int) -> int:
    low, high = chr(first).encode()[0], chr(last).encode()[0]
    return (1 << high + 1) - (1 << low)


def list_bits(number: int) -> Iterable[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


@dataclass(slots=True)
class Automaton:
    """State 0 is the beginning, and never whole: that a word could be nothing is `empty`.  `nexts`:
    all letters that go on from a state.
    """

    arcs: Arcs
    whole: list[bool]
    empty: bool = field(init=False)
    nexts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.empty, self.whole[0] = self.whole[0], False
        self.nexts = [0] * len(self.arcs)
        for state, arcs in enumerate(self.arcs):
            for letters, _ in arcs:
                self.nexts[state] |= letters


def make_single(letters: int) -> Automaton:
    """A character."""
    return Automaton([[(letters, 1)], []], [False, True])


@dataclass(frozen=True, slots=True)
class AutomatonProduct:
    """Two words that begin at one place.  `both`: some text is both of them.  `past_first`: letters
    by which the second goes on where the first is whole; `past_second` the other way round.
    """

    both: bool
    past_first: int
    past_second: int


def intersect(first: Automaton, second: Automaton, effort: Effort) -> AutomatonProduct:
    both, past_first, past_second = False, 0, 0
    seen, open_ = {(0, 0)}, [(0, 0)]
    while open_:
        one, other = open_.pop()
        if first.whole[one] and second.whole[other]:
            both = True
        past_first |= second.nexts[other] if first.whole[one] else 0
        past_second |= first.nexts[one] if second.whole[other] else 0
        if not first.nexts[one] & second.nexts[other]:
            continue
        effort.spend(len(first.arcs[one]) * len(second.arcs[other]))
        for a, to_one in first.arcs[one]:
            for b, to_other in second.arcs[other]:
                if a & b and (to_one, to_other) not in seen:
                    seen.add((to_one, to_other))
                    open_.append((to_one, to_other))
    return AutomatonProduct(both, past_first, past_second)


def make_automaton(
    number: int, rules: Mapping[int, FlatRule], sets: Mapping[GbnfChars, int], effort: Effort
) -> Automaton:
    """The texts of a rule that names no token and never leads back to itself.  Raises
    `AutomatonTooLarge`.
    """
    drawn = _Drawn(rules, sets, effort)
    end = drawn.rule(number, drawn.state())
    first = drawn.close_over([0])
    numbers, open_ = {first: 0}, [first]
    arcs: Arcs = []
    for here in open_:  # it grows meanwhile
        ways: dict[int, set[int]] = {}
        for state in here:
            for letters, target in drawn.arcs[state]:
                for letter in list_bits(letters):
                    effort.spend(1)
                    ways.setdefault(letter, set()).add(target)
        joined: dict[frozenset[int], int] = {}
        for letter, targets in ways.items():
            key = frozenset(targets)
            joined[key] = joined.get(key, 0) | 1 << letter
        arcs.append([])
        for targets_, letters in joined.items():
            there = drawn.close_over(targets_)
            if there not in numbers:
                numbers[there] = len(open_)
                open_.append(there)
            arcs[-1].append((letters, numbers[there]))
    return Automaton(arcs, [end in here for here in open_])


class _Drawn:
    """A rule as states with arcs, and with steps between them that read nothing."""

    def __init__(
        self, rules: Mapping[int, FlatRule], sets: Mapping[GbnfChars, int], effort: Effort
    ) -> None:
        self._rules, self._sets, self._effort = rules, sets, effort
        self.arcs: Arcs = []
        self._free: list[list[int]] = []

    def state(self) -> int:
        self._effort.spend(1)
        self.arcs.append([])
        self._free.append([])
        return len(self.arcs) - 1

    def rule(self, number: int, begin: int) -> int:
        """Draws it from a state on; returns where it ends."""
        rule = self._rules[number]
        for _ in range(rule.least):
            begin = self._rows(rule, begin)
        end = self.state()
        if rule.most is None:
            self._free[begin].append(end)
            self._free[self._rows(rule, end)].append(end)
            return end
        for _ in range(rule.most - rule.least):
            self._free[begin].append(end)
            begin = self._rows(rule, begin)
        self._free[begin].append(end)
        return end

    def _rows(self, rule: FlatRule, begin: int) -> int:
        end = self.state()
        for row in rule.rows:
            at = begin
            for symbol in row:
                if isinstance(symbol, int):
                    at = self.rule(symbol, at)
                else:
                    assert isinstance(symbol, GbnfChars)
                    after = self.state()
                    self.arcs[at].append((self._sets[symbol], after))
                    at = after
            self._free[at].append(end)
        return end

    def close_over(self, states: Iterable[int]) -> frozenset[int]:
        """With all that are reached without reading."""
        found = set(states)
        open_ = list(found)
        while open_:
            self._effort.spend(1)
            for one in self._free[open_.pop()]:
                if one not in found:
                    found.add(one)
                    open_.append(one)
        return frozenset(found)
