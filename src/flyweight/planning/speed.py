"""Speed of a model before it is loaded: time to first token, time between tokens, tokens a second.

The ceiling is the roofline: every op at its own limit, arithmetic or memory.  What is expected is
less: the same step timed on part of the model with made-up weights (`partial.py`), and the engine's
own work around it.

Invariant: a ceiling never depends on what our kernels reach.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flyweight.ops.base import choose_rounding
from flyweight.plan.memory import SlotKinds
from flyweight.plan.roofline import (
    MachineLimits,
    Matrix,
    Shape,
    StepShape,
    compute_share,
    sum_work,
)
from flyweight.spec import KV_TYPES, ModelSpec
from flyweight.weights.formats import FORMATS

UNITS_BY_BITS = ((8, "int8"), (16, "bf16"), (32, "f32"))
LOOKED_UP = ("embed", "positions")
Timer = Callable[[StepShape], float]
CountBytes = Callable[[tuple[int, int], str], int]


@dataclass(frozen=True, slots=True)
class SpeedQuestion:
    """A prompt of `prompt` tokens computed `chunk` at a time; then a token for each of `batches`
    sequences, which see `context` positions each.
    """

    prompt: int = 512
    context: int = 512
    batches: Sequence[int] = (1, 4, 16, 64)
    chunk: int = 512

    def list_chunks(self) -> list[StepShape]:
        """The steps of the prompt; its last row alone meets the head."""
        ends = [*range(self.chunk, self.prompt, self.chunk), self.prompt]
        starts = [0, *ends[:-1]]
        return [
            StepShape(((end - start, end),), int(end == self.prompt), end)
            for start, end in zip(starts, ends, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One answer, for a prompt or for a decoding step: `tokens` in `least` seconds at best,
    `seconds` as expected (None: not known); `compute` and `memory` are what operations and bytes
    take by themselves.
    """

    name: str
    prompt: bool
    batch: int
    tokens: int
    operations: float
    nbytes: float
    compute: float
    memory: float
    least: float
    seconds: float | None

    @property
    def intensity(self) -> float:
        return self.operations / self.nbytes

    @property
    def binds(self) -> str:
        return "compute" if self.compute >= self.memory else "memory"

    @property
    def share(self) -> float | None:
        """Of the ceiling that is expected to be reached."""
        return None if self.seconds is None else self.least / self.seconds


def make_decode(batch: int, context: int) -> StepShape:
    """A step of one token for each of `batch` sequences."""
    return StepShape(((1, context),) * batch, batch, batch * context)


def answer(
    asked: SpeedQuestion, shape: Shape, limits: MachineLimits, timer: Timer | None
) -> list[SpeedRow]:
    """A row for the prompt, then one for each batch."""
    chunks = asked.list_chunks()
    seconds = None if timer is None else time_prompt(chunks, timer)
    rows = [make_row(f"prefill {asked.prompt}", chunks, shape, limits, seconds)]
    for batch in asked.batches:
        step = make_decode(batch, asked.context)
        seconds = None if timer is None else timer(step)
        rows.append(make_row(f"decode × {batch}", [step], shape, limits, seconds))
    return rows


def time_prompt(chunks: Sequence[StepShape], timer: Timer) -> float:
    """Seconds of a prompt's steps.  Whole chunks take longer by as much as their contexts are
    longer, so the first and the last of them are timed.
    """
    whole, last = chunks[:-1], chunks[-1]
    seconds = timer(last)
    if len(whole) == 1:
        seconds += timer(whole[0])
    elif whole:
        seconds += len(whole) * (timer(whole[0]) + timer(whole[-1])) / 2
    return seconds


def make_row(
    name: str,
    steps: Sequence[StepShape],
    shape: Shape,
    limits: MachineLimits,
    seconds: float | None,
) -> SpeedRow:
    work = sum_work(shape, steps, limits)
    ops = [op for step in steps for op in shape.list_ops(step)]
    return SpeedRow(
        name=name,
        prompt=steps[0].tokens > len(steps[0].chunks),
        batch=len(steps[0].chunks),
        tokens=sum(step.tokens for step in steps),
        operations=work.operations,
        nbytes=work.nbytes,
        compute=sum(op.operations / limits.get_peak(op.unit) for op in ops),
        memory=sum(op.nbytes / limits.read for op in ops),
        least=work.seconds,
        seconds=seconds,
    )


def make_nominal_shape(params: float, bits: float) -> Shape:
    """So many parameters of so many bits, each met by every token: no attention, no K/V."""
    unit = next(unit for most, unit in UNITS_BY_BITS if bits <= most)
    matrix = Matrix(round(params), 1, round(params * bits / 8), unit)
    return Shape(((matrix, 1),), (), KV_TYPES["bf16"])


def make_planned_shape(
    spec: ModelSpec, kinds: SlotKinds, activations: str, kv_dtype: str, count: CountBytes
) -> Shape:
    """The shape of a model whose kinds of weights are known; `count` gives packed bytes, which are
    taken where a kind is no format of a file.
    """
    matrices = Counter(
        Matrix(
            rows=shape[0],
            columns=shape[1],
            nbytes=count_bytes((shape[0], shape[1]), kind, count),
            unit=choose_rounding(activations, kind),
            share=compute_share(slot, spec),
            head=is_head(slot, spec),
        )
        for slot, parts in kinds.items()
        if slot not in LOOKED_UP or is_head(slot, spec)
        for shape, kind in parts
        if len(shape) == 2
    )
    layers = Counter(spec.layers)
    return Shape(tuple(matrices.items()), tuple(layers.items()), KV_TYPES[kv_dtype])


def is_head(slot: str, spec: ModelSpec) -> bool:
    """Whether a slot is the matrix that makes logits."""
    return slot == ("embed" if spec.tie else "head")


def count_bytes(shape: tuple[int, int], kind: str, count: CountBytes) -> int:
    """Bytes of a matrix in a file, or packed where no file has such a kind."""
    try:
        return FORMATS[kind].count_bytes(shape)
    except KeyError:
        return count(shape, kind)
