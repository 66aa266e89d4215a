"""`eval kld`: the divergence that a page of NumPy has, also from a file that was saved."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain_llama import log_probabilities

from filewriters import Tensor, encode
from flyweight.errors import CheckpointError, ConfigError
from flyweight.eval import divergence
from flyweight.eval.session import EvalSession
from flyweight.eval.store import INDEX, StoreHeader, StoreReader, StoreWriter, normalize
from flyweight.eval.windows import EvalText, WindowPlan
from tiny_model import tiny_folder, tiny_tensors

EXACT = {"activations": "f32", "kv_cache_dtype": "f32", "memory_limit": "8GiB"}
PLAN = WindowPlan(64, 20, 150)
HEADER = StoreHeader("m", "f", "t", "s", 64, 32, 3, "d", 50, "f32", "auto")


def ignore(done: int, total: int) -> None: ...


def rough_tensors() -> dict[str, Tensor]:
    """The tiny model's, with its gates rounded to sixteenths."""
    tensors = tiny_tensors()
    for name, (_, shape, raw) in tensors.items():
        if "gate_proj" in name:
            values = np.frombuffer(raw, np.float32).reshape(shape)
            tensors[name] = encode(np.round(values * 16) / 16, "f32")
    return tensors


def test_equals_numpy(folder: Path, text: EvalText, tmp_path: Path) -> None:
    adds = bool(EvalSession(str(folder), text, PLAN, EXACT).lead)
    rough = tiny_folder(tmp_path / "rough", None, rough_tensors(), add_bos_token=adds)
    full, model = (EvalSession(str(f), text, PLAN, EXACT) for f in (folder, rough))
    divergence.check_vocabularies(model, full)
    path = tmp_path / "full.logits"
    header = divergence.make_header(full, text, PLAN)
    divergence.record(full, header, path, ignore)
    assert list(tmp_path.glob("*.partial")) == []
    reader = StoreReader(path)
    reader.header.check(header, path)
    found = divergence.compare(model, reader, ignore)
    kl, same, nll = [], [], []
    exact, near = tiny_tensors(), rough_tensors()
    for window in model.windows:
        tokens = list(window.tokens)
        p, q = (log_probabilities(t, tokens)[-window.new - 1 : -1] for t in (exact, near))
        kl += (np.exp(p) * (p - q)).sum(-1).tolist()
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
        nll += (-q[range(window.new), tokens[-window.new :]]).tolist()
    assert len(kl) == 150 and np.mean(kl) > 1e-4
    assert found.mean.mean == pytest.approx(np.mean(kl), rel=1e-3)
    assert found.median == pytest.approx(np.median(kl), rel=1e-2)
    assert found.p99 == pytest.approx(np.quantile(kl, 0.99), rel=1e-2)
    assert found.most == pytest.approx(max(kl), rel=1e-2)
    assert found.agreement.mean == np.mean(same) < 1
    assert abs(found.perplexity.nll.mean - np.mean(nll)) < 1e-4


def test_a_model_does_not_diverge_from_itself(folder: Path, text: EvalText, tmp_path: Path) -> None:
    one = EvalSession(str(folder), text, PLAN, {})
    divergence.record(one, divergence.make_header(one, text, PLAN), tmp_path / "x", ignore)
    found = divergence.compare(one, StoreReader(tmp_path / "x"), ignore)
    assert found.most < 1e-5 and found.agreement.mean == 1


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 4, (3, 50)).astype(np.float32)


@pytest.fixture
def saved(logits: np.ndarray, tmp_path: Path) -> Path:
    writer = StoreWriter(tmp_path / "logits", HEADER)
    writer.take(1, logits[1:])  # in any order
    writer.take(0, logits[:1])
    writer.finish()
    return tmp_path / "logits"


def test_rows_come_back(saved: Path, logits: np.ndarray) -> None:
    reader = StoreReader(saved)
    assert reader.header == HEADER
    np.testing.assert_allclose(reader.read(0, 3), normalize(logits), atol=0.02)
    assert np.exp(reader.read(1, 2)).sum(-1) == pytest.approx([1, 1], abs=1e-5)
    assert reader.list_best(0, 3).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fingerprint": "g"}, "is of another model: its fingerprint is f, needed: g"),
        ({"text_sha256": "z"}, "does not match: its text_sha256 is s, needed: z"),
        ({"context": 128}, "its context is 64, needed: 128"),
        ({"stride": 16}, "its stride is 32, needed: 16"),
        ({"activations": "int8"}, "its activations is f32, needed: int8"),
    ],
)
def test_a_file_of_something_else(saved: Path, change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        StoreReader(saved).header.check(replace(HEADER, **change), saved)


def test_damaged_files(saved: Path, tmp_path: Path) -> None:
    whole, bad = saved.read_bytes(), tmp_path / "bad"
    for size in range(0, len(whole), 7):
        bad.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="bad: "):
            StoreReader(bad).read(0, 3)
    rng = np.random.default_rng(1)
    for _ in range(200):
        at = int(rng.integers(len(whole)))
        bad.write_bytes(whole[:at] + bytes([int(rng.integers(256))]) + whole[at + 1 :])
        try:
            assert np.isfinite(StoreReader(bad).read(0, 3)).all()
        except CheckpointError as error:
            assert "bad: " in str(error)
    index = np.frombuffer(whole[-3 * INDEX.itemsize :], INDEX).copy()
    index["offset"][1] = 2**64 - 1
    bad.write_bytes(whole[: -3 * INDEX.itemsize] + index.tobytes())
    with pytest.raises(CheckpointError, match="index is damaged"):
        StoreReader(bad)


def test_files_that_cannot_be_written(tmp_path: Path, logits: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        StoreWriter(tmp_path / "none" / "logits", HEADER)
    with pytest.raises(ConfigError, match="are free; nearest valid: limit_tokens = "):
        StoreWriter(tmp_path / "logits", replace(HEADER, tokens=1 << 36, vocab=1 << 20))


def test_no_other_file_is_replaced(saved: Path, tmp_path: Path) -> None:
    StoreWriter(saved, HEADER).discard()  # an earlier one of the kind may be
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" * 100)
    with pytest.raises(ConfigError, match="exists and is not a file of log-probabilities"):
        StoreWriter(model, HEADER)
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        StoreWriter(tmp_path, HEADER)
    assert model.read_bytes() == b"GGUF" * 100 and list(tmp_path.glob("*.partial")) == []


def test_an_error_while_scoring_leaves_no_file(
    folder: Path, text: EvalText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ConfigError("cannot be written: No space left on device", "save")

    monkeypatch.setattr(StoreWriter, "take", fail)
    full = EvalSession(str(folder), text, PLAN, {})
    with pytest.raises(ConfigError, match="No space left"):
        divergence.record(full, divergence.make_header(full, text, PLAN), tmp_path / "x", ignore)
    assert list(tmp_path.iterdir()) == []
