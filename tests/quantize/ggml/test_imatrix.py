"""Importance matrices: files of llama.cpp are read, ours say the same, and damage is refused."""

from pathlib import Path
from struct import pack

import numpy as np
import pytest

import filewriters
from flyweight.errors import CheckpointError
from flyweight.quantize.ggml.imatrix import (
    ImportanceFile,
    ImportanceMatrix,
    read_imatrix,
    write_imatrix,
)
from hostile_files import check_no_file, refusal

WRITTEN = Path(__file__).parents[2] / "data" / "llama_cpp"
NAMES = {f"blk.{i}.{part}.weight" for i in range(5) for part in (
    "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"
)}  # fmt: skip


def make_file() -> ImportanceFile:
    """A matrix, and three experts of which one was never reached."""
    rng = np.random.default_rng(2)
    plain = ImportanceMatrix(rng.random((1, 8), np.float32), np.array([64], np.float32))
    experts = ImportanceMatrix(rng.random((3, 4), np.float32), np.array([5, 0, 59], np.float32))
    experts.sums[1] = 0
    matrices = {"blk.0.attn_q.weight": plain, "blk.0.ffn_up_exps.weight": experts}
    return ImportanceFile(matrices, ("a.txt", "b.txt"), 3, 32)


def test_both_formats_of_llama_cpp_say_the_same() -> None:
    new = read_imatrix(WRITTEN / "stories260k.imatrix.gguf")
    old = read_imatrix(WRITTEN / "stories260k.imatrix.dat")
    assert set(new.matrices) == set(old.matrices) == NAMES
    assert (new.datasets, new.chunks, new.chunk_size) == (("t.txt",), 4, 128)
    assert (old.datasets, old.chunks) == (("t.txt",), 4)
    for name in NAMES:
        columns = 172 if "ffn_down" in name else 64
        found = new.find(name, (64, columns))
        assert found is not None and found.shape == (1, columns)
        assert new.matrices[name].counts.tolist() == [512]  # four chunks of 128 tokens
        assert np.allclose(found, old.find(name, (64, columns)), rtol=1e-6)
    query, key = (new.find(f"blk.3.attn_{part}.weight", (64, 64)) for part in "qk")
    assert np.array_equal(query, key)  # which see the same inputs


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = make_file()
    write_imatrix(tmp_path / "a.gguf", made)
    found = read_imatrix(tmp_path / "a.gguf")
    assert (found.datasets, found.chunks, found.chunk_size) == (made.datasets, 3, 32)
    for name, matrix in made.matrices.items():
        assert np.array_equal(found.matrices[name].sums, matrix.sums)
        assert np.array_equal(found.matrices[name].counts, matrix.counts)
    write_imatrix(tmp_path / "a.dat", made)
    old = read_imatrix(tmp_path / "a.dat")
    assert (old.datasets, old.chunks) == (("b.txt",), 3)
    shapes = {"blk.0.attn_q.weight": (2, 8), "blk.0.ffn_up_exps.weight": (3, 2, 4)}
    for name, shape in shapes.items():
        means = found.find(name, shape)
        assert means is not None
        assert np.allclose(means, old.find(name, shape), rtol=1e-6)
    assert (found.find("blk.0.ffn_up_exps.weight", (3, 2, 4))[1] == 1).all()  # type: ignore[index]
    assert {path.name for path in tmp_path.iterdir()} == {"a.gguf", "a.dat"}


def test_written_again_it_equals_llama_cpp(tmp_path: Path) -> None:
    """Values and counts; the binary file byte for byte."""
    for name in ("stories260k.imatrix.gguf", "stories260k.imatrix.dat"):
        made = read_imatrix(WRITTEN / name)
        write_imatrix(tmp_path / name, made)
    again = (tmp_path / "stories260k.imatrix.dat").read_bytes()
    assert again == (WRITTEN / "stories260k.imatrix.dat").read_bytes()
    found = read_imatrix(tmp_path / "stories260k.imatrix.gguf")
    theirs = read_imatrix(WRITTEN / "stories260k.imatrix.gguf")
    for name in NAMES:
        assert np.array_equal(found.matrices[name].sums, theirs.matrices[name].sums)


