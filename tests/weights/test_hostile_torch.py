"""PyTorch files that lie or would run code, one attack each, and random damage: a `CheckpointError`
of one line or a valid read.
"""

import io
import zipfile
from pathlib import Path
from struct import pack

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flyweight.weights.opcodes import GLOBALS, MOST_PICKLE
from flyweight.weights.torchfile import read_torch
from hostile_files import check_damaged, check_no_file, refusal
from torchwriter import (
    EMPTY,
    MAGIC,
    PROTO,
    archive,
    many,
    state,
    storage,
    stream,
    tensor,
    text,
    whole,
)

ONE = storage("FloatStorage", "0", 4)
PLAIN = {"a": tensor(ONE, (2, 2))}
HELD = {"0": bytes(16)}
GOOD = archive(state(PLAIN), HELD)
OLD = storage("FloatStorage", "0", 4, b"N")
OLD_GOOD = stream(state({"a": tensor(OLD, (2, 2))}), {"0": (4, bytes(16))})
HUGE = (1 << 63) - 1


def zipped(value: bytes, held: dict[str, bytes] = HELD) -> bytes:
    """An archive with one entry, `value`, in its state dict."""
    return archive(state({"a": value}), held)


def raw(pickle: bytes) -> bytes:
    return archive(PROTO + pickle, HELD)


def call(name: str, args: bytes = b")") -> bytes:
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode() + args + b"R"


