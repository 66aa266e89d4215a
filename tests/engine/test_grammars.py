"""Grammars next to the loop: compiling, keeping, aborting, and what goes wrong with one."""

import itertools
import random
import threading
from array import array
from collections.abc import Sequence as Seq
from math import inf
from typing import Any

import numpy as np
import pytest

from flyweight.engine.grammars import LEAST_BYTES, Grammars
from flyweight.engine.hook import RowMarks
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Plan
from flyweight.errors import RequestError
from flyweight.kv.blocks import Table
from flyweight.params.structured import NAME, StructuredOutputs
from flyweight.sampling import grammar as compiled
from flyweight.sampling.grammar import Compiler, TrialCompiler, byte_vocabulary
from flyweight.types import Finish, Request, SamplingParams
from flyweight.wire import U32

WORD = "abcdefgh"


class Spelling:
    """A matcher of one word, a token a letter; `fault` raises at its place."""

    def __init__(self, fault: int | None = None) -> None:
        self.at, self.fault, self.broken = 0, fault, ""

    def copy(self) -> "Spelling":
        return Spelling(self.fault)

    @property
    def over(self) -> bool:
        return self.at == len(WORD)

    def take(self, tokens: Seq[int]) -> int:
        count = self.fits(tokens)
        self.at += count
        return count

    def back(self, count: int) -> None:
        self.at -= count

    def fits(self, tokens: Seq[int]) -> int:
        count = 0
        for token, letter in zip(tokens, WORD[self.at :], strict=False):
            if token != ord(letter):
                break
            count += 1
        return count

    def mask(self, *, endless: bool = False) -> U32:
        if self.at == self.fault:
            raise ZeroDivisionError("a bug in a matcher")
        return np.array([self.at], np.uint32)


class Spells:
    """Compiles what it is let, and counts; a regex "bad" is refused, "2" is one with a fault."""

    def __init__(self) -> None:
        self.count, self.go = 0, threading.Event()
        self.go.set()

    def compile(self, outputs: StructuredOutputs) -> Spelling:
        self.go.wait(60)
        self.count += 1
        if outputs.regex == "bad":
            raise RequestError("structured_outputs.regex: no")
        return Spelling(int(outputs.regex) if str(outputs.regex).isdigit() else None)


def requested(id: str, regex: str = "x", **params: Any) -> Request:
    form = StructuredOutputs(regex=regex)
    return Request(id, (1, 2), SamplingParams(structured_outputs=form, **params))


def all_ready(grammars: Grammars) -> list[tuple[str, str]]:
    found = []
    while grammars.busy:
        grammars.wait()
        found += [(request.id, str(error or "")) for request, error in grammars.take_ready()]
    return found


def sequence(request: Request, text: str = "", index: int = 0) -> Sequence:
    tokens = array("i", [*request.tokens, *text.encode()])
    return Sequence(request, index, (0, 0, index), Table(b""), tokens)


def plan_of(*chunks: tuple[Sequence, int, int, int]) -> Plan:
    """Of sequences, each with a start, a count and its rows."""
    plan = Plan()
    for seq, start, count, rows in chunks:
        plan.add(seq, start, count, None, rows)
    return plan


def marked(grammars: Grammars, plan: Plan, seconds: float = inf) -> RowMarks:
    marks = RowMarks(seconds)
    grammars.mark(plan.chunks, marks)
    return marks


def test_nothing_is_compiled_without_a_vocabulary() -> None:
    with pytest.raises(RequestError, match="no vocabulary"):
        Grammars().begin(requested("a"))


def test_requests_are_ready_once_compiled_or_refused() -> None:
    spells = Spells()
    grammars = Grammars(lambda: spells)
    spells.go.clear()
    grammars.begin(requested("a"))
    assert grammars.busy and grammars.take_ready() == []
    with pytest.raises(RequestError, match="in use"):
        grammars.begin(requested("a"))
    grammars.begin(requested("b", "bad"))
    grammars.begin(requested("c"))
    spells.go.set()
    assert all_ready(grammars) == [("a", ""), ("b", "structured_outputs.regex: no"), ("c", "")]
    assert spells.count <= 3 and not grammars.busy


