"""Packed tiles in a file: the same weights, mapped or moved, never written, never beyond the file;
and their layout, which files outlive.
"""

import os
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from flyweight import _native
from flyweight.ops.base import DENSE_KINDS
from flyweight.ops.cpu import CpuOps
from flyweight.ops.cpu.gemm import list_fields
from grouped_weights import GROUPED, random_grouped

# SHA-256 of every kind's tiles at PACKING's value.  A kind whose bytes change needs a new PACKING
# in native/kernels_gemm.h, or files kept by earlier versions would be read as something else.
PACKED = {
    1: {
        "f32": "2b1ee54b75f53078", "f16": "0ad41f8a6f0276be", "bf16": "bf51f6d580da6107",
        "q8_0": "3ecfc55b7a8e44d7", "q4_0": "d1c80f27aa9acfad", "q4_1": "6c230f262613c07b",
        "q5_0": "84f71f44411c1fe3", "q5_1": "cc60ca40550dd5f8", "q2_k": "297c3c723963e611",
        "q3_k": "3e8fe94dda2e8251", "q4_k": "07bea1a988b0008a", "q5_k": "d7b4b64e98f2ab86",
        "q6_k": "3691aedbc25f59c9", "iq4_nl": "d1c80f27aa9acfad", "iq4_xs": "4041d7d1acec2bee",
        "mxfp4": "26675eec08cfb06c", "nvfp4": "5d86dd58779d2e10", "int8_k": "8eb3a3305c8a1f95",
        "u2_g64": "ea8e0a63f6ba9c43", "u3_g128_bf16": "98ce241159b20583",
        "u4_g128": "f72e26bbbd956a89", "u4_g32_f32_zf": "42513144a9c87dc2",
        "u4_g64_bf16_min": "1401887989d1ceb5", "u8_g32_zf": "3cb4cdfcff690185",
        "u8_g128_f32_min": "aacbfea635322200", "s4_g64": "af4eed05a322e55d",
        "s4_g128_f32": "dd87221ec8d280b7", "s8_g128_bf16": "934b27899d6b384a",
        "s8_rows": "fcc5c1d6bdc1cdb0", "nf4_g64_f32": "6e98bd72a2742bfc",
        "fp4_g128": "0c6b31d523cfb56a", "e4m3_g128_f32": "740f1f639a3451a8",
        "e4m3_rows": "8c9af9504598db2e", "e5m2_g32_bf16": "9c628e476b6eae6a",
        "u4_g128_order": "ee6bd46ed0cb6c18", "s8_rows_static": "6c2ca7feb59ca78e",
        "s8_rows_order_static": "7a9bf6f93dfa90c2", "nvfp4_rows": "3c7c927306ada341",
        "nf4_g32_order": "7e54777815643501", "q4_0_order": "91e5c10dd0eb53b8",
    },
}  # fmt: skip
N, K = 40, 512


def packed(ops: CpuOps, kind: str) -> np.ndarray:
    """The tiles of a weight that is the same everywhere."""
    rng = np.random.Generator(np.random.PCG64(7))
    if kind in GROUPED:
        part = random_grouped(rng, kind, N, K)
    else:
        dtype = next(name for name, known in DENSE_KINDS.items() if known == kind)
        bits = rng.integers(0, 1 << 14, (N, K), np.uint16)
        part = bits if dtype == "uint16" else bits.astype(dtype)
    return np.array(ops.view_packed(ops.pack((N, K), [part])))


@pytest.fixture(scope="module")
def ops() -> CpuOps:
    return CpuOps(2)


@pytest.mark.parametrize("kind", [*DENSE_KINDS.values(), *GROUPED])
def test_the_layout_has_the_number_it_had(ops: CpuOps, kind: str) -> None:
    assert sha256(packed(ops, kind).data).hexdigest()[:16] == PACKED[_native.PACKING][kind]