def packed(method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr("archive/data.pkl", state(PLAIN))
        file.writestr("archive/data/0", bytes(16))
    return buffer.getvalue()


def directory(at: int, new: bytes, file: bytes = GOOD, entry: int = 0) -> bytes:
    """`new` put over byte `at` of an entry of the archive's directory."""
    place = file.index(b"PK\x01\x02")
    for _ in range(entry):
        place = file.index(b"PK\x01\x02", place + 1)
    return file[: place + at] + new + file[place + at + len(new) :]


def ending(at: int, new: bytes) -> bytes:
    """The same of the archive's end."""
    place = GOOD.rindex(b"PK\x05\x06")
    return GOOD[: place + at] + new + GOOD[place + at + len(new) :]


RUNS = (  # what pickles of malware name, and what torch.load itself allows beyond tensors
    "posix.system", "nt.system", "os.system", "builtins.eval", "builtins.exec", "__builtin__.eval",
    "builtins.getattr", "builtins.__import__", "subprocess.Popen", "runpy._run_code",
    "socket.socket", "webbrowser.open", "torch.load", "torch.hub.load", "torch.float32",
    "torch.storage._load_from_bytes", "torch._utils._rebuild_sparse_tensor", "torch.Size",
    "numpy.core.multiarray._reconstruct", "collections.defaultdict", "torch._utils.__dict__",
    "collections.OrderedDict.fromkeys", "torch.ComplexFloatStorage",
    "transformers.training_args.TrainingArguments",
)  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("form", ["zip", "stream", "bare", "protocol 4", "uncalled"])
def test_what_would_run_code_is_refused_by_name(name: str, form: str, tmp_path: Path) -> None:
    module, _, last = name.rpartition(".")
    value = call(name, b"(" + text("id") + b"t")
    if form == "protocol 4":
        words = b"".join(b"\x8c" + bytes([len(w)]) + w.encode() + b"\x94" for w in (module, last))
        value = words + b"\x93\x94(" + text("id") + b"tR"
    if form == "uncalled":
        value = f"c{module}\n{last}\n".encode()
    content = {
        "stream": stream(PROTO + value + b".", {}),
        "bare": b"\x80\x04" + value + b".",
    }.get(form, zipped(value))
    path = tmp_path / "pytorch_model.bin"
    said = refusal(read_torch, path, content)
    assert f"{path}: at byte " in said and f"it names '{name}'" in said


def test_the_names_that_are_allowed_are_these() -> None:
    """Storages by type, three ways to make a tensor of one, and a dict: none can run anything."""
    stores = {name for name in GLOBALS if name.startswith("torch.") and name.endswith("Storage")}
    others = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter"}
    assert {*stores, "collections.OrderedDict"} | {f"torch._utils.{o}" for o in others} == GLOBALS
    assert len(stores) == 10


REFUSED = {  # opcodes with what they take
    "INST": b"(ccollections\nOrderedDict\nicollections\nOrderedDict\n", "OBJ": b"(o",
    "NEWOBJ": b")\x81", "NEWOBJ_EX": b"\x92", "EXT1": b"\x82\x01", "EXT4": b"\x84" + bytes(4),
    "PERSID": b"Px\n", "GET": b"g1\n", "PUT": b"p1\n", "INT": b"I1\n", "STRING": b"S'a'\n",
    "UNICODE": b"Va\n", "DUP": b"2", "POP": b"0", "POP_MARK": b"1", "BINBYTES": b"B" + bytes(4),
    "LONG4": b"\x8b" + pack("<I", 0), "BYTEARRAY8": b"\x96" + bytes(8), "FROZENSET": b"\x91",
    "0xff": b"\xff", "0x00": b"\0",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_every_other_opcode_is_refused_by_name(name: str, tmp_path: Path) -> None:
    said = refusal(read_torch, tmp_path / "m.bin", zipped(REFUSED[name]))
    assert f"opcode {name} is not allowed" in said


ATTACKS: dict[str, tuple[bytes, str]] = {
    # --- the file ---
    "empty": (b"", "empty"),
    "three bytes": (b"PK\x03", "neither a zip archive"),
    "text": (b"hello world, hello world", "neither a zip archive"),
    "a git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "neither a zip"),
    "the tar of PyTorch 0.1": (b"storages\0" + bytes(500) + b"ustar", "neither a zip archive"),
    "cut in its end": (GOOD[:-10], "no end"),
    "cut before its end": (GOOD[:-22], "no end"),
    "cut in its data": (GOOD[:300] + GOOD[-22:], "damaged"),
    "magic alone": (b"PK\x03\x04", "no end"),
    "deflated": (packed(), "compressed (method 8)"),
    "bzip2": (packed(zipfile.ZIP_BZIP2), "compressed (method 12)"),
    "encrypted": (directory(8, pack("<H", 1)), "encrypted"),
    "sizes that differ": (directory(20, pack("<I", 5)), "it is damaged"),
    "a member past the end": (directory(20, pack("<II", 10**6, 10**6)), "truncated"),
    "a header past the end": (directory(42, pack("<I", 10**6)), "truncated"),
    "a header elsewhere": (directory(42, pack("<I", 3)), "has no header at byte 3"),
    "a name past the directory": (directory(28, pack("<H", 60000)), "directory is damaged"),
    "an entry without its mark": (directory(0, b"XXXX"), "directory is damaged"),
    "members beyond the directory": (ending(10, pack("<H", 9000)), "9000 members"),
    "a directory past the end": (ending(16, pack("<I", 10**6)), "truncated"),
    "a directory of 4 GiB": (ending(12, pack("<I", (1 << 32) - 2)), "at most 131072 members"),
    "ZIP64 without it": (ending(10, pack("<H", 0xFFFF)), "ZIP64 end is not where"),
    "the same member twice": (directory(46, b"archive/data/1", archive(
        state(PLAIN), {"0": bytes(16), "1": bytes(16)}), 1), "'archive/data/1' is twice"),
    "no data.pkl": (archive(b"", HELD).replace(b"data.pkl", b"data.pk_"), "with 0 members"),
    "two of them": (archive(state(PLAIN), HELD, {"b/data.pkl": b""}), "with 2 members"),
    "big-endian": (archive(state(PLAIN), HELD, {"archive/byteorder": b"big"}), "byte order b'big'"),
    # --- the pickle ---
    "a long pickle": (archive(bytes(MOST_PICKLE + 1), {}), f"at most {MOST_PICKLE}"),
    "no opcodes": (archive(b"", HELD), "ends early"),
    "no end": (archive(state(PLAIN)[:-1], HELD), "ends early"),
    "nothing left": (raw(b"."), "nothing is left on the stack"),
    "a mark is no object": (raw(b"(."), "nothing is left"),
    "no mark": (raw(b"t."), "no mark"),
    "a memo never written": (raw(b"h\x05."), "memo 5 was never written"),
    "text past the end": (raw(b"X" + pack("<I", 1 << 31)), "ends early"),
    "text that is none": (raw(b"X" + pack("<I", 1) + b"\xff."), "not valid UTF-8"),
    "a global without an end": (raw(b"c" + b"x" * 70_000), "a name that does not end"),
    "tensors of torchao": (
        raw(b"ctorch._tensor\n_rebuild_from_type_v2\n."),
        "tensors of classes of a library, as torchao's; save the model as safetensors",
    ),
    "a global not UTF-8": (raw(b"c\xff\x1b\nx\n."), r"it names '\\xff"),
    "100,000 marks": (raw(b"(" * 100_000 + b"."), "more than 65536 objects"),
    "pairs without number": (
        raw(b"](" + b"".join(whole(i) + b"N\x86" for i in range(40_000)) + b"eq\0"
            + b"ccollections\nOrderedDict\nh\0\x85R" * 2 + b"."),
        "more than 65536 pairs",
    ),
    "a key twice": (raw(EMPTY + b"(" + text("a") + b"N" + text("a") + b"Nu."), "twice"),
    "a key that is a list": (raw(b"}]Ns."), "text or a number expected"),
    "a key without a value": (raw(b"}(" + text("a") + b"u."), "a key without a value"),
    "a list": (raw(b"]."), "a dict of tensors expected"),
    "a number": (raw(b"K\x01."), "a dict of tensors expected"),
    "a nested dict": (zipped(b"}"), "'a' is of type dict; tensors by name expected"),
    "a tensor without a name": (
        raw(b"}K\x01" + tensor(ONE, (4,)) + b"s."), "1 is of type PickledTensor"
    ),
    "a storage alone": (zipped(ONE), "'a' is of type TorchStorage"),
    "a persistent id of text": (zipped(text("0") + b"Q"), "no storage"),
    "a module as persistent id": (
        zipped(b"(" + text("module") + b"NNNK\x01tQ"), "a persistent id that is no storage"
    ),
    "a storage of negative size": (zipped(storage("FloatStorage", "0", -1)), "no storage"),
    "a storage of another's view": (
        zipped(tensor(storage("FloatStorage", "0", 4, b"K\x01K\x01\x86"), (4,))), "a view of"
    ),
    "a call of a tensor": (zipped(tensor(ONE, (4,)) + b")R"), "a call of PickledTensor"),
    "a call of a storage's type": (zipped(call("torch.FloatStorage")), "torch.FloatStorage with 0"),
    "a tensor of nothing": (zipped(call("torch._utils._rebuild_tensor_v2")), "with 0 arguments"),
    "a parameter of text": (
        zipped(call("torch._utils._rebuild_parameter", text("x") + b"\x85")), "with 1 arguments"
    ),
    "attributes of a list": (raw(b"]Nb."), "a dict was expected"),
    # --- tensors ---
    "a storage that is not there": (
        zipped(tensor(storage("FloatStorage", "9", 4), (4,))), "'9' is not in the file"
    ),
    "a storage that leads elsewhere": (
        zipped(tensor(storage("FloatStorage", "../data.pkl", 4), (4,))), "is not in the file"
    ),
    "a storage larger than its bytes": (
        zipped(tensor(storage("FloatStorage", "0", 5), (5,))), "has 16 bytes, 5 elements"
    ),
    "a storage smaller than its bytes": (
        zipped(tensor(storage("FloatStorage", "0", 3), (3,))), "has 16 bytes, 3 elements"
    ),
    "a storage of 2^63": (zipped(tensor(storage("FloatStorage", "0", HUGE), (1,))), "has 16 bytes"),
    "a storage of 2^64": (zipped(storage("FloatStorage", "0", 1 << 64)), "no storage"),
    "an offset past the end": (zipped(tensor(ONE, (2, 2), offset=1)), "from element 1 on reaches"),
    "an offset of 2^63": (zipped(tensor(ONE, (1,), offset=HUGE)), "reaches out of"),
    "an offset below 0": (zipped(tensor(ONE, (1,), offset=-1)), "a tensor of"),
    "a shape past the end": (zipped(tensor(ONE, (3, 2))), "reaches out of a storage"),
    "a shape whose product wraps": (zipped(tensor(ONE, (1 << 32, 1 << 32))), "reaches out of"),
    "a shape below 0": (zipped(tensor(ONE, (-1,))), "a tensor of"),
    "a shape of 9 axes": (zipped(tensor(ONE, (1,) * 9)), "a tensor of"),
    "a shape of text": (zipped(
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + ONE + b"K\0" + text("x") + many((1,)) + b"tR"
    ), "a tensor of"),
    "strides that are too few": (zipped(tensor(ONE, (2, 2), (1,))), "2 axes with 1 strides"),
    "a transposed tensor of 3 axes": (
        zipped(tensor(ONE, (2, 1, 2), (1, 1, 2))), "make it contiguous()"
    ),
    "a transposed tensor past the end": (
        zipped(tensor(ONE, (2, 2), (1, 2), 1)), "reaches out of a storage"
    ),
    "rows that overlap": (zipped(tensor(ONE, (2, 3), (1, 1))), "not in order"),
    "an expanded tensor": (zipped(tensor(ONE, (1 << 40, 2), (0, 1))), "not in order"),
    "every second element, past the end": (zipped(tensor(ONE, (3,), (2,))), "reaches out of"),
    "a stride of 2^62": (zipped(tensor(ONE, (2, 2), (1 << 62, 1))), "reaches out of"),
    "strides below 0": (zipped(tensor(ONE, (2,), (-1,), 1)), "a tensor of"),
    # --- the older format ---
    "another magic number": (stream(state(PLAIN), {}, magic=MAGIC + 1), "not a PyTorch checkpo"),
    "another protocol": (stream(state(PLAIN), {}, protocol=1002), "not a PyTorch checkpoint"),
    "a big-endian machine": (
        stream(state(PLAIN), {}, machine=b"}(" + text("little_endian") + b"\x89u"), "little-endian"
    ),
    "no machine": (stream(state(PLAIN), {}, machine=b"N"), "not a little-endian file"),
    "keys of numbers": (OLD_GOOD.replace(b"](" + text("0"), b"](K\x05" + b"N" * 5), "list of"),
    "a key of no tensor": (stream(state(PLAIN), {"7": (0, b"")}), "'7' is listed twice, or no"),
    "a key twice in the list": (
        OLD_GOOD.replace(b"](" + text("0"), b"](" + text("0") * 2), "'0' is listed twice"
    ),
    "a storage cut": (OLD_GOOD[:-1], "truncated"),
    "a storage without its size": (OLD_GOOD[:-20], "truncated"),
    "another size": (
        stream(state({"a": tensor(OLD, (2, 2))}), {"0": (3, bytes(16))}), "has 12 bytes"
    ),
    "a size of all ones": (OLD_GOOD[:-24] + b"\xff" * 8 + bytes(16), "truncated"),
    "a storage not listed": (stream(state({"a": tensor(OLD, (2, 2))}), {}), "not in the file"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.replace(" ", "-"))
def test_attack_is_refused_by_name(attack: str, tmp_path: Path) -> None:
    content, expected = ATTACKS[attack]
    assert expected in refusal(read_torch, tmp_path / "pytorch_model.bin", content)


@pytest.mark.parametrize("content", [GOOD, OLD_GOOD], ids=["zip", "stream"])
def test_good_files_read_back(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(content)
    assert {name: s.shape for name, s in read_torch(path).spans.items()} == {"a": (2, 2)}


def test_archives_beyond_32_bits_are_read(tmp_path: Path) -> None:
    """ZIP64's extra fields and end, of sizes that fit a test."""
    place, end = GOOD.index(b"PK\x01\x02"), GOOD.rindex(b"PK\x05\x06")
    entry = GOOD[place:end]
    size, offset = entry[24:28], entry[42:46]
    extra = pack("<HH", 1, 24) + (size + bytes(4)) * 2 + offset + bytes(4)
    full = b"\xff" * 4
    name = entry[46 : 46 + int.from_bytes(entry[28:30], "little")]
    head = entry[:20] + full * 2 + entry[28:30] + pack("<H", len(extra)) + entry[32:42] + full
    rest = entry[46 + len(name) :]
    whole_directory = head + name + extra + rest
    count = int.from_bytes(GOOD[end + 10 : end + 12], "little")
    sizes = pack("<QQQQ", count, count, len(whole_directory), place)
    last = b"PK\x06\x06" + pack("<QHHII", 44, 45, 45, 0, 0) + sizes
    locator = b"PK\x06\x07" + pack("<IQI", 0, place + len(whole_directory), 1)
    after = b"PK\x05\x06" + bytes(4) + b"\xff" * 12 + bytes(2)
    path = tmp_path / "m.bin"
    path.write_bytes(GOOD[:place] + whole_directory + last + locator + after)
    file = read_torch(path)
    assert file.file.read_rows("a", file.spans["a"], 0, 2).shape == (2, 2)


def test_control_characters_of_names_are_escaped(tmp_path: Path) -> None:
    bad = "\x1b[2J\r\n" + "x" * 1000
    refusal(read_torch, tmp_path / "m.bin", archive(state({bad: tensor(ONE, (5,))}), HELD))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    check_no_file(read_torch, tmp_path)


TWO = {
    "a": tensor(storage("FloatStorage", "0", 12), (3, 4)),
    "b": tensor(storage("HalfStorage", "1", 6), (2, 2), offset=2),
    "c": tensor(storage("BFloat16Storage", "2", 4), (4,)),
}
BYTES = {"0": np.arange(12, dtype=np.float32).tobytes(), "1": bytes(12), "2": bytes(8)}
HONEST = {
    "zip": archive(state(TWO), BYTES),
    "stream": stream(state(TWO), {k: (c, BYTES[k]) for k, c in (("0", 12), ("1", 6), ("2", 4))}),
}


@pytest.mark.parametrize("form", HONEST)
@settings(max_examples=200, deadline=2000, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_damage_is_refused_or_harmless(
    form: str, tmp_path: Path, data: st.DataObject
) -> None:
    check_damaged(read_torch, tmp_path / "m.bin", HONEST[form], data)
