"""GGUF files that lie, one attack each, and random damage: a `CheckpointError` of one line or a
valid read.
"""

import os
from pathlib import Path
from struct import pack

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filewriters import BLOCKS, entry, gguf_bytes, key, random_tensor, string, value, write_gguf
from flyweight.validation.strings import Strings
from flyweight.weights import gguf
from flyweight.weights.gguf import read_gguf
from hostile_files import check_damaged, memory_below, refusal, refusal_of

F32 = 0
HUGE = (1 << 64) - 1
ARCH = key("general.architecture", "llama")
ONE = entry("a", (2, 8), F32, 0)
DATA = bytes(64)
GOOD = gguf_bytes([ARCH], [ONE], DATA)


def array(code: int, count: int, payload: bytes = b"") -> bytes:
    return pack("<IIQ", 9, code, count) + payload


def with_key(x: bytes) -> bytes:
    return gguf_bytes([ARCH, key("k", x)], [ONE], DATA)


def with_tensors(*entries: bytes, data: bytes = DATA) -> bytes:
    return gguf_bytes([ARCH], list(entries), data)


ATTACKS: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "empty"),
    "two bytes": (b"GG", "magic"),
    "wrong magic": (b"GGML" + GOOD[4:], "not a GGUF file"),
    "magic alone": (b"GGUF", "version"),
    "version 1": (gguf_bytes([ARCH], [ONE], DATA, version=1), "version 1"),
    "version 4": (gguf_bytes([ARCH], [ONE], DATA, version=4), "version 4"),
    "big-endian": (b"GGUF" + pack(">I", 3) + GOOD[8:], "big-endian"),
    "cut in the counts": (GOOD[:20], "key count"),
    "tensor count of all ones": (gguf_bytes([ARCH], [ONE], DATA, counts=(HUGE, 1)), "tensor count"),
    "tensor count of a million": (
        gguf_bytes([ARCH], [ONE], DATA, counts=(10**6, 1)),
        "tensor count",
    ),
    "key count of all ones": (gguf_bytes([ARCH], [ONE], DATA, counts=(1, HUGE)), "key count"),
    "key count of 2^63": (gguf_bytes([ARCH], [ONE], DATA, counts=(1, 1 << 63)), "key count"),
    "more tensors than there are": (gguf_bytes([ARCH], [ONE], DATA, counts=(3, 1)), ""),
    "more keys than there are": (gguf_bytes([ARCH], [ONE], DATA, counts=(1, 4)), ""),
    "key length of all ones": (gguf_bytes([pack("<Q", HUGE)], [ONE], DATA), "at most 65536"),
    "key length past the end": (gguf_bytes([pack("<Q", 60_000)], [ONE], DATA), "truncated"),
    "key not UTF-8": (gguf_bytes([key(b"\xff\xfe", 1)], [ONE], DATA), "UTF-8"),
    "key of no letters": (gguf_bytes([key("", 1)], [ONE], DATA), "a metadata key is empty"),
    "key twice": (gguf_bytes([ARCH, ARCH], [ONE], DATA), "twice"),
    "value type 13": (with_key(pack("<I", 13)), "value type 13"),
    "value type of all ones": (with_key(pack("<I", 0xFFFFFFFF)), "value type"),
    "truth value of 2": (with_key(pack("<IB", 7, 2)), "neither"),
    "string length of all ones": (with_key(pack("<IQ", 8, HUGE)), "at most 16777216"),
    "string length that wraps": (with_key(pack("<IQ", 8, HUGE - 20)), "at most 16777216"),
    "string past the end": (with_key(pack("<IQ", 8, 5000)), "truncated"),
    "array whose string ends past the end": (
        with_key(array(8, 2, string("x") + pack("<Q", 5000))),
        "truncated",
    ),
    "array of type 99": (with_key(array(99, 1)), "value type 99"),
    "array of arrays": (with_key(array(9, 1, array(4, 1, bytes(4)))), "array of arrays"),
    "array of all-ones bytes": (with_key(array(0, HUGE)), "length"),
    "array of 2^61 doubles": (with_key(array(12, 1 << 61)), "length"),
    "array of 2^61 strings": (with_key(array(8, 1 << 61)), "length"),
    "array past the end": (with_key(array(4, 500)), "length"),
    "array with a false string length": (
        with_key(array(8, 2, string("x") + pack("<Q", HUGE))),
        "string 1 of 2 of",
    ),
    "array of truth values of 9": (with_key(array(7, 2, b"\1\x09")), "neither"),
    "alignment 0": (gguf_bytes([ARCH, key("general.alignment", 0)], [ONE], DATA), "alignment"),
    "alignment 3": (gguf_bytes([ARCH, key("general.alignment", 3)], [ONE], DATA), "alignment"),
    "alignment 2^31": (
        gguf_bytes([ARCH, key("general.alignment", 1 << 31)], [ONE], DATA),
        "alignment",
    ),
    "alignment a string": (
        gguf_bytes([ARCH, key("general.alignment", "x")], [ONE], DATA),
        "alignment",
    ),
    "alignment a fraction": (
        gguf_bytes([ARCH, key("general.alignment", 32.0)], [ONE], DATA),
        "alignment",
    ),
    "name length of all ones": (with_tensors(pack("<Q", HUGE) + ONE[8:]), "at most 65536"),
    "name not UTF-8": (with_tensors(entry(b"\xc3\x28", (1, 8), F32, 0)), "UTF-8"),
    "name twice": (with_tensors(ONE, entry("a", (2, 8), F32, 64), data=bytes(128)), "twice"),
    "no axes": (with_tensors(entry("a", (), F32, 0) + bytes(16)), "0 axes"),
    "five axes": (with_tensors(entry("a", (1, 1, 1, 1, 8), F32, 0)), "5 axes"),
    "2^32 - 1 axes": (with_tensors(string("a") + pack("<I", 0xFFFFFFFF) + bytes(64)), "axes"),
    "axis of 0": (with_tensors(entry("a", (0, 8), F32, 0)), "empty"),
    "axis of all ones": (with_tensors(entry("a", (HUGE,), F32, 0)), "truncated"),
    "axes whose product wraps": (with_tensors(entry("a", (1 << 32, 1 << 32), F32, 0)), "truncated"),
    "axes whose bytes wrap": (with_tensors(entry("a", (1 << 62, 4), F32, 0)), "truncated"),
    "type Q8_1": (with_tensors(entry("a", (2, 32), 9, 0)), "Q8_1"),
    "type Q8_K": (with_tensors(entry("a", (2, 256), 15, 0)), "Q8_K"),
    "type F64": (with_tensors(entry("a", (2, 8), 28, 0)), "F64"),
    "type I32": (with_tensors(entry("a", (2, 8), 26, 0)), "I32"),
    "type Q1_0": (with_tensors(entry("a", (2, 128), 41, 0)), "Q1_0"),
    "type 4, withdrawn": (with_tensors(entry("a", (2, 32), 4, 0)), "type 4"),
    "type of all ones": (with_tensors(entry("a", (2, 32), 0xFFFFFFFF, 0)), "type 4294967295"),
    **{
        f"row of half a {kind.upper()} block": (
            with_tensors(entry("a", (2, block // 2), code, 0)),
            f"blocks of {block}",
        )
        for kind, (code, block, *_) in BLOCKS.items()
    },
    **{
        f"{kind.upper()} a byte short": (
            with_tensors(entry("a", (3, 2 * block), code, 0), data=bytes(6 * nbytes - 1)),
            "truncated",
        )
        for kind, (code, block, nbytes, _) in BLOCKS.items()
    },
    "offset not aligned": (with_tensors(entry("a", (2, 4), F32, 8)), "alignment"),
    "offset past the end": (with_tensors(entry("a", (2, 8), F32, 1 << 20)), "truncated"),
    "offset of almost 2^64": (with_tensors(entry("a", (2, 8), F32, HUGE - 31)), "truncated"),
    "end past the end": (with_tensors(entry("a", (3, 8), F32, 0)), "truncated"),
    "data cut short": (GOOD[:-1], "truncated"),
    "no data at all": (gguf_bytes([ARCH], [ONE]), "truncated"),
    "tensors overlap": (with_tensors(ONE, entry("b", (2, 8), F32, 32), data=bytes(96)), "overlaps"),
    "two tensors in one place": (with_tensors(ONE, entry("b", (2, 8), F32, 0)), "overlaps"),
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.replace(" ", "-"))
def test_attack_is_refused_by_name(attack: str, tmp_path: Path) -> None:
    raw, expected = ATTACKS[attack]
    assert expected in refusal(read_gguf, tmp_path / "model.gguf", raw)


GIB = 1 << 30
SPARSE: dict[str, tuple[bytes, str]] = {  # the same with a terabyte of nothing behind
    "string of 900 GiB": (with_key(pack("<IQ", 8, 900 * GIB)), "at most 16777216"),
    "string of 15 GiB": (with_key(pack("<IQ", 8, 15 * GIB)), "at most 16777216"),
    "string of an array of 900 GiB": (
        with_key(array(8, 1 << 20, string("x") + pack("<Q", 900 * GIB))),
        "string 1 of 1048576 of 966367641600 bytes; at most 16777216",
    ),
    "key of 900 GiB": (gguf_bytes([pack("<Q", 900 * GIB)], [ONE]), "at most 65536"),
    "numbers past the limit": (
        gguf_bytes([key("a", array(0, 1 << 20))], [ONE], counts=(1, 9)),
        "metadata may not be longer",
    ),
    "strings past the limit": (
        gguf_bytes([key("a", array(8, 1 << 20))], [ONE], counts=(1, 9)),
        "of 1048576 ends past byte 262144; metadata may not be longer",
    ),
}


@pytest.mark.parametrize("attack", SPARSE, ids=lambda a: a.replace(" ", "-"))
def test_what_fits_a_huge_file_is_not_read_into_memory(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gguf.MOST_HEADER <= 1 << 29
    monkeypatch.setattr(gguf, "MOST_HEADER", 1 << 18)
    raw, expected = SPARSE[attack]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw[: raw.rindex(ONE)] if "limit" in attack else raw)
    os.truncate(path, 1 << 40)
    with memory_below(64 << 20):
        assert expected in refusal_of(read_gguf, path)


def test_control_characters_of_names_are_escaped(tmp_path: Path) -> None:
    bad = "\x1b[2J\r\n"
    for i, raw in enumerate(
        [
            gguf_bytes([ARCH, key(bad, pack("<I", 99))], [ONE], DATA),
            gguf_bytes([ARCH, string(bad)], [ONE], b""),
            with_tensors(entry(bad, (2, 8), F32, 1 << 20)),
            with_tensors(ONE, entry(bad, (2, 8), F32, 32), data=bytes(96)),
        ]
    ):
        refusal(read_gguf, tmp_path / f"{i}.gguf", raw)


def test_every_value_type_reads_back(tmp_path: Path) -> None:
    codes = {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        10: "Q",
        11: "q",
        6: "f",
        12: "d",
        7: "?",
    }
    keys = [key(f"one.{c}", pack(f"<I{f}", c, 1)) for c, f in codes.items()]
    keys += [key(f"many.{c}", array(c, 3, pack(f"<3{f}", 1, 0, 1))) for c, f in codes.items()]
    keys += [key("text", "h\u00e9"), key("words", ["a", "", "\u2581b"]), key("none", value([]))]
    keys.append(key("broken", array(8, 1, string(b"\xe2\x96"))))
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(keys, []))
    found = read_gguf(path).metadata
    for c in codes:
        kind = bool if c == 7 else float if c in (6, 12) else int
        assert found[f"one.{c}"] == 1 and type(found[f"one.{c}"]) is kind
        many = found[f"many.{c}"]
        assert isinstance(many, np.ndarray) and many.tolist() == [1, 0, 1]
    assert (
        found["text"] == "h\u00e9"
        and found["words"] == ["a", "", "\u2581b"]
        and found["none"] == []
    )
    broken = found["broken"]
    assert (
        isinstance(broken, Strings) and broken[0].encode("utf-8", "surrogateescape") == b"\xe2\x96"
    )


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_versions_and_alignments(version: int, alignment: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    keys = [ARCH, key("general.alignment", alignment)]
    entries = [entry("a", (2, 2), F32, 0), entry("b", (3,), F32, alignment * 2)]
    values = np.arange(7, dtype=np.float32)
    data = values[:4].tobytes().ljust(alignment * 2, b"\0") + values[4:].tobytes()
    path.write_bytes(gguf_bytes(keys, entries, data, alignment=alignment, version=version))
    found = read_gguf(path)
    assert np.array_equal(
        found.file.read_rows("a", found.spans["a"], 1, 2), values[2:4].reshape(1, 2)
    )
    assert np.array_equal(found.file.read_rows("b", found.spans["b"], 1, 3), values[5:])


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    rng = np.random.default_rng(1)
    shapes = {"f32": (3, 5), "bf16": (2, 4)} | {kind: (1, BLOCKS[kind][1]) for kind in BLOCKS}
    tensors = {f"t.{kind}": random_tensor(rng, kind, shape) for kind, shape in shapes.items()}
    metadata: dict[str, object] = {"general.architecture": "llama", "llama.block_count": 2}
    metadata |= {
        "tokenizer.ggml.tokens": ["a", "bc"],
        "tokenizer.ggml.scores": np.ones(2, np.float32),
    }
    path = tmp_path_factory.mktemp("honest") / "model.gguf"
    return write_gguf(path, metadata, tensors).read_bytes()


@settings(max_examples=300, deadline=2000, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_damage_is_refused_or_harmless(
    honest: bytes, tmp_path: Path, data: st.DataObject
) -> None:
    # what the reader trusts lies in front
    check_damaged(read_gguf, tmp_path / "model.gguf", honest, data, front=500)