def test_another_models_matrix_is_refused() -> None:
    found = read_imatrix(WRITTEN / "stories260k.imatrix.gguf")
    assert found.find("output.weight", (512, 64)) is None
    with pytest.raises(CheckpointError, match=r"attn_q.weight is another model's: 64 values"):
        found.find("blk.0.attn_q.weight", (64, 128))


def entry(name: bytes, calls: int, values: list[float], size: int | None = None) -> bytes:
    count = len(values) if size is None else size
    raw = np.array(values, "<f4").tobytes()
    return pack("<i", len(name)) + name + pack("<ii", calls, count) + raw


def test_hostile_binary_files(tmp_path: Path) -> None:
    good = entry(b"a", 2, [1.0, 2.0])
    tail = pack("<ii", 1, 0)
    cases = {
        pack("<i", 0): "no entries",
        pack("<i", -1): "cannot be true",
        pack("<i", 1 << 30) + good: "cannot be true",
        pack("<i", 2) + good + tail: "truncated",
        pack("<i", 1) + pack("<i", 1 << 20) + b"x" * 20: "cannot be true",
        pack("<i", 1) + entry(b"a", 1, [], 1 << 29): "cannot be true",
        pack("<i", 1) + entry(b"a", 1, []) + bytes(40): "no values",
        pack("<i", 1) + entry(b"", 1, [1.0]): "empty or twice",
        pack("<i", 2) + good + good + tail: "empty or twice",
        pack("<i", 1) + entry(b"a", 1, [1.0, float("nan")]): "nan",
        pack("<i", 1) + entry(b"a", 1, [1.0, float("inf")]): "inf",
        pack("<i", 1) + entry(b"a", 1, [-1.0]): "-1.0",
        pack("<i", 1) + entry(b"a", -5, [1.0]): "cannot be true",
        pack("<i", 1) + good + tail + b"more": "4 bytes follow",
        b"GG": "truncated",
    }
    for content, said in cases.items():
        assert said in refusal(read_imatrix, tmp_path / "x.dat", content), content
    (tmp_path / "old.dat").write_bytes(pack("<i", 1) + good)  # before there was a tail
    assert read_imatrix(tmp_path / "old.dat").matrices["a"].find_means((1, 2)).tolist() == [
        [0.5, 1.0]
    ]
    check_no_file(read_imatrix, tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x.counts": ("f32", (1,), b"\0\0\xc0\x7f")}, "nan"),
        ({"x.in_sum2": ("f32", (4,), np.array([1, -2, 3, 4], "<f4").tobytes())}, "-2.0"),
        ({"x.in_sum2": ("f16", (4,), bytes(8))}, "f16 sums"),
        ({"x.counts": ("f32", (2,), bytes(8))}, "expected"),
        ({"y.in_sum2": ("f32", (4,), bytes(16))}, "without .counts"),
        ({"y.counts": ("f32", (1,), bytes(4))}, "belongs to no"),
        ({"z": ("f32", (1,), bytes(4))}, "belongs to no"),
    ],
)
def test_hostile_gguf_files(
    tmp_path: Path, changed: dict[str, filewriters.Tensor], said: str
) -> None:
    tensors = {
        "x.in_sum2": filewriters.encode(np.ones(4), "f32"),
        "x.counts": filewriters.encode(np.ones(1), "f32"),
    }
    path = tmp_path / "x.gguf"
    metadata: dict[str, object] = {"general.type": "imatrix", "imatrix.chunk_count": 1}
    filewriters.write_gguf(path, metadata, tensors)
    assert read_imatrix(path).matrices["x"].sums.tolist() == [[1, 1, 1, 1]]
    filewriters.write_gguf(path, metadata, tensors | changed)
    assert said in refusal(read_imatrix, path, path.read_bytes())


def test_a_model_is_no_importance_matrix(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for metadata in ({"general.type": "model"}, {}, {"general.type": 3}):
        filewriters.write_gguf(path, metadata, {})
        assert "an importance matrix says imatrix" in refusal(read_imatrix, path, path.read_bytes())
    filewriters.write_gguf(path, {"general.type": "imatrix", "imatrix.chunk_count": "x"}, {})
    assert "a whole number expected" in refusal(read_imatrix, path, path.read_bytes())
