"""Kept weights of every kind of model there is: transposed, permuted, with biases, in several
kinds, one matrix an expert or a head.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flyweight.backends import choose_backend
from flyweight.build import open_packed_cache
from flyweight.config import Settings
from flyweight.describe import read_plan, read_spec
from flyweight.models.registry import find_family
from flyweight.ops.cpu.gemm import PackedWeight
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.load import load
from flyweight.weights.packed import shelf
from flyweight.weights.packed.shelf import MappedWeights, WrittenWeights

DATA = Path(__file__).parents[1] / "data"
FOLDERS = (*(DATA / "models").iterdir(), *(DATA / "models-quantized").iterdir())
MODELS = sorted(p for p in FOLDERS if p.is_dir())


def matrices(weights: dict[str, object]) -> Iterator[tuple[str, PackedWeight]]:
    for slot, found in weights.items():
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, PackedWeight):
                yield slot, one


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.name)
def test_what_is_kept_is_what_is_packed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "LEAST", 0)
    monkeypatch.setenv("FLYWEIGHT_CACHE", str(tmp_path))
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", "1GiB")
    chosen, checkpoint = Settings(threads=1), open_checkpoint(model)
    kind = find_family(checkpoint.config)
    plan = read_plan(checkpoint, kind, read_spec(checkpoint, kind))
    ops = choose_backend(chosen, 1)

    def by_shelf(expected: type) -> list[tuple[str, PackedWeight]]:
        notes: list[str] = []
        way = open_packed_cache(chosen, checkpoint, plan, ops, notes.append)
        assert way is not None
        opened = way.open()
        assert isinstance(opened, expected)
        loaded = load(checkpoint, plan, ops, shelf=opened)
        opened.close(True)
        assert notes == []
        return list(matrices(loaded))

    plain = list(matrices(load(checkpoint, plan, ops)))
    assert plain
    for other in (by_shelf(WrittenWeights), by_shelf(MappedWeights)):
        assert [slot for slot, _ in other] == [slot for slot, _ in plain]
        for (slot, a), (_, b) in zip(plain, other, strict=True):
            assert (a.shape, a.kind) == (b.shape, b.kind), slot
            assert np.array_equal(a.tiles.bytes(), b.tiles.bytes()), slot
            assert (a.bias is None) == (b.bias is None), slot
            assert a.bias is None or np.array_equal(a.bias, b.bias), slot
