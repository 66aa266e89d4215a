"""One prompt through a model, op by op: its prefill step, then one decode step.

Every op is timed alone, the middle of several passes; the least time of each follows from limits
that a micro-benchmark measures just before and after.  No hardware counters are read.

Invariant: the tokens are the engine's greedy ones; what is counted is of one step, summed over
layers.  Prints nothing.
"""

import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from flyweight.bench.limits import LimitSampler
from flyweight.config import Settings
from flyweight.describe import ModelDescription, describe, find
from flyweight.engine.runner import Runner
from flyweight.errors import RequestError
from flyweight.lowlevel import KVCacheModel
from flyweight.models.decoder import Decoder
from flyweight.ops.base import Ops
from flyweight.plan.roofline import MachineLimits, OpCost, list_slot_matrices
from flyweight.planning.op_costs import StepCosts
from flyweight.planning.op_meter import OpCall, OpMeter
from flyweight.requests.prompts import PromptReader, RequestContext
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.spec import KV_TYPES, ModelSpec
from flyweight.text.absent import load_any_tokenizer
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import SamplingParams
from flyweight.weights.formats import FORMATS

LAYER = re.compile(r"^layers\.(\d+)\.")
EXPERT = re.compile(r"\.\d+$")
LEAST_PASSES, MOST_PASSES, SECONDS = 3, 25, 0.4  # of each step
GREEDY = SamplingParams(temperature=0)
LABELS = {
    "attn_norm": "attn norm",
    "qkv": "q, k, v",
    "out": "attn out",
    "mlp_norm": "MLP norm",
    "down": "down",
    "norm": "final norm",
    "head": "logits",
    "embed": "embedding",
}
OPS = {
    "rotation": "rope angles",
    "rope_store": "rope, store",
    "attend": "attention",
    "act": "activation",
    "activate": "activation",
    "add": "add",
    "take": "last row",
    "sample": "sampling",
}


@dataclass(frozen=True, slots=True)
class OpTotal:
    """An op of a step over all layers: `calls` of it, the shapes of the first, what they cost in
    all, the least time of that, and the time they took.
    """

    label: str
    calls: int
    given: tuple[int, ...]
    weight: tuple[int, ...]
    result: tuple[int, ...]
    operations: float
    nbytes: float
    compute: float  # seconds that the operations take at least
    memory: float  # seconds that the bytes take at least
    least: float  # the larger of both, call by call
    seconds: float

    @property
    def binds(self) -> str:
        """What limits it."""
        if not self.least:
            return ""
        return "compute" if self.compute >= self.memory else "memory"


@dataclass(frozen=True, slots=True)
class WalkedStep:
    """One step: its ops in order, `tokens` computed of `context` seen, and the seconds of the same
    step as the engine runs it, layers in one native call.
    """

    tokens: int
    context: int
    ops: tuple[OpTotal, ...]
    whole: float

    @property
    def operations(self) -> float:
        return sum(op.operations for op in self.ops)

    @property
    def nbytes(self) -> float:
        return sum(op.nbytes for op in self.ops)

    @property
    def least(self) -> float:
        return sum(op.least for op in self.ops)

    @property
    def seconds(self) -> float:
        return sum(op.seconds for op in self.ops)


@dataclass(frozen=True, slots=True)
class MachineUsed:
    """What the steps ran on: limits of `threads` threads with the instruction set `isa`; K/V in
    `kv_dtype`, `weight_bytes` of matrices in the file.
    """

    limits: MachineLimits
    threads: int
    isa: str
    kv_dtype: str
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Walkthrough:
    """What became of a prompt: `pieces` are its tokens as text, `answer` the token after it."""

    spec: ModelSpec
    pieces: tuple[str, ...]
    answer: str
    prefill: WalkedStep
    decode: WalkedStep
    machine: MachineUsed


def walk(model: str, prompt: str, settings: Mapping[str, Any]) -> Walkthrough:
    """Loads a model and takes a prompt through it.  Raises `ConfigError`, `RequestError`."""
    found = describe(find(Settings.of(model=model, **settings)), read_tokenizer=load_any_tokenizer)
    cache = KVCacheModel(model, **settings)
    walker = StepWalker(cache)
    spec, ops = found.spec, walker.runner.ops
    kv_dtype = cache.loaded.memory.sizing.kv_dtype
    matrices = list_slot_matrices(found.checkpoint, found.plan, spec, ops.activations)
    nbytes = sum(m.nbytes for parts in matrices.values() for m in parts)
    tokens = walker.read_prompt(prompt)
    threads, isa = cache.loaded.memory.sizing.threads, cache.loaded.isa
    sampler = LimitSampler(threads, isa, nbytes)
    before = sampler.sample()
    prefill, answer = walker.measure_prefill(tokens)
    decode = walker.measure_decode(answer)
    limits = before.average(sampler.sample()).vector
    costs = StepCosts(spec, matrices, KV_TYPES[kv_dtype], measure_row(found))
    many = len(tokens)
    return Walkthrough(
        spec,
        tuple(spell_token(cache.tokenizer, token) for token in tokens),
        spell_token(cache.tokenizer, answer),
        add_up(prefill, (many, many), costs, limits),
        add_up(decode, (1, many + 1), costs, limits),
        MachineUsed(limits, threads, isa, kv_dtype, nbytes),
    )


