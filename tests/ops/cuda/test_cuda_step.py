"""A batch's columns on the device: as they are, or in fixed buffers with padding rows."""

import numpy as np
import pytest
from op_cases import ids, paged

from flyweight.ops.cuda.step import ROWS, Stager
from flyweight.wire import Batch


def make_batch(chunks: list[tuple[int, int]], block: int = 8) -> Batch:
    return paged(np.random.default_rng(3), chunks, block).step(chunks)


def test_columns_arrive_unchanged(device: str) -> None:
    import torch

    batch = make_batch([(5, 3), (0, 1), (16, 9)])
    staged = Stager(torch.device(device)).stage(batch)
    for name in ("tokens", "positions", "slots", "starts", "contexts", "tables"):
        assert (getattr(staged, name).cpu().numpy() == getattr(batch, name)).all()
    assert staged.owners.tolist() == [0] * 3 + [1] + [2] * 9
    assert not staged.decode and not staged.fixed
    assert staged.most == 9 and staged.longest == 25


@pytest.mark.parametrize("sequences", [1, 3, 11])
def test_decode_steps_are_padded(device: str, sequences: int) -> None:
    """Padding reads and writes the spare block alone, also where a larger step came before."""
    import torch

    stager = Stager(torch.device(device))
    stager.spare, stager.block_size = (77, 77 * 8), 8
    stager.stage(make_batch([(9, 1)] * 12))
    batch = make_batch([(3 + s, 1) for s in range(sequences)])
    staged = stager.stage(batch)
    rows = len(staged.tokens)
    assert staged.fixed and staged.decode and rows in ROWS and rows >= sequences
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

    stager = Stager(torch.device(device))
    stager.spare, stager.block_size = (77, 77 * 8), 8
    assert not stager.stage(make_batch([(9, 1), (0, 2)])).fixed
    adapted = make_batch([(9, 1), (8, 1)])
    adapted.adapters = ids(0, -1)
    assert not stager.stage(adapted).fixed
