"""Part of a model: its first layers and its head with made-up weights, to be timed.

It has the model's shapes and kinds of weights, so that our kernels do on it what they would
do on the model; it needs no file.  It has as many layers as `WEIGHT_BYTES` hold, which is beyond
most caches, or all of them; what is measured is scaled to the whole model.

Invariant: weights are finite; answers mean nothing.
Mixtures of experts are refused: which experts made-up weights choose says nothing.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from flyweight.errors import ConfigError
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.ops.cpu import CpuOps
from flyweight.plan.memory import SlotKinds
from flyweight.plan.roofline import LAYER, StepShape
from flyweight.planning.speed import is_head
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.spec import KV_TYPES, ModelSpec, WeightPlan
from flyweight.types import SamplingParams
from flyweight.wire import I32, Batch

WEIGHT_BYTES = 256 << 20  # of layers, and of the head
KV_BYTES = 256 << 20
TABLE = 1024  # rows of an embedding that is only looked up
OPERATIONS = 3e10  # of a pass, at most, where one layer has fewer: a few tenths of a second
BLOCK = 32
PATTERN = 1 << 20  # bytes that weights are filled with, again and again
ALIGN = 64
RUN = 0.008  # seconds of passes that are timed together, where one takes less
SECONDS, LEAST, MOST = 0.08, 3, 15  # of one measurement, and its runs
GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a partial model is made after."""

    spec: ModelSpec
    plan: WeightPlan
    kinds: SlotKinds


@dataclass(frozen=True, slots=True)
class PartialSlot:
    """A weight slot: shapes and kinds of what fills it, and whether its matrices are biased."""

    name: str
    parts: Sequence[tuple[tuple[int, ...], str]]
    biased: bool


