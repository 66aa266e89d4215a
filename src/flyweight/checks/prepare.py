"""PREPARES a model for a load that is known: its weights packed and kept, its memory checked.

Invariant: nothing is packed unless every sequence at its full length fits under the memory limit at
once; what does not is refused with the nearest settings that do.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flyweight.backends import choose_backend
from flyweight.build import load_weights, open_packed_cache
from flyweight.config import Settings
from flyweight.describe import LoadListener, ModelDescription, SilentListener, describe, find
from flyweight.errors import ConfigError
from flyweight.model_memory import judge_length, make_memory_plan, measure_needs
from flyweight.ops.base import Ops
from flyweight.plan.machine import read_machine
from flyweight.plan.memory import MARGIN, MIB, MemoryPlan, Needs, format_size, make_smallest_plan
from flyweight.weights.packed.shelf import LEAST


@dataclass(frozen=True, slots=True)
class PackedModel:
    """What a start will find: the file of packed weights (None: `why` there is none), `fresh` when
    it was made now, in `seconds`; and the memory plan.
    """

    model: Path
    kept: Path | None
    packed: int
    fresh: bool
    seconds: float
    memory: MemoryPlan
    why: str = ""


def prepare(settings: Settings, notify: LoadListener | None = None) -> PackedModel:
    """Checks that `max_num_seqs` sequences of `max_model_len` tokens fit, and packs.  Raises
    `ConfigError` or `CheckpointError`.
    """
    listener: LoadListener = notify or SilentListener()
    found = describe(find(settings, listener), settings.quantization)
    ops = choose_backend(settings, read_machine().cores)
    memory = make_whole_plan(settings, measure_needs(found.checkpoint, found.spec, found.plan, ops))
    judge_length(settings, found.spec, listener)
    listener.show_plan(memory, found)
    try:
        return _pack_model(settings, found, ops, listener, memory)
    finally:
        found.checkpoint.close()


def _pack_model(
    settings: Settings,
    found: ModelDescription,
    ops: Ops,
    listener: LoadListener,
    memory: MemoryPlan,
) -> PackedModel:
    path = found.checkpoint.path
    way = open_packed_cache(settings, found.checkpoint, found.plan, ops, listener.note)
    if way is None:
        return PackedModel(path, None, 0, False, 0.0, memory, "no folder to keep packed weights in")
    data = way.layout.data
    if data < LEAST:
        why = f"{format_size(data)} are packed faster than they are looked after"
        return PackedModel(path, None, data, False, 0.0, memory, why)
    file = way.file
    before, began = _read_inode(file), time.monotonic()
    load_weights(settings, found, ops, listener)
    after, took = _read_inode(file), time.monotonic() - began
    if after is None:
        room = format_size(way.folder.room)
        why = f"{format_size(way.layout.size)} could not be kept in {room} of room"
        return PackedModel(path, None, data, False, took, memory, why)
    return PackedModel(path, file, data, before != after, took, memory)


def _read_inode(file: Path) -> int | None:
    try:
        return file.stat().st_ino
    except OSError:
        return None


def make_whole_plan(settings: Settings, needs: Needs) -> MemoryPlan:
    """The plan with K/V for all sequences at full length.  Raises `ConfigError`."""
    plan = make_memory_plan(settings, needs, read_machine())
    length = settings.max_model_len or plan.sizing.max_model_len

    def plan_for(seqs: int, tokens: int) -> MemoryPlan:
        blocks = seqs * -(-tokens // plan.sizing.block_size) + 1  # one to spare: copy-on-write
        sizing = replace(plan.sizing, max_num_seqs=seqs, max_model_len=tokens, blocks=blocks)
        return make_smallest_plan(needs, sizing, (plan.base, plan.limit))

    whole = plan_for(settings.max_num_seqs, length)
    if whole.need <= whole.limit:
        return whole
    seqs = _find_most(settings.max_num_seqs, lambda n: plan_for(n, length))
    tokens = _find_most(length, lambda n: plan_for(settings.max_num_seqs, n))
    ways = [f"memory_limit = {-(-(whole.need + MARGIN) // MIB)}MiB"]
    ways += [f"max_batch_size = {seqs}"] if seqs else []
    ways += [f"{tokens} tokens of input and output"] if tokens else []
    raise ConfigError(
        f"memory_limit of {format_size(whole.limit)} is too small for {settings.max_num_seqs} "
        f"sequences of {length} tokens at once: they need {format_size(whole.need)} "
        f"({format_size(whole.weights)} weights, "
        f"{format_size(whole.kv)} K/V); nearest settings that fit: {' or '.join(ways)}"
    )


def _find_most(high: int, plan_for: Callable[[int], MemoryPlan]) -> int:
    """The largest number up to `high` whose plan fits, by bisection; 0 when none does."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        plan = plan_for(middle)
        low, high = (middle, high) if plan.need <= plan.limit else (low, middle - 1)
    return low
