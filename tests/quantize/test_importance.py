"""Importance matrices: measured as llama-imatrix does, and used in place of a calibration."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from jobs import prepare, run_job

from flyweight import CheckpointError, ConfigError
from flyweight.cli.main import main
from flyweight.config import Settings
from flyweight.describe import describe
from flyweight.quantization import measure_imatrix
from flyweight.quantize.calibration import CalibrationText
from flyweight.quantize.ggml.imatrix import read_imatrix, write_imatrix
from flyweight.quantize.importance import measure_importance
from flyweight.quantize.make import make_floats
from flyweight.quantize.options import QuantizeOptions

WRITTEN = Path(__file__).parents[1] / "data" / "llama_cpp" / "stories260k.imatrix.gguf"
LENGTH = 128


def test_measured_as_llama_imatrix_does(data: Callable[[str], Path]) -> None:
    """The same four windows of the same text, each with the beginning token in place of its first:
    the sums agree except for llama.cpp's K/V in float16.
    """
    found = describe(data("stories260k/stories260K-f32.gguf"))
    text = data("text-tinystories/tinystories-excerpt.txt").read_text(encoding="utf-8")
    encode, begin = found.tokenizer.encode, found.tokenizer.bos_id
    assert begin is not None
    tokens = [begin, *encode(text[:20_000], add_special=False, parse_special=False)]
    windows = np.array(tokens[: 4 * LENGTH], np.int32).reshape(4, LENGTH)
    windows[:, 0] = begin
    ops = make_floats(Settings.of(model=str(found.checkpoint.path), threads=1), found)
    ours = measure_importance(found, windows, ops, lambda stage, done, total: None)
    theirs = read_imatrix(WRITTEN)
    assert set(ours.matrices) == set(theirs.matrices)
    for name, matrix in theirs.matrices.items():
        assert np.array_equal(ours.matrices[name].counts, matrix.counts)
        assert np.allclose(ours.matrices[name].sums, matrix.sums, rtol=2e-3), name


@pytest.mark.parametrize("suffix", ["gguf", "dat"])
def test_a_file_in_place_of_a_calibration(
    full: Path, words: CalibrationText, tmp_path: Path, suffix: str
) -> None:
    """The inputs of the first layer are the same, so its bytes are."""
    text = tmp_path / "words.txt"
    text.write_text("".join(map(str, words.texts)), encoding="utf-8")
    path = tmp_path / f"importance.{suffix}"
    write_imatrix(path, measure_imatrix(str(full), text, (4, 64), {"threads": 1}))
    files = [
        run_job(prepare(full, words, type="Q4_0", **more), tmp_path / f"{i}.gguf")
        for i, more in enumerate(({"imatrix": str(path)}, {"weighed": True}, {"weighed": False}))
    ]
    named, calibrated, plain = ({t.name: t for t in gguf.GGUFReader(f).tensors} for f in files)
    for part in ("attn_q", "attn_output", "ffn_up", "ffn_down"):
        name = f"blk.0.{part}.weight"
        assert np.array_equal(named[name].data, calibrated[name].data), name
        assert not np.array_equal(named[name].data, plain[name].data), name


@pytest.mark.usefixtures("short_text")
def test_the_command_writes_what_quantize_reads(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "i.gguf", tmp_path / "q4.gguf"
    small = ["--samples", "2", "--length", "64", "--threads", "1"]
    assert main(["imatrix", str(full), str(path), *small, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["tensors"], said["windows"], said["length"]) == (7 * layers(full), 2, 64)
    assert main(["imatrix", str(full), str(path), *small]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["imatrix", str(full), str(tmp_path / "none" / "i.gguf"), *small]) == 2
    assert "has no folder to be in" in capsys.readouterr().err
    assert main([
        "quantize", str(full), str(out), "--type", "Q4_0", "--imatrix", str(path),
        "--eval-tokens", "500", "--threads", "1",
    ]) == 0  # fmt: skip
    assert "KLD" in capsys.readouterr().out
    field = gguf.GGUFReader(out).get_field("flyweight.passport")
    assert field is not None and "--imatrix i.gguf" in field.contents()


def test_another_models_file_is_refused(full: Path, words: CalibrationText, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q\.weight is another model's"):
        prepare(full, words, type="Q4_0", imatrix=str(write_short(tmp_path)))
    with pytest.raises(ConfigError, match="imatrix = 'x'"):
        QuantizeOptions(method="gptq", imatrix="x")
    with pytest.raises(ConfigError, match="imatrix = 'x'"):
        QuantizeOptions(target_size=1 << 20, imatrix="x")


def layers(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["num_hidden_layers"])


def write_short(folder: Path) -> Path:
    found = read_imatrix(WRITTEN)
    path = folder / "short.gguf"
    cut = {
        name: type(matrix)(matrix.sums[:, :60], matrix.counts)
        for name, matrix in found.matrices.items()
    }
    write_imatrix(path, type(found)(cut))
    return path
