"""Part of a model: its first layers and its head with made-up weights, to be timed.

It has the model's shapes and kinds of weights, so that our kernels do on it what they would
do on the model; it needs no file.  It has as many layers as `WEIGHT_BYTES` hold, which is beyond
most caches, or all of them; what is measured is scaled to the whole model.

Invariant: weights are finite; answers mean nothing.
Mixtures of experts are refused: which experts made-up weights choose says nothing.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flyweight.errors import ConfigError
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.ops.cpu import CpuOps
from flyweight.plan.machine import read_machine
from flyweight.plan.memory import SlotKinds, format_size
from flyweight.plan.roofline import LAYER, StepShape
from flyweight.planning.made_up import PartialSlot, fill_weights, strip_order
from flyweight.planning.speed import is_head
from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.options import SequenceOptions
from flyweight.spec import KV_TYPES, ModelSpec, WeightPlan
from flyweight.types import SamplingParams
from flyweight.wire import I32, Batch

WEIGHT_BYTES = 256 << 20  # of layers, and of the head
KV_BYTES = 256 << 20
SPARE = 0.8  # of the available memory, at most
TABLE = 1024  # rows of an embedding that is only looked up
OPERATIONS = 3e10  # of a pass, at most, where one layer has fewer: a few tenths of a second
BLOCK = 32
RUN = 0.008  # seconds of passes that are timed together, where one takes less
SECONDS, LEAST, MOST = 0.08, 3, 15  # of one measurement, and its runs
GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a partial model is made after."""

    spec: ModelSpec
    plan: WeightPlan
    kinds: SlotKinds


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
        slots = self._list_slots(model)
        self._check_memory(slots)
        self._parts = Parts(ops, SingleProcess(), self.spec, fill_weights(slots, ops))
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
        """Seconds of all layers.  Of a step of more sequences or tokens than there is room for, a
        part is timed.  Where its contexts are too long, two shorter ones are, and the line through
        them is followed.
        """
        folded, times = self._fold(seen)
        if self._count_positions(folded) <= self.positions:
            return times * self._time_layers(folded)
        far = self.positions / self._count_positions(folded)
        while self._count_positions(self._shrink(folded, far)) > self.positions:
            far *= 0.9
        low, high = (self._time_layers(self._shrink(folded, share)) for share in (far / 2, far))
        return times * (low + (high - low) * (1 - far / 2) / (far / 2))

    def _fold(self, seen: StepShape) -> tuple[StepShape, float]:
        """A step whose shortest contexts take half of the room, and how many times more tokens the
        whole step has.
        """
        least = BLOCK * sum(-(-count // BLOCK) + 1 for count, _ in seen.chunks)
        parts = -(-2 * least // self.positions)
        if parts == 1:
            return seen, 1.0
        if len(seen.chunks) >= parts:
            chunks = seen.chunks[::parts]
        else:
            chunks = tuple((max(1, n // parts), max(1, c // parts)) for n, c in seen.chunks)
        folded = StepShape(chunks, seen.rows, sum(context for _, context in chunks))
        return folded, seen.tokens / folded.tokens

    def _count_positions(self, seen: StepShape) -> int:
        """Positions of whole blocks."""
        return BLOCK * sum(-(-context // BLOCK) for _, context in seen.chunks)

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

    def _check_memory(self, slots: Sequence[PartialSlot]) -> None:
        """Raises `ConfigError` where even this part of the model is too large."""
        parts = [part for slot in slots for part in slot.parts]
        need = sum(self._count(shape, kind) for shape, kind in parts) + KV_BYTES
        available = read_machine().available
        if need > SPARE * available:
            raise ConfigError(
                f"is too large to be timed in parts: a layer and the head take "
                f"{format_size(need)}, and {format_size(available)} are available",
                "model",
                value=self.whole.family,
                hint="there is a ceiling only",
            )

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
