"""Texts to decode with drafts: prompts, and the answers that are replayed.

Invariant: the same data, model and round give the same tokens; prompt and answer fit the model's
context.  What FLYWEIGHT_DATA lacks is left out, and named.  Knows no drafter.
"""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flyweight.prove.techniques.ngram import STEP
from flyweight.text.tokenizer import Tokenizer

FEW = 16  # different tokens of a text whose every pair was there before
MANUAL, SHORT = 4000, 1200  # tokens of a prompt, at most
QUEUED = 4  # of each kind, in traffic
Texts = tuple[str, str]  # a prompt and its answer


@dataclass(frozen=True, slots=True)
class SpecPrompt:
    """`tokens` are answered by as many tokens as `answer` has, or by these where the workload is
    replayed.
    """

    tokens: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True)
class TextLimits:
    """The model's tokens and context, and how many tokens an answer has."""

    tokenizer: Tokenizer
    vocab: int
    context: int
    answer: int

    def fit(self, prompt: list[int], answer: list[int], most: int) -> SpecPrompt:
        """The end of a prompt, and an answer that is repeated if it is too short."""
        length = min(most, self.context - self.answer)
        times = -(-self.answer // max(1, len(answer)))
        return SpecPrompt(prompt[-length:], (answer * times)[: self.answer])

    def encode(self, texts: Texts, most: int) -> SpecPrompt:
        prompt, answer = (self.tokenizer.encode(text, parse_special=False) for text in texts)
        return self.fit(prompt, answer, most)


MakePrompts = Callable[[TextLimits, int], list[SpecPrompt]]


@dataclass(frozen=True, slots=True)
class SpecWorkload:
    """`make` gives a round's prompts.  As many as the engine has room for are computed at once, and
    each of the others begins when one ends.  A `random` workload has answers that cannot be
    foreseen, also where the model writes them itself.
    """

    name: str
    what: str
    make: MakePrompts
    random: bool = False


def make_manual(limits: TextLimits, round: int) -> list[SpecPrompt]:
    """Steps that differ in their number, another beginning in every round."""
    steps = [STEP.format(number=100 * (round + 2) + i) for i in range(MANUAL // 8)]
    tokens = limits.tokenizer.encode("".join(steps), parse_special=False)
    length = min(MANUAL, limits.context - limits.answer)
    return [limits.fit(tokens[:length], tokens[length:], MANUAL)]


def make_random(limits: TextLimits, round: int, kinds: int | None = None) -> list[SpecPrompt]:
    """Tokens drawn from the vocabulary, or from a few of it."""
    rng = random.Random(round + 1)  # -1 and 1 are one seed
    ids = range(3, limits.vocab) if kinds is None else rng.sample(range(3, limits.vocab), kinds)
    drawn = rng.choices(ids, k=400 + limits.answer)
    return [limits.fit(drawn[:400], drawn[400:], SHORT)]


def make_repairs(folder: Path, limits: TextLimits, round: int) -> list[SpecPrompt]:
    """HumanEval's functions with an operator that is wrong; the answer is the whole function."""
    with gzip.open(folder / "prompts-humaneval/HumanEval.jsonl.gz", "rt") as lines:
        found = [json.loads(line) for line in lines]
    one = found[(7 * round + 3) % len(found)]
    code = one["prompt"] + one["canonical_solution"]
    broken = one["prompt"] + one["canonical_solution"].replace("==", "!=").replace(" + ", " - ")
    prompt = f"This function has a bug:\n\n{broken}\n\nThe whole function without it:\n\n"
    return [limits.encode((prompt, code), SHORT)]


def make_edits(folder: Path, limits: TextLimits, round: int) -> list[SpecPrompt]:
    """Verse, and the same verse in which some words are newer ones."""
    lines = (folder / "prompts-sonnet/sonnet.txt").read_text().splitlines()
    first = 28 * (round + 1) % (len(lines) - 28)  # no line of another round
    verse = "\n".join(lines[first : first + 28])
    newer = verse
    for old, new in (("thou", "you"), ("thee", "you"), ("thy", "your"), ("doth", "does")):
        newer = newer.replace(f" {old} ", f" {new} ")
    return [limits.encode((f"{verse}\n\nThe same with newer words:\n\n", newer), SHORT)]


def make_summaries(folder: Path, limits: TextLimits, round: int) -> list[SpecPrompt]:
    """Worked problems, and of each the question, with its result."""
    lines = (folder / "prompts-gsm8k/test.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines[6 * round + 6 : 6 * round + 12]]
    text = "\n\n".join(f"{one['question']}\n{one['answer']}" for one in found)
    ends = (
        f"{one['question'].rsplit('. ', 1)[-1]} {one['answer'].rsplit('#### ', 1)[-1]}"
        for one in found
    )
    return [limits.encode((f"{text}\n\nQuestions and results:\n\n", "\n".join(ends)), SHORT)]


def list_workloads(folder: Path | None) -> Iterator[SpecWorkload]:
    """All that there is data for."""
    yield SpecWorkload("manual", f"a repetitive manual of up to {MANUAL:,} tokens", make_manual)
    kinds: dict[str, tuple[str, str, Callable[[Path, TextLimits, int], list[SpecPrompt]]]] = {
        "editing": ("prompts-sonnet", "verse with some words replaced", make_edits),
        "summarising": ("prompts-gsm8k", "questions and results of problems", make_summaries),
        "code-repair": ("prompts-humaneval", "functions with a wrong operator", make_repairs),
    }
    makers: list[MakePrompts] = [make_manual, make_random]
    for name, (below, what, read) in kinds.items():
        if folder is not None and (folder / below).is_dir():
            makers.append(partial(read, folder))
            yield SpecWorkload(name, what, makers[-1])
    yield SpecWorkload("random", "tokens drawn from the vocabulary", make_random, random=True)
    few = partial(make_random, kinds=FEW)
    yield SpecWorkload(
        "false-matches", f"tokens drawn from {FEW}: matches, but nothing follows", few, random=True
    )

    makers.append(few)

    def mix(limits: TextLimits, round: int) -> list[SpecPrompt]:
        return [prompt for make in makers for prompt in make(limits, round)]

    def queue(limits: TextLimits, round: int) -> list[SpecPrompt]:
        first = QUEUED * (round + 1) - 1  # no texts of another round
        return [prompt for i in range(QUEUED) for prompt in mix(limits, first + i)]

    yield SpecWorkload("mixed", "one of each at once", mix)
    yield SpecWorkload("traffic", f"{QUEUED} of each, of which the next begins as one ends", queue)