class PartialModel:
    """Part of a model, ready to be timed."""

    def __init__(self, model: ModelShape, ops: CpuOps, kv_dtype: str) -> None:
        spec = model.spec
        if any(layer.moe for layer in spec.layers):
            raise ConfigError(
                "is a mixture of experts, which cannot be timed before it is loaded", "model",
                value=spec.family, hint="there is a ceiling only",
            )  # fmt: skip
        self.whole, self.ops = spec, ops
        self.layers = self._count_layers(model)
        self.rows = self._count_head_rows(model)
        self.spec = replace(spec, layers=spec.layers[: self.layers], vocab=self.rows)
        weights = fill_weights(self._list_slots(model), ops)
        self._parts = Parts(ops, SingleProcess(), self.spec, weights)
        token = sum(KV_TYPES[kv_dtype].count_bytes(x.kv) for x in self.spec.layers)
        self.positions = max(1024, KV_BYTES // token // BLOCK * BLOCK)
        blocks = self.positions // BLOCK
        self._kv = tuple(ops.make_kv_layer(x.kv, blocks, BLOCK, kv_dtype) for x in self.spec.layers)
        self._touched = 0  # blocks whose memory is there
        self._decoders: dict[int, Decoder] = {}
        self._per_layer = sum(
            shape[0] * shape[1]
            for name, parts in model.kinds.items()
            if name.startswith("layers.0.")
            for shape, _ in parts
            if len(shape) == 2
        )

    def measure(self, seen: StepShape) -> float:
        """Seconds that the model's step takes, from those of the layers and the head here."""
        return self.measure_layers(seen) + self.measure_head(seen.rows)

    def measure_layers(self, seen: StepShape) -> float:
        """Seconds of all layers.  Where K/V of the step is more than there is room for, two shorter
        contexts are timed, and the line through them is followed.
        """
        rounded = sum(-(-context // BLOCK) * BLOCK for _, context in seen.chunks)
        if rounded <= self.positions:
            return self._time_layers(seen)
        far = self.positions / rounded
        points = [(share, self._shrink(seen, share)) for share in (0.45 * far, 0.9 * far)]
        (a, near), (b, further) = [(x, self._time_layers(step)) for x, step in points]
        return near + (further - near) / (b - a) * (1 - a)

    def _shrink(self, seen: StepShape, share: float) -> StepShape:
        chunks = tuple((n, max(n, int(context * share))) for n, context in seen.chunks)
        return StepShape(chunks, seen.rows, sum(context for _, context in chunks))

    def _count_layers(self, model: ModelShape) -> int:
        sizes = [0] * len(model.spec.layers)
        for name, parts in model.kinds.items():
            found = LAYER.match(name)
            if found:
                sizes[int(found[1])] += sum(self._count(shape, kind) for shape, kind in parts)
        total = count = 0
        for size in sizes:
            total += size
            if count and total > WEIGHT_BYTES:
                break
            count += 1
        return count

    def _count_head_rows(self, model: ModelShape) -> int:
        vocab = model.spec.vocab
        parts = next(parts for slot, parts in model.kinds.items() if is_head(slot, model.spec))
        size = sum(self._count(shape, kind) for shape, kind in parts)
        return vocab if size <= WEIGHT_BYTES else max(16, vocab * WEIGHT_BYTES // size // 16 * 16)

    def _count(self, shape: tuple[int, ...], kind: str) -> int:
        if len(shape) == 1:
            return 4 * shape[0]
        return self.ops.count_packed_bytes((shape[0], shape[1]), strip_order(kind))

    def _list_slots(self, model: ModelShape) -> list[PartialSlot]:
        """The slots of the partial model, with the shapes and kinds of its weights."""
        found = []
        for slot in model.plan.slots:
            layer = LAYER.match(slot.name)
            if layer and int(layer[1]) >= self.layers:
                continue
            parts = [(shape, strip_order(kind)) for shape, kind in model.kinds[slot.name]]
            if is_head(slot.name, model.spec):
                parts = [((self.rows, *parts[0][0][1:]), parts[0][1])]
            elif slot.name == "embed":
                parts = [((min(TABLE, model.spec.vocab), *parts[0][0][1:]), parts[0][1])]
            biased = any(source.bias for source in slot.sources)
            found.append(PartialSlot(slot.name, parts, biased))
        return found

    def _time_layers(self, seen: StepShape) -> float:
        wanted = int(OPERATIONS / (2 * self._per_layer * seen.tokens))
        count = min(max(1, wanted), self.layers)
        decoder, batch, kv = self._make_decoder(count), self._make_batch(seen), self._kv[:count]
        none = np.zeros(0, np.int32)
        seconds = repeat(lambda: decoder.compute_hidden(batch, kv, none))
        return seconds * len(self.whole.layers) / count

    def _make_decoder(self, count: int) -> Decoder:
        """One of the first `count` layers, made once."""
        if count not in self._decoders:
            spec = replace(self.spec, layers=self.spec.layers[:count])
            length = max(self.positions, self.spec.context)
            self._decoders[count] = Decoder(replace(self._parts, spec=spec), length)
        return self._decoders[count]

    def measure_head(self, rows: int) -> float:
        """Seconds of logits and sampling."""
        if not rows:
            return 0.0
        decoder, width = self._make_decoder(1), self.spec.hidden
        hidden = np.random.default_rng(rows).standard_normal((rows, width)).astype(np.float32)
        options = SequenceOptions(GREEDY, 0, 0, 1)
        asked = columns([LogitsRow(options, 1, ())] * rows)
        seconds = repeat(lambda: self.ops.sample(decoder.compute_logits(hidden), asked))
        return seconds * self.whole.vocab / self.rows

    def _make_batch(self, seen: StepShape) -> Batch:
        """Sequences that share no block."""
        counts = [count for count, _ in seen.chunks]
        contexts = [context for _, context in seen.chunks]
        needs = [-(-context // BLOCK) for context in contexts]
        firsts = np.cumsum([0, *needs])
        self._touch(int(firsts[-1]))
        tables: I32 = np.zeros((len(counts), max(needs)), np.int32)
        positions, slots = [], []
        for i, (count, context, need) in enumerate(zip(counts, contexts, needs, strict=True)):
            tables[i, :need] = np.arange(firsts[i], firsts[i] + need)
            at = np.arange(context - count, context, dtype=np.int32)
            positions.append(at)
            slots.append(tables[i][at // BLOCK] * BLOCK + at % BLOCK)
        tokens = np.arange(seen.tokens, dtype=np.int32) % min(TABLE, self.rows)
        return Batch(
            tokens=tokens,
            positions=np.concatenate(positions),
            slots=np.concatenate(slots).astype(np.int32),
            starts=np.cumsum([0, *counts]).astype(np.int32),
            contexts=np.array(contexts, np.int32),
            tables=tables,
            rows=np.zeros(0, np.int32),
            sampling=columns([]),
        )

    def _touch(self, blocks: int) -> None:
        """Pages that were never written are all one page of zeros, which a cache holds."""
        if blocks > self._touched:
            for layer in self._kv:
                self.ops.populate_kv(layer, self._touched, blocks - self._touched)
            self._touched = blocks


def repeat(run: Callable[[], object]) -> float:
    """Seconds of a pass: the median of a few runs of passes, after one that is not counted.  A run
    is long enough to meet whatever else the machine does.
    """
    start = time.perf_counter()
    run()
    passes = max(1, round(RUN / (time.perf_counter() - start)))
    seconds: list[float] = []
    while len(seconds) < LEAST or (sum(seconds) * passes < SECONDS and len(seconds) < MOST):
        start = time.perf_counter()
        for _ in range(passes):
            run()
        seconds.append((time.perf_counter() - start) / passes)
        if sum(seconds) * passes > 10 * SECONDS:
            break
    return statistics.median(seconds)


def strip_order(kind: str) -> str:
    """The kind without an order of columns, which made-up bytes cannot be."""
    return kind.removesuffix("_static").removesuffix("_order")


def fill_weights(slots: Sequence[PartialSlot], ops: CpuOps) -> dict[str, Any]:
    """Packed weights whose bytes are from 0x30 to 0x3f: as scales of any type these are ordinary
    numbers.
    """
    matrices = [part for slot in slots for part in slot.parts if len(part[0]) == 2]
    sizes = [ops.count_packed_bytes((n, k), kind) for (n, k), kind in matrices]
    offsets = [0, *accumulate(-(-size // ALIGN) * ALIGN for size in sizes)]
    descriptor = _make_file(offsets[-1])
    file = ops.map_file(descriptor)
    os.close(descriptor)
    ops.move(file, ops.count_unmoved(file))  # to huge pages, where the engine has its weights
    places = iter(offsets)
    weights: dict[str, Any] = {}
    for slot in slots:
        if len(slot.parts[0][0]) == 1:
            weights[slot.name] = np.ones(slot.parts[0][0], np.float32)
            continue
        packed = tuple(
            ops.map_weight(file, next(places), (n, k), kind, zeros if slot.biased else None)
            for (n, k), kind in slot.parts
            for zeros in [np.zeros(n, np.float32)]
        )
        weights[slot.name] = packed[0] if len(packed) == 1 else packed
    return weights


def _make_file(size: int) -> int:
    """A file in memory with so many bytes of the pattern; its descriptor."""
    descriptor = os.memfd_create("flyweight-part")
    pattern = np.random.default_rng(0).integers(0x30, 0x40, PATTERN, dtype=np.uint8).tobytes()
    left = -(-size // PATTERN) * PATTERN
    while left > 0:
        left -= os.write(descriptor, pattern)
    return descriptor
