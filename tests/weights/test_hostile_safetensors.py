"""Safetensors files that lie, one attack each, and random damage: a `CheckpointError` of one line
or a valid read.
"""

import json
from pathlib import Path
from struct import pack

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filewriters import encode, safetensors_bytes, write_safetensors
from flyweight.weights.safetensors import read_safetensors
from hostile_files import check_damaged, check_no_file, refusal


def header(**entries: object) -> dict[str, object]:
    return dict(entries)


def tensor(begin: object, end: object, shape: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD = header(a=tensor(0, 16, [2, 2]), b=tensor(16, 24, [2]))
DATA = bytes(24)
TEXT = json.dumps(GOOD).encode()

ATTACKS: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "empty"),
    "no room for the length": (b"\x10\0\0", "header's length"),
    "length past the end": (safetensors_bytes(GOOD, DATA, 10_000), "truncated"),
    "length of all ones": (b"\xff" * 8 + TEXT, "at most"),
    "length of 2^63": (pack("<Q", 1 << 63) + TEXT, "at most"),
    "header over 100 MB": (pack("<Q", 100_000_001) + TEXT, "at most"),
    "header of no bytes": (pack("<Q", 0), "not valid JSON"),
    "header not JSON": (safetensors_bytes(b"{'a': 1}"), "not valid JSON"),
    "header not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), "not valid JSON"),
    "header a list": (safetensors_bytes([1]), "object was expected"),
    "header nested deeply": (safetensors_bytes(b'{"a":' + b"[" * 100_000), "nested too deeply"),
    "header of a million values": (
        safetensors_bytes(b'{"a":[' + b"0," * (5 << 20) + b"0]}"),
        "more than",
    ),
    "header of 140,000 tensors": (
        safetensors_bytes(b"{" + b'"a":{"data_offsets":[0,0]},' * 140_000 + b"}"),
        "header of 140000 tensors; at most 131072",
    ),
    "a number of 10000 digits": (
        safetensors_bytes(
            b'{"a":{"dtype":"F32","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,4]}}'
        ),
        "not valid JSON",
    ),
    "duplicate tensor": (
        safetensors_bytes(b'{"a":' + json.dumps(tensor(0, 0, [0])).encode() + b',"a":{}}'),
        "twice",
    ),
    "duplicate field": (safetensors_bytes(b'{"a":{"dtype":"F32","dtype":"F16"}}'), "twice"),
    "entry not an object": (safetensors_bytes(header(a=3)), "'a'"),
    "entry without offsets": (safetensors_bytes(header(a={"dtype": "F32", "shape": [1]})), "'a'"),
    "entry with a stranger": (
        safetensors_bytes(header(a=tensor(0, 4, [1]) | {"x": 1}), bytes(4)),
        "'a'",
    ),
    "dtype unknown": (safetensors_bytes(header(a=tensor(0, 8, [1], "C64")), bytes(8)), "'C64'"),
    "dtype a number": (safetensors_bytes(header(a=tensor(0, 4, [1], 3)), bytes(4)), "dtype"),
    "dtype a list": (safetensors_bytes(header(a=tensor(0, 4, [1], ["F32"])), bytes(4)), "dtype"),
    "shape negative": (safetensors_bytes(header(a=tensor(0, 4, [-1])), bytes(4)), "shape"),
    "shape with a fraction": (safetensors_bytes(header(a=tensor(0, 4, [1.0])), bytes(4)), "shape"),
    "shape with a truth value": (
        safetensors_bytes(header(a=tensor(0, 4, [True])), bytes(4)),
        "shape",
    ),
    "shape a string": (safetensors_bytes(header(a=tensor(0, 4, "1")), bytes(4)), "shape"),
    "shape of 1000 axes": (
        safetensors_bytes(header(a=tensor(0, 4, [1] * 1000)), bytes(4)),
        "shape",
    ),
    "shape whose product wraps": (
        safetensors_bytes(header(a=tensor(0, 0, [1 << 32, 1 << 32])), b""),
        "needs",
    ),
    "shape of 2^64": (safetensors_bytes(header(a=tensor(0, 4, [1 << 64])), bytes(4)), "shape"),
    "shape larger than the bytes": (
        safetensors_bytes(header(a=tensor(0, 4, [2])), bytes(4)),
        "needs 8",
    ),
    "shape smaller than the bytes": (
        safetensors_bytes(header(a=tensor(0, 8, [1])), bytes(8)),
        "needs 4",
    ),
    "offsets backwards": (safetensors_bytes(header(a=tensor(4, 0, [1])), bytes(4)), "data_offsets"),
    "offsets negative": (safetensors_bytes(header(a=tensor(-4, 0, [1])), bytes(4)), "data_offsets"),
    "offsets of three": (
        safetensors_bytes(header(a={"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]})),
        "data_offsets",
    ),
    "offsets past the end": (
        safetensors_bytes(header(a=tensor(0, 400, [100])), bytes(8)),
        "truncated",
    ),
    "offsets near 2^63": (
        safetensors_bytes(header(a=tensor((1 << 63) - 8, (1 << 63) - 4, [1])), bytes(4)),
        "truncated",
    ),
    "data cut short": (safetensors_bytes(GOOD, DATA[:-1]), "truncated"),
    "tensors overlap": (
        safetensors_bytes(header(a=tensor(0, 16, [4]), b=tensor(8, 16, [2])), bytes(16)),
        "overlaps",
    ),
    "two tensors in one place": (
        safetensors_bytes(header(a=tensor(0, 8, [2]), b=tensor(0, 8, [2])), bytes(8)),
        "overlaps",
    ),
    "hole before the first": (safetensors_bytes(header(a=tensor(8, 12, [1])), bytes(12)), "hole"),
    "hole between two": (
        safetensors_bytes(header(a=tensor(0, 4, [1]), b=tensor(8, 12, [1])), bytes(12)),
        "hole",
    ),
    "bytes after the last": (safetensors_bytes(GOOD, DATA + b"x"), "follow"),
    "a pickle by another name": (b"\x80\x04\x95" + bytes(64), "damaged"),
    "a zip by another name": (b"PK\x03\x04" + bytes(64), "damaged"),
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.replace(" ", "-"))
def test_attack_is_refused_by_name(attack: str, tmp_path: Path) -> None:
    raw, expected = ATTACKS[attack]
    assert expected in refusal(read_safetensors, tmp_path / "model.safetensors", raw)


@pytest.mark.parametrize("begin", [0, 8])
def test_control_characters_of_names_are_escaped(begin: int, tmp_path: Path) -> None:
    """Of the tensor at fault, and of the one before it."""
    bad = "\x1b[2J\r\n" + "x" * 1000
    entries = {bad: tensor(0, 4, [1]), bad + "b": tensor(begin, begin + 4, [1])}
    content = safetensors_bytes(entries, bytes(12))
    refusal(read_safetensors, tmp_path / "model.safetensors", content)


def test_good_file_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(TEXT + b"   ", DATA))  # padding of the header is allowed
    found = read_safetensors(path)
    assert {name: s.shape for name, s in found.spans.items()} == {"a": (2, 2), "b": (2,)}


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    check_no_file(read_safetensors, tmp_path)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("honest") / "model.safetensors"
    kinds = ("f32", "f16", "bf16")
    tensors = {
        f"layer.{k}": encode(rng.standard_normal((3, 4)).astype(np.float32), k) for k in kinds
    }
    write_safetensors(path, tensors)
    return path.read_bytes()


@settings(max_examples=300, deadline=2000, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_damage_is_refused_or_harmless(
    honest: bytes, tmp_path: Path, data: st.DataObject
) -> None:
    check_damaged(read_safetensors, tmp_path / "model.safetensors", honest, data)
