"""What the memory plan says of a step's arrays is held to the arrays: every family's forward pass,
with each op's results counted while they live, and what the layers in one native call take.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from harness import BLOCK, MODELS, batch, decoder

from flyweight.config import Limits
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.ops.stack import Layer, SteppedStack
from flyweight.plan.step import FLOAT, count_experts_bytes, count_layer_bytes

TOKENS = 200  # many, so that what does not grow with them cannot hide a missing array


class Counted:
    """A backend whose results are counted: `peak` is the most bytes of them alive at once.  Its
    stacks are in the finer ops.
    """

    def __init__(self, ops: CpuOps) -> None:
        self._ops, self.live, self.peak = ops, 0, 0

    def __getattr__(self, name: str) -> Any:
        op = getattr(self._ops, name)
        return op if not callable(op) or name in ("pack", "make_kv_layer") else self._counting(op)

    def stack(self, layers: Sequence[Layer]) -> SteppedStack:
        return SteppedStack(layers)

    def _counting(self, op: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            result = op(*args, **more)
            fields = [getattr(result, name) for name in ("cos", "sin") if hasattr(result, name)]
            for array in fields or (result if isinstance(result, tuple) else (result,)):
                self._count(array)
            return result

        return call

    def _count(self, array: Any) -> None:
        if (isinstance(array, np.ndarray) and array.base is None) or hasattr(array, "nbytes"):
            self.live += array.nbytes
            self.peak = max(self.peak, self.live)
            weakref.finalize(array, self._gone, array.nbytes)

    def _gone(self, nbytes: int) -> None:
        self.live -= nbytes


def in_one_call(ops: CpuOps, model: Decoder, tokens: int) -> int:
    """Bytes alive while the model's layers run in native calls: residual, result, rotations, and
    what a call keeps between kernels.
    """
    assert isinstance(model.stack, SteppedStack)
    runs = ops.stack(model.stack.layers).runs
    between = max((native.floats for _, native in runs if native is not None), default=0)
    turns = sum(2 * len(frequencies) for frequencies, _ in model.ropes)
    return FLOAT * tokens * (2 * model.spec.hidden + turns + between)


@pytest.mark.parametrize("name", sorted(p.name for p in MODELS.iterdir() if p.is_dir()))
def test_arrays_between_ops_are_bounded(name: str) -> None:
    native = CpuOps(2, None, "f32")
    ops = Counted(native)
    model: Decoder = decoder(MODELS / name, ops, length=TOKENS)  # type: ignore[arg-type]
    spec, rng = model.spec, np.random.default_rng(0)
    tokens = min(TOKENS, spec.context)
    blocks = -(-tokens // BLOCK) + 2
    limits = Limits(max_model_len=tokens, max_num_seqs=1, max_num_batched_tokens=tokens,
                    block_size=BLOCK, blocks=blocks)  # fmt: skip
    kv = allocate_kv(spec, ops, limits, "f32")  # type: ignore[arg-type]
    prompt = rng.integers(0, spec.vocab, tokens)
    step = batch([(prompt, 0)], tokens, np.zeros(0, np.int32))
    ops.live = ops.peak = 0
    model.compute_hidden(step, kv, step.rows)
    planned = count_layer_bytes(spec, {"": [((1, 0), "f32")]}, "f32", tokens)
    if not any(x.latent for x in spec.layers):
        planned -= 64 * tokens  # the least that rounded rows are counted with
    mixtures = [x.moe for x in spec.layers if x.moe is not None]
    if mixtures:  # without the kernel's own memory
        route, inner = mixtures[0].route, mixtures[0].inner
        planned -= count_experts_bytes(route, spec.hidden, inner, tokens)
        planned += FLOAT * tokens * (route.experts + spec.hidden + 2 * route.top)
    peak = max(ops.peak, in_one_call(native, model, tokens))
    assert peak <= planned <= 1.6 * peak
