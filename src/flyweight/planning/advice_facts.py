"""What advice is checked against: this machine's memory, and steps of a model in 4, 8 and 16 bits,
timed here on part of it with made-up weights.

Invariant: every figure of speed was measured for this report; the model is only outlined.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flyweight.bench.decoding import DecodingTest, measure_decoding
from flyweight.bench.kernels import RunListener
from flyweight.config import Settings
from flyweight.describe import LoadListener
from flyweight.errors import ConfigError
from flyweight.plan.machine import Machine, read_machine
from flyweight.plan.roofline import MachineLimits, StepShape
from flyweight.planning.calibration import LocalEngine, make_part
from flyweight.planning.outline import assume_bits, outline_model
from flyweight.planning.speed import make_decode

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXT = 256  # positions that a decoding sequence sees
DRAFTS = 4
FEW_SHOT, ZERO_SHOT = 40, 10  # tokens of the document's prompts
LEAST_MEMORY = 2 << 30  # available, for part of a model of 7 billion weights
INSIDE = "stories"
DOCUMENTS = "llama-2-7b"  # the model of the documents


@dataclass(frozen=True, slots=True)
class AdviceFacts:
    """`decode` are seconds of a step by bits and sequences; `checked` those of a step of 4 bits in
    which every sequence has `DRAFTS` tokens more, by sequences; `prefill` those of a prompt of 4
    bits by tokens; `ways` those of an answer of the model inside the package by the way to choose
    its tokens, in greedy ones.
    """

    model: str
    basis: str
    params: int
    machine: Machine
    limits: MachineLimits
    decode: Mapping[tuple[int, int], float]
    checked: Mapping[int, float]
    prefill: Mapping[int, float]
    ways: Mapping[str, float]

    def compute_rate(self, bits: int, batch: int) -> float:
        """Tokens a second."""
        return batch / self.decode[bits, batch]


def gather_facts(model: str | None, settings: Settings, tell: LoadListener) -> AdviceFacts:
    """For a model, or for that of the documents.  A few seconds.  Raises `ConfigError`."""
    machine = read_machine()
    if model is None and machine.available < LEAST_MEMORY:
        raise ConfigError(
            "is needed: part of a model of 7 billion weights takes 2 GiB of memory, and less is "
            "available",
            "model",
            hint="nearest valid: stories",
        )
    outline = outline_model(replace(settings, model=model or DOCUMENTS), tell)
    engine = LocalEngine.of(settings, outline)
    sampler = engine.make_sampler()
    limits = sampler.sample().vector
    decode: dict[tuple[int, int], float] = {}
    for bits in (16, 8):
        part = make_part(replace(outline, kinds=assume_bits(outline, bits)), engine)
        decode[bits, 1] = part.measure(make_decode(1, CONTEXT))
        del part
    part = make_part(replace(outline, kinds=assume_bits(outline, 4)), engine)
    decode |= {(4, n): part.measure(make_decode(n, CONTEXT)) for n in BATCHES}
    checked = {n: part.measure(make_checked(n)) for n in (1, 16)}
    prefill = {n: part.measure(StepShape(((n, n),), 1, n)) for n in (ZERO_SHOT, FEW_SHOT)}
    return AdviceFacts(
        outline.name, outline.basis, outline.params, machine, limits, decode, checked, prefill,
        measure_ways(settings),
    )  # fmt: skip


def measure_ways(settings: Settings) -> dict[str, float]:
    """What `bench sampling` measures, in fewer rounds."""
    test = DecodingTest(
        INSIDE, output_len=64, rounds=3, engine={"threads": settings.threads}
    )  # fmt: skip
    return {one.way: one.ratio.median for one in measure_decoding(test, RunListener())}


def make_checked(batch: int) -> StepShape:
    """A step in which each sequence has its next token and drafts after it."""
    count = 1 + DRAFTS
    chunks = ((count, CONTEXT),) * batch
    return StepShape(chunks, batch * count, batch * CONTEXT)
