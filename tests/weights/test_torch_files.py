"""PyTorch checkpoints as torch.save wrote them: the values of the safetensors file with them, from
each of its forms, and folders that hold them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from filewriters import encode, write_folder
from flyweight import LLM, SamplingParams
from flyweight.config import Settings
from flyweight.describe import find, open_tokenizer
from flyweight.errors import CheckpointError, ConfigError
from flyweight.weights.checkpoint import find_format, open_checkpoint
from flyweight.weights.formats import FORMATS
from flyweight.weights.safetensors import SafetensorsFile, read_safetensors
from flyweight.weights.survey import find_header_faults
from flyweight.weights.torchfile import TorchFile, read_torch
from tiny_model import tiny_folder, tiny_tensors
from torchwriter import archive, state, storage, tensor, torch_bytes, torch_folder

TORCH = Path(__file__).parents[1] / "data" / "torch"
MIB = 1 << 20


def values(file: TorchFile | SafetensorsFile, name: str) -> np.ndarray:
    span = file.spans[name]
    shape = span.shape or (1,)
    found = file.file.read_rows(
        name, span, 0, int(np.prod(shape[:-1])) if len(shape) > 1 else shape[0]
    )
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize("form", ["zip", "legacy", "protocol4"])
def test_every_form_holds_the_same_tensors(form: str) -> None:
    file = read_torch(TORCH / f"state-{form}.bin")
    twin = read_safetensors(TORCH / "state.safetensors")
    assert {n for n, s in file.spans.items() if s.kind in FORMATS} == set(twin.spans)
    for name, span in twin.spans.items():
        assert (file.spans[name].shape, file.spans[name].kind) == (span.shape, span.kind), name
        assert np.array_equal(values(file, name), values(twin, name)), name
    assert file.spans["again"].offset == file.spans["whole"].offset
    assert file.spans["inside"].offset == file.spans["whole"].offset + 2 * 6 * 4
    for name, kind, nbytes in (("mask", "u8", 4), ("positions", "i64", 40)):
        assert (file.spans[name].kind, file.spans[name].nbytes) == (kind, nbytes)


def test_rows_of_a_transposed_tensor() -> None:
    """Views that torch.save wrote as they were: a part of their rows is that part."""
    file = read_torch(TORCH / "state-zip.bin")
    twin = read_safetensors(TORCH / "state.safetensors")
    for name, (start, stop) in {
        "transposed": (2, 5), "columns": (3, 7), "column": (1, 4), "whole": (0, 0),
    }.items():  # fmt: skip
        assert bool(file.spans[name].strides) == (name != "whole")
        found = file.file.read_rows(name, file.spans[name], start, stop)
        assert np.array_equal(found, values(twin, name)[start:stop]), name  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        file.file.read_rows("transposed", file.spans["transposed"], 0, 7)


def test_numbers_that_are_no_weights_are_named(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    tensors = tiny_tensors()
    del tensors["model.norm.weight"]
    items = {name: tensor(storage("FloatStorage", name, len(raw) // 4), shape)
             for name, (_, shape, raw) in tensors.items()}  # fmt: skip
    items["model.norm.weight"] = tensor(storage("DoubleStorage", "norm", 32), (32,))
    held = {name: raw for name, (_, _, raw) in tensors.items()} | {"norm": bytes(256)}
    (folder / "pytorch_model.bin").write_bytes(archive(state(items), held))
    with pytest.raises(CheckpointError, match=r"norm.weight' is f64; f32, f16 or bf16 expected"):
        LLM(str(folder))


def test_metadata_of_a_state_dict_is_left_out() -> None:
    file = read_torch(TORCH / "state-module.bin")
    assert set(file.spans) == {"weight", "bias"}
    assert values(file, "weight").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
def test_a_model_generates_what_its_safetensors_do(old: bool, tmp_path: Path) -> None:
    twin, folder = tiny_folder(tmp_path / "twin"), tiny_folder(tmp_path / "bin")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(torch_bytes(tiny_tensors(), old))
    params, answers = SamplingParams(temperature=0, max_tokens=12), []
    for path in (twin, folder, folder / "pytorch_model.bin"):
        llm = LLM(str(path), packed_cache=False)
        answers.append(llm.generate(["Once upon a time"], params)[0].outputs[0].token_ids)
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 12


def test_safetensors_are_preferred(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"damaged")
    assert open_checkpoint(folder).format == find_format(folder) == "safetensors"
    assert find_header_faults(folder) == []
    (folder / "model.safetensors").unlink()
    assert find_format(folder) == find_format(folder / "pytorch_model.bin") == "pt"
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: neither a zip archive nor"):
        open_checkpoint(folder)
    assert len(find_header_faults(folder)) == 1


def test_the_requested_format_is_enforced(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="holds pt; leave it"):
        LLM(str(folder), load_format="safetensors")


@pytest.mark.parametrize("sharded", [False, True])
def test_pytorch_files_are_loaded_where_requested(sharded: bool, tmp_path: Path) -> None:
    """From a folder with safetensors too, whose weights are others here."""
    twin, folder = tiny_folder(tmp_path / "twin"), tiny_folder(tmp_path / "both")
    tensors = tiny_tensors(seed=1)
    if sharded:
        torch_folder(folder, (folder / "config.json").read_text(), tensors, {})
    else:
        (folder / "pytorch_model.bin").write_bytes(torch_bytes(tensors))
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=0)

    def scores(path: Path, **given: Any) -> float | None:
        with LLM(str(path), packed_cache=False, **given) as llm:
            return llm.generate(["Once upon a time"], params)[0].outputs[0].cumulative_logprob

    assert scores(folder) == scores(folder, load_format="safetensors") == scores(twin)
    (twin / "model.safetensors").unlink()
    for file in folder.glob("pytorch_model*"):
        (twin / file.name).write_bytes(file.read_bytes())
    assert scores(folder, load_format="pt") == scores(twin) != scores(folder)
    index = find(Settings.of(model=str(folder), load_format="pt"))
    assert find(Settings.of(model=str(index), load_format="pt")) == index
    assert find_header_faults(index) == []
    assert open_tokenizer(index).vocab_size == open_tokenizer(folder).vocab_size


FAULTS = {
    "missing": ('"x": "', '"y": "', "'y' is not in"),
    "unlisted": (',\n  "x": "pytorch_model-00001-of-00002.bin"', "", "1 tensors are in the files"),
    "outside": ("-00002-of-00002.bin", "../x.bin", "plain name of a .bin file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_index_is_held_to_its_files(fault: str, tmp_path: Path) -> None:
    tensors = {name: encode(np.ones(4), "f32") for name in ("a", "b", "c")}
    folder = torch_folder(tmp_path, '{"model_type": "opt"}', tensors, {"x": "a"})
    assert set(open_checkpoint(folder).tensors) == {"a", "b", "c", "x"}
    index, (old, new, said) = folder / "pytorch_model.bin.index.json", FAULTS[fault]
    listed = json.loads(index.read_text())["weight_map"]
    order = {name: listed[name] for name in ("a", "b", "c", "x")}
    text = json.dumps({"weight_map": order}, indent=1)
    assert old in text
    index.write_text(text.replace(old, new))
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(folder)


def test_every_fault_of_a_file_is_found(tmp_path: Path) -> None:
    one = storage("FloatStorage", "0", 4)
    items = {"a": tensor(one, (4,)), "b": tensor(one, (8,)), "c": b"K\x05"}
    path = tmp_path / "m.bin"
    path.write_bytes(archive(state(items), {"0": bytes(16)}))
    first, second = find_header_faults(path)
    assert "tensor 'b'" in first and "'c' is of type int" in second


def test_fingerprints_distinguish_files(tmp_path: Path) -> None:
    """Same size, another value; and the same bytes in another place have the same one."""
    found = []
    for name, value in (("a", 0.0), ("b", 0.0), ("c", 1.0)):
        x = np.full((4, 4), value, np.float32)
        folder = write_folder(tmp_path / name, {"model_type": "llama"}, {})
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(
            torch_bytes({"x": ("f32", x.shape, x.tobytes())})
        )
        found.append(open_checkpoint(folder).fingerprint)
    assert found[0] == found[1] != found[2]


def mapped() -> int:
    """Bytes of files' pages that this process holds."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssFile:")[2].split()[0]) * 1024


def test_reading_holds_no_more_than_a_part(tmp_path: Path) -> None:
    """64 MiB of one storage, read a MiB at a time: pages are given back."""
    shape = (64 * 256, 1024)
    folder = write_folder(tmp_path, {"model_type": "llama"}, {})
    (folder / "model.safetensors").unlink()
    raw = np.arange(64 * 256, dtype=np.float32).repeat(1024).tobytes()
    (folder / "pytorch_model.bin").write_bytes(torch_bytes({"x": ("f32", shape, raw)}))
    checkpoint = open_checkpoint(folder)
    before, most = mapped(), 0
    for start in range(0, shape[0], 256):
        part = checkpoint.read("x", start, start + 256)
        assert part[7, 9] == start + 7  # type: ignore[index]
        most = max(most, mapped() - before)
    assert most < 8 * MIB
    checkpoint.close()
