"""A stack of decoder layers, its known layers in one native call, and the names of activations to
what the kernels take.

Invariant: the bits are those of the finer ops. Layers without a recipe, and batches that use an
adapter, run in the finer ops themselves. Every name of ops/base.py has an activation; any other is
refused, with the nearest.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from flyweight import _native
from flyweight.errors import ConfigError, nearest
from flyweight.ops.base import GATED_ACTS, PLAIN_ACTS
from flyweight.ops.cpu.attention import Attention
from flyweight.ops.cpu.gemm import Gemm
from flyweight.ops.operands import KVLayer, Rotation
from flyweight.ops.stack import Layer, Recipe, run_tapped
from flyweight.wire import F32, Batch

GATED = {kind: _native.GatedAct[kind] for kind in GATED_ACTS}
PLAIN = {kind: _native.PlainAct[kind] for kind in PLAIN_ACTS}


def find_gated(kind: str) -> _native.GatedAct:
    if kind not in GATED:
        raise ConfigError(_describe_unknown(kind, GATED_ACTS))
    return GATED[kind]


def find_plain(kind: str) -> _native.PlainAct:
    if kind not in PLAIN:
        raise ConfigError(_describe_unknown(kind, PLAIN_ACTS))
    return PLAIN[kind]


def _describe_unknown(kind: str, known: tuple[str, ...]) -> str:
    return f"activation = {kind!r}; allowed: {', '.join(known)}{nearest(kind, known)}"


class CpuStack:
    """Layers in runs: those that one native call computes, and those in between."""

    def __init__(
        self, pool: _native.Pool, gemm: Gemm, attention: Attention, layers: Sequence[Layer]
    ) -> None:
        self._pool, self._memory = pool, (gemm.panels, attention.scratch)
        self.layers = layers
        self.runs: list[tuple[slice, _native.Stack | None]] = []
        recipes = [layer.recipe() for layer in layers]
        for _, group in groupby(range(len(layers)), key=lambda i: recipes[i] is None):
            places = list(group)
            part = slice(places[0], places[-1] + 1)
            known = [recipe for recipe in recipes[part] if recipe is not None]
            self.runs.append((part, _prepare(known, gemm.by_kind) if known else None))
        self._last: tuple[KVLayer, ...] | None = None  # the K/V of the call before
        self._held: list[_native.StackKV | None] = []  # the same, for each of the runs

    def __call__(
        self, residual: F32, kv: Sequence[KVLayer], batch: Batch, ropes: Sequence[Rotation]
    ) -> F32:
        return self.run_tapped(residual, kv, batch, ropes, ())[0]

    def run_tapped(
        self, residual: F32, kv: Sequence[KVLayer], batch: Batch, ropes: Sequence[Rotation],
        taps: Sequence[int],
    ) -> tuple[F32, dict[int, F32]]:  # fmt: skip
        if batch.adapters is not None and (batch.adapters >= 0).any():
            return run_tapped(self.layers, None, residual, kv, batch, ropes, taps)
        x: F32 | None = None
        found: dict[int, F32] = {}
        for (part, native), held in zip(self.runs, self._list_memories(tuple(kv)), strict=True):
            own = [tap - part.start for tap in taps if part.start <= tap < part.stop]
            if native is None or held is None:
                layers = self.layers[part]
                x, tapped = run_tapped(layers, x, residual, kv[part], batch, ropes, own)
            else:
                tapped = {tap: np.empty_like(residual) for tap in own}
                x = self._run_native(native, x, residual, held, batch, ropes, tapped)
            found |= {part.start + tap: rows for tap, rows in tapped.items()}
        assert x is not None, "a stack without layers"
        return x, found

    def _list_memories(self, kv: tuple[Any, ...]) -> list[_native.StackKV | None]:
        """What a run's native call takes for K/V, None where it makes none.  An engine's is one
        tuple (`tuple` of it is itself) and neither it nor a layer ever changes.
        """
        if kv is not self._last:
            self._held = [
                None if native is None else _native.StackKV([layer.native for layer in kv[part]])
                for part, native in self.runs
            ]
            self._last = kv
        return self._held

    def _run_native(
        self, stack: _native.Stack, x: F32 | None, residual: F32, kv: _native.StackKV,
        batch: Batch, ropes: Iterable[Rotation], taps: Mapping[int, F32],
    ) -> F32:  # fmt: skip
        where = batch.slots, batch.positions, batch.starts, batch.tables
        turns = [(rope.cos, rope.sin) for rope in ropes]
        panels, scratch = self._memory
        return _native.run_stack(
            self._pool, panels, scratch, stack, x, residual, kv, where, turns, batch.ancestors,
            [*taps.items()],
        )  # fmt: skip


def _prepare(recipes: Sequence[Recipe], modes: Sequence[int]) -> _native.Stack:
    acts: list[Any] = [
        find_gated(r.mlp.act) if r.mlp.gated else find_plain(r.mlp.act) for r in recipes
    ]
    first = recipes[0].attn.out
    hidden = sum(part.shape[0] for part in (first if isinstance(first, tuple) else (first,)))
    return _native.Stack(recipes, acts, hidden, modes)