@pytest.fixture
def file(tmp_path: Path, ops: CpuOps) -> Iterator[int]:
    """Three huge pages, a q4_0 weight in the last two."""
    tiles = packed(ops, "q4_0")
    raw = np.zeros(6 << 20, np.uint8)
    raw[AT : AT + len(tiles)] = tiles
    (tmp_path / "tiles").write_bytes(raw.tobytes())
    descriptor = os.open(tmp_path / "tiles", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


HUGE = 2 << 20
AT = 2 * HUGE - 4096


@pytest.mark.parametrize("moved", [True, False], ids=["moved", "mapped"])
def test_a_weight_in_a_file_is_the_weight(ops: CpuOps, file: int, moved: bool) -> None:
    rng = np.random.default_rng(3)
    found = _native.TileFile(file, False)
    assert found.nbytes == 3 * HUGE
    if moved:
        found.move(ops._pool, found.unmoved)
    tiles = found.tiles(AT, "q4_0", N, K)
    del found
    assert np.array_equal(tiles.bytes(), packed(ops, "q4_0"))
    part = random_grouped(rng, "q4_0", N, K)
    with pytest.raises(ValueError, match="read only"):
        _native.pack_rows(ops._pool, tiles, 0, N, *list_fields(part))
    with pytest.raises(ValueError, match="read-only"):
        tiles.bytes()[0] = 1


def huge_pages() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[never]" not in setting.read_text()


@pytest.mark.skipif(not huge_pages(), reason="nothing moves without huge pages")
def test_a_product_is_the_same_before_between_and_after(ops: CpuOps, file: int) -> None:
    """The descriptor is closed, and the first page moved, the weight's first half, then all."""
    own = os.dup(file)
    found = ops.map_file(own)
    os.close(own)
    weight = ops.map_weight(found, AT, (N, K), "q4_0", None)
    x = np.random.default_rng(5).standard_normal((3, K)).astype(np.float32)
    before, at = ops.linear(x, weight), ops.view_packed(weight).ctypes.data
    for count, left in ((1, 2 * HUGE), (HUGE, HUGE), (HUGE, 0), (HUGE, 0)):
        ops.move(found, count)
        assert ops.count_unmoved(found) == left
        assert np.array_equal(ops.linear(x, weight), before)
        assert ops.view_packed(weight).ctypes.data == at
        assert np.array_equal(ops.view_packed(weight), packed(ops, "q4_0"))


def test_a_thread_reads_while_another_moves(ops: CpuOps, file: int) -> None:
    x = np.random.default_rng(6).standard_normal((2, K)).astype(np.float32)
    expected = ops.linear(x, ops.map_weight(ops.map_file(file), AT, (N, K), "q4_0", None))
    reading, wrong = CpuOps(1), []

    def read() -> None:
        while not over.is_set():
            wrong.extend([1] * (not np.array_equal(reading.linear(x, weight), expected)))

    for _ in range(20):
        found, over = ops.map_file(file), threading.Event()
        weight = ops.map_weight(found, AT, (N, K), "q4_0", None)
        reader = threading.Thread(target=read)
        reader.start()
        while ops.count_unmoved(found):
            ops.move(found, HUGE)
        over.set()
        reader.join()
    assert not wrong


def test_what_shall_stay_mapped_does(ops: CpuOps, file: int) -> None:
    found = _native.TileFile(file, True)
    assert found.unmoved == 0
    found.move(ops._pool, HUGE)
    assert np.array_equal(found.tiles(AT, "q4_0", N, K).bytes(), packed(ops, "q4_0"))


def test_a_mapped_weight_keeps_its_bias(ops: CpuOps, file: int) -> None:
    weight = ops.map_weight(ops.map_file(file), AT, (N, K), "q4_0", np.ones(N, np.float32))
    x = np.random.default_rng(4).standard_normal((3, K)).astype(np.float32)
    plain = ops.map_weight(ops.map_file(file), AT, (N, K), "q4_0", None)
    assert np.array_equal(ops.linear(x, weight), ops.linear(x, plain) + np.float32(1))


@pytest.mark.parametrize(
    ("offset", "n", "k"),
    [
        (-64, N, K),
        (AT + 1, N, K),
        (6 << 20, N, K),
        ((6 << 20) - 64, N, K),
        (0, 1 << 40, K),
        (0, 0, K),
    ],
)
def test_nothing_is_beyond_the_file(ops: CpuOps, file: int, offset: int, n: int, k: int) -> None:
    found = ops.map_file(file)
    with pytest.raises(ValueError, match=r"beyond the file|cache line|needs rows"):
        found.tiles(offset, "q4_0", n, k)


def test_what_is_no_file_is_refused(ops: CpuOps, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for path in (tmp_path, tmp_path / "empty"):
        descriptor = os.open(path, os.O_RDONLY)
        with pytest.raises(ValueError, match="not a file with bytes"):
            ops.map_file(descriptor)
        os.close(descriptor)
    with pytest.raises(ValueError, match="not a file"):
        ops.map_file(-1)