def test_one_that_is_aborted_while_it_compiles_is_forgotten() -> None:
    spells = Spells()
    grammars = Grammars(lambda: spells)
    spells.go.clear()
    grammars.begin(requested("a", n=2))
    assert grammars.cancel("a", 1) == [] == grammars.cancel("b", None)
    ended = grammars.cancel("a", None)
    assert [(event.index, event.finish) for event in ended] == [
        (0, Finish.ABORT),
        (1, Finish.ABORT),
    ]
    spells.go.set()
    assert all_ready(grammars) == []


def test_grammars_of_unfinished_requests_keep_within_their_bytes() -> None:
    """Who finds no room waits for it, and who came later behind him."""
    spells = Spells()
    grammars = Grammars(lambda: spells, most=3 * LEAST_BYTES)
    for id, regex in (("a", "x"), ("b", "bad"), ("c", "x"), ("d", "x" * 2000), ("e", "x")):
        grammars.begin(requested(id, regex))
    found = []
    while len(found) < 3:
        found += grammars.take_ready()
    assert [request.id for request, _ in found] == ["a", "b", "c"]
    assert grammars.take_ready() == [] and spells.count == 3
    assert grammars.is_compiling("d") and grammars.is_compiling("e") and grammars.busy
    assert 2 * LEAST_BYTES < grammars.live_bytes <= 3 * LEAST_BYTES
    for gone, next in (("a", "d"), ("c", "e")):
        grammars.forget(gone, 0, ended=True)
        while not (found := grammars.take_ready()):
            grammars.wait()
        assert [request.id for request, _ in found] == [next]
    for id in "de":
        grammars.forget(id, 0, ended=True)
    assert grammars.live_bytes == 0 and not grammars.busy


def test_one_grammar_is_let_in_whatever_its_bytes() -> None:
    grammars = Grammars(Spells, most=1)
    for id in "ab":
        grammars.begin(requested(id))
    while not grammars.take_ready():
        grammars.wait()
    assert grammars.is_compiling("b")
    assert len(grammars.cancel("b", None)) == 1 and not grammars.busy
    grammars.forget("a", 0, ended=True)
    assert grammars.live_bytes == 0


