"""The memory promise: what a model will need, worked out before a tensor is read, and what fits under a limit.

Invariant: `need` counts everything the process will hold at its worst moment: what it holds already (interpreter,
libraries, tokenizer), weights as packed, K/V, a step's arrays, logits and the loader's buffers.  It allocates nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from flyweight.errors import ConfigError
from flyweight.spec import ModelSpec

KV_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
MIB = 1 << 20
LOAD_BUFFER = 64 * MIB  # row ranges in flight while loading: file pages, unpacked codes, scales
STEP_SLACK = 24 * MIB  # allocator slop, thread stacks, sequences, tables and the events in flight
SAMPLE_BYTES = 16  # bytes per vocabulary entry of one row being sampled: candidates with their weights
MIN_CONTEXT = 16


class Packer(Protocol):
    """The two facts of a backend this room needs."""

    def packed_nbytes(self, shape: tuple[int, int], kind: str) -> int: ...
    @property
    def activations(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Sizing:
    """The settings that decide memory.  `blocks` 0 means as many as are useful and fit."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_dtype: str
    draft_tokens: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, part by part.  `blocks` K/V blocks of `block` bytes; `limit` is what was allowed."""

    base: int
    weights: int
    block: int
    blocks: int
    step: int
    logits: int
    load: int
    limit: int
    sizing: Sizing

    @property
    def kv(self) -> int:
        return self.block * self.blocks

    @property
    def need(self) -> int:
        """Peak bytes: loading and running do not overlap, weights stay."""
        return self.base + self.weights + max(self.load, self.kv + self.step + self.logits)

    def rows(self) -> list[tuple[str, int]]:
        """(what, bytes) for people to read; the loader's buffers are given back before K/V is touched."""
        return [
            ("already held (Python, libraries, tokenizer)", self.base),
            ("weights", self.weights),
            (f"K/V: {self.blocks} blocks of {self.sizing.block_size} tokens", self.kv),
            ("one step's arrays", self.step),
            ("logits and sampling", self.logits),
        ]


SlotKinds = Mapping[str, Sequence[tuple[tuple[int, ...], str]]]


def weight_bytes(kinds: SlotKinds, ops: Packer) -> int:
    """Bytes all slots will hold once packed; vectors are kept as float32."""
    total = 0
    for parts in kinds.values():
        for shape, kind in parts:
            matrix = len(shape) == 2
            total += ops.packed_nbytes((shape[0], shape[1]), kind) if matrix else 4 * shape[0]
    return total


def block_bytes(spec: ModelSpec, block_size: int, kv_dtype: str) -> int:
    """Bytes of one K/V block over all layers: the seeds' 2 x L x heads x d_head, per token, by KV heads."""
    per_token = sum(x.kv.heads * (x.kv.k_dim + x.kv.v_dim) for x in spec.layers)
    return per_token * block_size * KV_BYTES[kv_dtype]


def step_bytes(spec: ModelSpec, tokens: int) -> int:
    """The most float32 arrays alive at once in a step of `tokens`, with the quantised copy of a linear's input."""
    layer = max(spec.layers, key=lambda x: x.inner)
    heads, kv = layer.heads * layer.head, layer.kv.heads * layer.head
    attention = (heads + 2 * kv) + 2 * heads + 2 * spec.hidden
    mlp = 3 * layer.inner + 2 * spec.hidden
    quantised = max(layer.inner, spec.hidden, heads) * 2
    rotation = spec.rope.dim
    return tokens * (4 * (spec.hidden + max(attention, mlp) + rotation) + quantised)


def plan_memory(
    spec: ModelSpec, kinds: SlotKinds, ops: Packer, sizing: Sizing, bounds: tuple[int, int]
) -> MemoryPlan:
    """The plan under `bounds` = (bytes held now, bytes allowed).  Raises `ConfigError` naming what would fit."""
    base, limit = bounds
    rows = sizing.max_num_seqs * (1 + sizing.draft_tokens)
    plan = MemoryPlan(
        base=base,
        weights=weight_bytes(kinds, ops),
        block=block_bytes(spec, sizing.block_size, sizing.kv_dtype),
        blocks=0,
        step=step_bytes(spec, sizing.max_num_batched_tokens) + STEP_SLACK,
        logits=spec.vocab * (4 * rows + SAMPLE_BYTES * min(rows, 16)),
        load=LOAD_BUFFER,
        limit=limit,
        sizing=sizing,
    )
    useful = sizing.max_num_seqs * _blocks_for(sizing.max_model_len, sizing.block_size)
    least = _blocks_for(sizing.max_model_len, sizing.block_size)
    room = (limit - replace(plan, blocks=0).need) // plan.block
    blocks = sizing.blocks or max(least, min(useful, room))
    plan = replace(plan, blocks=blocks)
    if plan.need > limit:
        raise ConfigError(_refusal(plan, spec))
    return plan


def size(n: int) -> str:
    """Bytes for people: 1.25 GiB, 380 MiB."""
    return f"{n / (1 << 30):.2f} GiB" if n >= 1 << 30 else f"{n / MIB:.1f} MiB"


def _blocks_for(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size) + 1  # one to spare: copy-on-write needs a target


def _refusal(plan: MemoryPlan, spec: ModelSpec) -> str:
    """One line: what is needed, what is allowed, and the nearest settings that fit."""
    sizing = plan.sizing
    ways = [f"--memory-limit {-(-plan.need // MIB)}MiB"]
    shorter = _longest_context(plan, plan.step + plan.logits)
    if shorter and not sizing.blocks:
        ways.append(f"--max-model-len {shorter}")
    small_step = step_bytes(spec, 64) + STEP_SLACK + 20 * spec.vocab
    smaller = _longest_context(plan, small_step)
    if smaller > shorter:
        ways.append(f"--max-model-len {smaller} --max-num-batched-tokens 64 --max-num-seqs 1")
    return (
        f"memory limit {size(plan.limit)} is too small: this model needs {size(plan.need)} "
        f"({size(plan.weights)} weights, {size(plan.kv)} K/V for {sizing.max_model_len} tokens, "
        f"{size(plan.base)} already held); nearest settings that fit: {' or '.join(ways)}"
    )


def _longest_context(plan: MemoryPlan, running: int) -> int:
    """The longest max_model_len whose K/V fits beside weights and `running` bytes; 0 when none does."""
    room = plan.limit - plan.base - plan.weights - running
    blocks = room // plan.block - 1
    tokens = min(blocks * plan.sizing.block_size, plan.sizing.max_model_len)
    fits_loading = plan.base + plan.weights + plan.load <= plan.limit
    return tokens if fits_loading and tokens >= MIN_CONTEXT else 0