def spell_token(tokenizer: Tokenizer, id: int) -> str:
    """A token as text; bytes that are no text by themselves are replaced."""
    return tokenizer.token_bytes(id, special=True).decode("utf-8", "replace")


def measure_row(found: ModelDescription) -> float:
    """Bytes of a row of the embedding in the file."""
    slot = next(slot for slot in found.plan.slots if slot.name == "embed")
    source = slot.sources[0]
    kind = FORMATS[found.checkpoint.tensors[source.tensor].kind]
    return kind.count_bytes(source.shape) / slot.shape[0]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Passes over one step: the calls of each, and the seconds of the same step as the engine runs
    it.
    """

    passes: list[list[OpCall]]
    whole: list[float]


class StepWalker:
    """Runs the steps of one sequence, by turns with every op timed and as the engine does."""

    def __init__(self, cache: KVCacheModel) -> None:
        self.cache = cache
        runner = cache.loaded.engine.runner
        assert isinstance(runner, Runner), "a model of this process"
        assert isinstance(runner.model, Decoder), "a decoder"
        self.runner, self.plain = runner, runner.model
        parts = runner.model.parts
        self.meter = OpMeter(runner.ops, parts.weights, runner.kv)
        ops = cast(Ops, self.meter)
        length = cache.loaded.limits.max_model_len
        self.metered = Decoder(replace(parts, ops=ops), length)

    def read_prompt(self, prompt: str) -> list[int]:
        """The prompt's tokens.  Raises `RequestError` for more than a step has."""
        limits, spec = self.cache.loaded.limits, self.cache.loaded.spec
        reader = PromptReader(self.cache.tokenizer, spec.vocab, limits.max_model_len)
        tokens = [*reader.read(prompt, GREEDY, RequestContext()).tokens]
        if len(tokens) > limits.max_num_batched_tokens:
            raise RequestError(
                f"has {len(tokens)} tokens; explain shows one step",
                "prompt",
                allowed=f"up to {limits.max_num_batched_tokens} tokens",
            )
        return tokens

    def measure_prefill(self, tokens: list[int]) -> tuple[MeasuredStep, int]:
        """The prompt's step, and the token that comes after it."""
        measured = self._repeat(lambda: self.cache.prefill(tokens), len(tokens))
        return measured, int(self.cache.logits.argmax())

    def measure_decode(self, token: int) -> MeasuredStep:
        """The step of one more token, again and again at the same place."""
        length = self.cache.length

        def step() -> None:
            self.cache.length = length
            self.cache.decode_step(token)

        return self._repeat(step, length + 1)

    def _repeat(self, step: Callable[[], object], position: int) -> MeasuredStep:
        """Passes by turns, the first of each kind not counted."""
        passes: list[list[OpCall]] = []
        whole: list[float] = []
        options = SequenceOptions(GREEDY, 0, 0, position)
        until = time.perf_counter() + SECONDS
        for i in range(MOST_PASSES + 1):
            start = time.perf_counter()
            step()
            whole.append(time.perf_counter() - start)
            self.runner.model = self.metered
            try:
                step()
            finally:
                self.runner.model = self.plain
            row = LogitsRow(options, position, ())
            self.meter.sample(self.cache.logits[None], columns([row]))
            passes.append(self.meter.take_calls())
            if i >= LEAST_PASSES and time.perf_counter() > until:
                break
        return MeasuredStep(passes[1:], whole[1:])


def add_up(
    measured: MeasuredStep, place: tuple[int, int], costs: StepCosts, limits: MachineLimits
) -> WalkedStep:
    """The step's ops in the order in which they first come, summed over layers; `place` is how many
    tokens it computes, and the positions seen in the end.
    """
    groups: dict[str, list[tuple[OpCall, OpCost, float]]] = {}
    for calls in zip(*measured.passes, strict=True):
        first, seconds = calls[0], statistics.median(call.seconds for call in calls)
        label = name_call(first, costs.spec)
        groups.setdefault(label, []).append((first, costs.count(first, place[1]), seconds))
    ops = []
    for label, members in groups.items():
        first = members[0][0]
        ops.append(
            OpTotal(
                label=label,
                calls=len(members),
                given=first.given,
                weight=costs.find_shape(first),
                result=first.result,
                operations=sum(cost.operations for _, cost, _ in members),
                nbytes=sum(cost.nbytes for _, cost, _ in members),
                compute=sum(c.operations / limits.get_peak(c.unit) for _, c, _ in members),
                memory=sum(c.nbytes / limits.read for _, c, _ in members),
                least=sum(c.compute_seconds(limits) for _, c, _ in members),
                seconds=sum(seconds for _, _, seconds in members),
            )
        )
    return WalkedStep(*place, tuple(ops), statistics.median(measured.whole))


def name_call(call: OpCall, spec: ModelSpec) -> str:
    """What an op is for, in words."""
    tail = EXPERT.sub("", LAYER.sub("", call.slot))
    if call.op == "linear" and tail == "embed":
        return LABELS["head"]
    if tail == "up" and call.op == "linear":
        return "gate, up" if spec.layers[0].gated else "up"
    if call.op == "experts":
        return "experts"
    return LABELS.get(tail) or tail.replace("_", " ") or OPS.get(call.op, call.op.replace("_", " "))
