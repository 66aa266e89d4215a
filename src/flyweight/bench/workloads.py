"""What is timed: llama-bench's tests by their names, and random tokens to run them on.

Invariant: a `Workload` says what is computed, for any engine; equal ones have equal names.  `pp512`
is a prompt of 512 tokens, `tg128` 128 tokens one after another, `@ d2048` after 2,048 tokens that
are not timed, `b16` by sixteen sequences at once, each after a prompt of its own, `@ s3000` after
one prompt of 3,000 that they share, `b16 @ d64` each after 64 of its own.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flyweight.errors import ConfigError

BATCH_PROMPT = 32  # tokens of each sequence's own before a batch decodes, as in llama-batched-bench
MOST_TOKENS, MOST_SEQS = 1 << 20, 1024
DEFAULT_PROMPT = 512
FIRST_ID = 300  # ids below are often bytes and marks


@dataclass(frozen=True, slots=True)
class Workload:
    """`prompt` or `gen` tokens are timed, after `depth` tokens; `gen` by `seqs` sequences, after
    `shared` tokens in common where that is not 0.
    """

    prompt: int = 0
    gen: int = 0
    depth: int = 0
    seqs: int = 1
    shared: int = 0

    @property
    def name(self) -> str:
        what = f"pp{self.prompt}" if self.prompt else f"tg{self.gen}"
        many = f" b{self.seqs}" if self.seqs > 1 else ""
        at = f" @ d{self.depth}" if self.depth else f" @ s{self.shared}" if self.shared else ""
        return what + many + at

    @property
    def before(self) -> int:
        """Tokens of each sequence that are not timed."""
        if self.seqs > 1 and not self.shared:
            return self.depth or BATCH_PROMPT
        return self.depth or self.shared

    @property
    def timed(self) -> int:
        """Tokens that tokens a second are counted by."""
        return self.prompt or self.gen * self.seqs

    def make_prompts(self, vocab: int) -> list[list[int]]:
        """The tokens before what is timed, for each sequence: the same in every round, so that who
        can keep them computes them once.
        """
        if self.shared:
            common = make_ids(vocab, self.shared, self.shared)
            return [common + make_ids(vocab, 1, 1000 + i) for i in range(self.seqs)]
        if self.seqs > 1:
            return [make_ids(vocab, self.before, 1000 + i) for i in range(self.seqs)]
        return [make_ids(vocab, self.depth, self.depth)]

    def make_fresh_prompt(self, vocab: int, round: int) -> list[int]:
        """The prompt that is timed: other tokens in each round, and in tests of another length."""
        return make_ids(vocab, self.prompt, (self.prompt << 20) + round)


def make_ids(vocab: int, count: int, seed: int) -> list[int]:
    """Random token ids."""
    draw = random.Random(seed)
    low = FIRST_ID if vocab > 4 * FIRST_ID else 0
    return [draw.randrange(low, vocab) for _ in range(count)]


def choose_prompt(context: int, depth: int) -> int:
    """The default prompt after `depth` tokens: one that fits a model made for `context` tokens,
    with the two that the engine adds.  Where none fits, the usual length, which is warned of.
    """
    room = context - depth - 2
    return min(DEFAULT_PROMPT, room) if room > 0 else DEFAULT_PROMPT


def parse_numbers(name: str, text: str, low: int, high: int) -> list[int]:
    """`512`, `1,2,4`; an empty text is none.  Raises `ConfigError`."""
    found = []
    for word in text.split(",") if text.strip() else []:
        allowed = f"whole numbers of {low} to {high}, with commas between them"
        try:
            value = int(word)
        except ValueError:
            raise ConfigError(
                f"{name} = {text!r}: {word.strip()!r} is not a number; allowed: {allowed}"
            ) from None
        near = min(max(value, low), high)
        if near != value:
            raise ConfigError(
                f"{name} = {value} is out of range; allowed: {allowed}; nearest valid: {near}"
            )
        found.append(value)
    return found


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """The requested tests, as lists of numbers: `batches` of sequences decode `batch_gen` tokens
    each, of those above 1, at all depths or after `shared` prefixes.
    """

    prompts: Sequence[int] = (512,)
    gens: Sequence[int] = (128,)
    depths: Sequence[int] = (0,)
    batches: Sequence[int] = (1,)
    batch_gen: int = 32
    shared: Sequence[int] = ()

    def list_tests(self) -> Iterator[Workload]:
        """In the order they are run.  Raises `ConfigError` for what would be passed over."""
        many = [n for n in self.batches if n > 1]
        if self.shared and not many:
            raise ConfigError(f"shared_prefix = {self.shared[0]} is for batches; give -b above 1")
        if self.shared and any(self.depths):
            raise ConfigError(
                f"shared_prefix = {self.shared[0]} with n_depth = {max(self.depths)}: what is "
                "shared is the depth; give one of them"
            )
        for depth in self.depths:
            yield from (Workload(prompt=n, depth=depth) for n in self.prompts if n)
            yield from (Workload(gen=n, depth=depth) for n in self.gens if n)
        for depth in () if self.shared else self.depths:
            yield from (Workload(gen=self.batch_gen, seqs=n, depth=depth) for n in many)
        for prefix in self.shared:
            yield from (Workload(gen=self.batch_gen, seqs=n, shared=prefix) for n in many)


def count_needs(tests: Sequence[Workload], block_size: int, batched: int) -> tuple[int, int, int]:
    """What an engine must hold to run these: longest sequence, most sequences, blocks of K/V.
    `batched` tokens fit a step; sequences that wait for others' prompts decode meanwhile.
    """
    length, blocks = 2, 1
    for test in tests:
        ahead = -(-test.before * test.seqs // max(1, batched)) + 2
        longest = test.before + test.prompt + test.gen + 1 + (ahead if test.gen else 1)
        length = max(length, longest)
        own = longest - (test.shared // block_size * block_size)
        each = -(-own // block_size) + 2
        blocks = max(blocks, test.seqs * each + -(-(test.depth + test.shared) // block_size))
    return length, max([1, *(test.seqs for test in tests)]), blocks
