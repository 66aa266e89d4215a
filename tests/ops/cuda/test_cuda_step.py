"""A batch's columns on the device: as they are, or in fixed buffers with padding rows."""

import numpy as np
import pytest
from op_cases import ids, paged

from flyweight.ops.cuda.kv import CudaKV, make_kv_layer
from flyweight.ops.cuda.step import ROWS, Stager
from flyweight.spec import KVGroup
from flyweight.wire import Batch


def make_batch(chunks: list[tuple[int, int]], block: int = 8) -> Batch:
    return paged(np.random.default_rng(3), chunks, block).step(chunks)


def make_kv(device: str, blocks: int = 77) -> CudaKV:
    import torch

    return make_kv_layer(KVGroup(1, 8, 8), blocks, 8, "bf16", torch.device(device))


def test_columns_arrive_unchanged(device: str) -> None:
    import torch

    batch = make_batch([(5, 3), (0, 1), (16, 9)])
    staged = Stager(torch.device(device)).stage(batch)
    for name in ("tokens", "positions", "slots", "starts", "contexts", "tables"):
        assert (getattr(staged, name).cpu().numpy() == getattr(batch, name)).all()
    assert staged.owners.tolist() == [0] * 3 + [1] + [2] * 9
    assert not staged.decode
    assert staged.most == 9 and staged.longest == 25


@pytest.mark.parametrize("sequences", [1, 3, 11])
def test_decode_steps_are_padded(device: str, sequences: int) -> None:
    """Padding reads and writes the spare block alone, also where a larger step, or one of a model
    with more blocks, came before.
    """
    import torch

    stager, kv = Stager(torch.device(device)), make_kv(device)
    stager.pad(make_batch([(9, 1)] * 12), kv)
    batch = make_batch([(3 + s, 1) for s in range(sequences)])
    stager.pad(batch, make_kv(device, 99))
    staged = stager.pad(batch, kv)
    assert staged is not None and staged.decode
    rows = len(staged.tokens)
    assert rows in ROWS and rows >= sequences
    for name in ("tokens", "positions", "slots", "contexts"):
        assert (getattr(staged, name).cpu().numpy()[:sequences] == getattr(batch, name)).all()
    width = batch.tables.shape[1]
    assert (staged.tables.cpu().numpy()[:sequences, :width] == batch.tables).all()
    assert (staged.slots.cpu().numpy()[sequences:] == 77 * 8).all()
    assert (staged.contexts.cpu().numpy()[sequences:] == 1).all()
    assert (staged.tables.cpu().numpy()[sequences:, 0] == 77).all()
    assert staged.owners.tolist() == list(range(rows))
    assert staged.longest >= batch.contexts.max()


def test_other_steps_are_not_padded(device: str) -> None:
    import torch

    stager, kv = Stager(torch.device(device)), make_kv(device)
    assert stager.pad(make_batch([(9, 1), (0, 2)]), kv) is None
    assert stager.pad(make_batch([(9, 1)] * (ROWS[-1] + 1)), kv) is None
    adapted = make_batch([(9, 1), (8, 1)])
    adapted.adapters = ids(0, -1)
    assert stager.pad(adapted, kv) is None