def test_a_text_that_outgrows_its_grammar_affects_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `a` writes has its lexer grow beyond all limits; `b` and `c` want the same grammar, one
    at the same time and one after.
    """
    monkeypatch.setattr(compiled, "STATES", 600)
    grammars = Grammars(lambda: Compiler(byte_vocabulary()))
    requests = {id: requested(id, "(a|b)*a(a|b){12}", n=2) for id in "abc"}
    for id in "ab":
        grammars.begin(requests[id])
        assert all_ready(grammars) == [(id, "")]
    seq, draw = sequence(requests["a"]), random.Random(1)
    error = None
    while error is None:
        assert len(seq.tokens) < 10_000
        token = draw.choice(b"ab")
        error, _ = grammars.take(seq, [token])
        seq.tokens.append(token)
    assert error is not None and error.code == "grammar_limit"
    grammars.begin(requests["c"])
    assert all_ready(grammars) == [("c", "")]
    for id in "bc":
        for index in range(2):
            other = sequence(requests[id], index=index)
            assert grammars.take(other, list(b"abab")) == (None, False)
            marks = marked(grammars, plan_of((other, 2, 1, 1)))
            assert not marks.errors and len(marks.masks) == 1


def test_a_judge_is_none_the_worse_for_what_it_refused() -> None:
    judge = TrialCompiler(list)
    judge(StructuredOutputs(regex="(a|b)*"))
    for given in (
        {"regex": "("},
        {"grammar": "start: a\na: a"},
        {"grammar": "start: nowhere"},
        {"json": {"enum": [2**70]}},
    ):
        with pytest.raises(RequestError, match=NAME):
            judge(StructuredOutputs(**given))
        judge(StructuredOutputs(regex=f"(a|b)+{len(str(given))}"))


def test_a_matcher_follows_its_sequence_whatever_becomes_of_it() -> None:
    grammars = Grammars(Spells)
    request = requested("a")
    grammars.begin(request)
    all_ready(grammars)
    seq = sequence(request, "ab")
    plan = plan_of((seq, 3, 1, 1))
    assert marked(grammars, plan).masks[0].tolist() == [2]
    assert grammars.take(seq, [ord("c")]) == (None, False)
    seq.tokens.append(ord("c"))
    grammars.forget("a", 0)  # preempted: made anew from its tokens
    assert marked(grammars, plan).masks[0].tolist() == [3]
    fork = sequence(request, "abcd", index=1)
    assert grammars.take(fork, list(b"efgh")) == (None, True)
    assert str(grammars.take(seq, [ord("x")])[0]).endswith("leave no token to sample")


def test_drafts_are_cut_and_every_row_has_its_mask() -> None:
    grammars = Grammars(Spells)
    request = requested("a")
    grammars.begin(request)
    all_ready(grammars)
    seq = sequence(request, "ab")
    assert grammars.cut(seq, list(b"cdxf")) == list(b"cd")
    seq.draft = list(b"cd")
    other = sequence(request, "", index=1)
    masks = marked(grammars, plan_of((other, 1, 1, 1), (seq, 3, 3, 3))).masks
    assert {row: mask.tolist() for row, mask in masks.items()} == {0: [0], 1: [2], 2: [3], 3: [4]}
    assert grammars.take(seq, list(b"cde")) == (None, False)


def test_every_row_of_a_tree_has_the_mask_of_its_path() -> None:
    grammars = Grammars(Spells)
    request = requested("a")
    grammars.begin(request)
    all_ready(grammars)
    seq = sequence(request, "ab")
    seq.draft, seq.parents = list(b"cdecd"), [-1, 0, 1, -1, 3]
    masks = marked(grammars, plan_of((seq, 3, 6, 6))).masks
    assert [masks[row].tolist() for row in range(6)] == [[2], [3], [4], [5], [3], [4]]
    assert grammars.take(seq, list(b"cde")) == (None, False)


def test_a_failing_matcher_ends_its_own_row_only() -> None:
    grammars = Grammars(Spells)
    for id, regex in (("a", "2"), ("b", "x")):
        grammars.begin(requested(id, regex))
    all_ready(grammars)
    chunks = [
        (sequence(requested("a", "2"), "ab"), 3, 1, 1),
        (sequence(requested("b"), "ab"), 3, 1, 1),
    ]
    marks = marked(grammars, plan_of(*chunks))
    assert list(marks.errors) == [0] and "ZeroDivisionError" in str(marks.errors[0])
    assert marks.masks[1].tolist() == [2]


def test_masks_of_a_step_that_take_too_long_are_made_in_turn() -> None:
    """Each costs twice what all may: one a step, and what the others draw does not count."""
    grammars, now = Grammars(Spells), itertools.count()
    grammars.budget.clock = lambda: float(next(now))
    requests = [requested(id) for id in "abc"]
    for request in requests:
        grammars.begin(request)
    all_ready(grammars)
    seqs = [sequence(request, "ab") for request in requests]
    plan = plan_of((sequence(requested("d")), 0, 1, 0), *((s, 3, 1, 1) for s in seqs))
    served = []
    for _ in range(6):
        marks = marked(grammars, plan, seconds=0.5)
        assert len(marks.masks) == 1 and not marks.errors
        assert marks.again == {0, 1, 2} - set(marks.masks)
        served += list(marks.masks)
    assert served == [0, 1, 2] * 2


def test_the_compiler_is_built_ahead_of_the_first_grammar() -> None:
    built: list[Spells] = []

    def make() -> Spells:
        built.append(Spells())
        return built[-1]

    grammars = Grammars(make)
    assert not grammars.prepared and Grammars().prepared
    grammars.prepare()
    grammars.prepare()
    assert grammars.prepared and not grammars.busy, "nobody waits for it"
    grammars.begin(requested("a"))
    assert all_ready(grammars) == [("a", "")]
    assert len(built) == 1 and built[0].count == 1


def test_a_compiler_that_could_not_be_built_ahead_is_built_again() -> None:
    made: list[str] = []

    def make() -> Spells:
        made.append("try")
        if len(made) == 1:
            raise MemoryError
        return Spells()

    grammars = Grammars(make)
    grammars.prepare()
    grammars.begin(requested("a"))
    assert all_ready(grammars) == [("a", "")] and len(made) == 2
