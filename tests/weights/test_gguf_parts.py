"""GGUF models in several files: any part, or their folder, opens them all; parts that are missing,
misnamed or lie are named.
"""

from pathlib import Path

import numpy as np
import pytest

from filewriters import BLOCKS, Tensor, gguf_bytes, key, random_tensor, write_gguf
from flyweight.errors import CheckpointError
from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats import FORMATS

RNG = np.random.default_rng(9)
META: dict[str, object] = {
    "general.architecture": "llama",
    "llama.embedding_length": 256,
    "llama.block_count": 1,
    "llama.attention.head_count": 4,
    "llama.feed_forward_length": 64,
    "llama.context_length": 128,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
TENSORS = {
    f"{name}.weight": random_tensor(RNG, kind, (16, 256))
    for name, kind in zip(
        ("token_embd", "blk.0.attn_q", "blk.0.attn_k", "blk.0.ffn_up"),
        ("q8_0", "q2_k", "iq2_xxs", "f16"),
        strict=True,
    )
}


def name(i: int, count: int, stem: str = "model") -> str:
    return f"{stem}-{i + 1:05d}-of-{count:05d}.gguf"


def write_parts(folder: Path, count: int, empty_first: bool = False, **lies: object) -> list[Path]:
    """As gguf-split does: metadata in the first, three keys in each."""
    names, paths = list(TENSORS), []
    shared = {"split.count": count, "split.tensors.count": len(TENSORS)}
    for i in range(count):
        mine = names[i::count] if not empty_first else [[], *np.array_split(names, count - 1)][i]
        keys = (
            shared | {"split.no": i} | (META if i == 0 else {}) | (lies if i == count - 1 else {})
        )
        tensors: dict[str, Tensor] = {str(n): TENSORS[str(n)] for n in mine}
        paths.append(write_gguf(folder / name(i, count), keys, tensors))
    return paths


def rows_of(path: Path) -> dict[str, bytes]:
    """What a reader makes of every tensor, as bytes."""
    checkpoint, found = open_checkpoint(path), {}
    for tensor, info in checkpoint.tensors.items():
        rows = checkpoint.read(tensor, 0, info.shape[0])
        found[tensor] = (
            rows.dequantize().tobytes() if isinstance(rows, GroupedWeight) else rows.tobytes()
        )
    checkpoint.close()
    return found


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("empty_first", [False, True])
def test_any_part_or_the_folder_opens_all(count: int, empty_first: bool, tmp_path: Path) -> None:
    whole = rows_of(write_gguf(tmp_path / "whole.gguf", META, TENSORS))
    assert len(whole) == len(TENSORS)
    (tmp_path / "parts").mkdir()
    paths = write_parts(tmp_path / "parts", count, empty_first)
    prints = set()
    for path in (*paths, tmp_path / "parts"):
        assert rows_of(path) == whole
        checkpoint = open_checkpoint(path)
        prints.add(checkpoint.fingerprint)
        assert checkpoint.config["hidden_size"] == 256
    assert len(prints) == 1
    assert open_checkpoint(tmp_path / "whole.gguf").fingerprint not in prints


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, 4)
    paths[0].unlink()
    paths[2].unlink()
    for path in (paths[1], paths[3], tmp_path):
        with pytest.raises(CheckpointError) as error:
            open_checkpoint(path)
        message = str(error.value)
        assert f"2 of the model's 4 parts missing: '{name(0, 4)}', '{name(2, 4)}'" in message


def test_two_models_in_a_folder_are_not_drafted_at(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, 2)
    for path in paths:
        (tmp_path / path.name.replace("model", "other")).write_bytes(path.read_bytes())
    with pytest.raises(CheckpointError, match="name one, such as"):
        open_checkpoint(tmp_path)
    assert rows_of(tmp_path / name(1, 2, "other")) == rows_of(paths[0])


LIES: dict[str, tuple[dict[str, object], str]] = {
    "another number": ({"split.no": 0}, "split.no = 0, but by its name it is 1"),
    "another count": ({"split.count": 3}, "split.count = 3, but by its name it is 2"),
    "count a string": ({"split.count": "2"}, "split.count = '2'"),
    "count of a billion": ({"split.count": 1 << 30}, "split.count = 1073741824"),
    "count a list": ({"split.count": np.array([2, 2], np.uint16)}, "split.count = "),
    "number a truth": ({"split.no": True}, "split.no = True"),
}


@pytest.mark.parametrize("lie", LIES)
def test_parts_with_false_values_are_named(lie: str, tmp_path: Path) -> None:
    change, expected = LIES[lie]
    paths = write_parts(tmp_path, 2, **change)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(paths[0])
    assert str(error.value).startswith(f"{paths[1]}: ") and expected in str(error.value)


def test_a_part_under_another_name_says_what_it_needs(tmp_path: Path) -> None:
    first, _ = write_parts(tmp_path, 2)
    moved = first.rename(tmp_path / "mine.gguf")
    with pytest.raises(CheckpointError, match=r"NAME-00001-of-00002\.gguf.*gguf-split --merge"):
        open_checkpoint(moved)


def test_tensors_are_in_one_part_and_all_there(tmp_path: Path) -> None:
    write_parts(tmp_path, 2)
    keys: dict[str, object] = {"split.count": 2, "split.no": 1}
    twice = {"token_embd.weight": TENSORS["token_embd.weight"]}
    write_gguf(tmp_path / name(1, 2), keys, twice)
    with pytest.raises(CheckpointError, match=r"tensor 'token_embd\.weight' is in"):
        open_checkpoint(tmp_path)
    write_gguf(tmp_path / name(1, 2), keys, {})
    with pytest.raises(CheckpointError, match=r"have 2 tensors; split\.tensors\.count = 4"):
        open_checkpoint(tmp_path)


def test_a_damaged_part_is_the_one_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, 3)
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"^{paths[2]}: .*truncated"):
        open_checkpoint(paths[0])


def test_one_part_of_one_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, META | {"split.count": 1, "split.no": 0}, TENSORS)
    assert len(open_checkpoint(path).tensors) == len(TENSORS)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_type_in_both_versions(kind: str, version: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tensor = random_tensor(RNG, kind, (16, 256))
    raw = write_gguf(path, META, {"token_embd.weight": tensor}).read_bytes()
    path.write_bytes(raw[:4] + version.to_bytes(4, "little") + raw[8:])
    checkpoint = open_checkpoint(path)
    (info,) = checkpoint.tensors.values()
    assert info.kind == kind
    rows = checkpoint.read(info.name, 3, 7)
    expected = FORMATS[kind].parse(np.frombuffer(tensor[2], np.uint8), (16, 256))
    if isinstance(rows, GroupedWeight) and isinstance(expected, GroupedWeight):
        assert np.array_equal(rows.dequantize(), expected.dequantize()[3:7])
    else:
        assert np.array_equal(rows, np.asarray(expected)[3:7])


@pytest.mark.parametrize("version", [2, 3])
def test_big_endian_is_refused_by_name(version: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    raw = gguf_bytes([key("general.architecture", "llama")], [])
    path.write_bytes(raw[:4] + version.to_bytes(4, "big") + raw[8:])
    with pytest.raises(CheckpointError, match="is big-endian; readable: little-endian"):
        open_checkpoint(path)


def test_block_tables_of_the_writers_and_ours_agree() -> None:
    assert {k: (b, n) for k, (_, b, n, _) in BLOCKS.items()} == {
        k: (f.block, f.nbytes) for k, f in FORMATS.items() if f.quantised
    }
