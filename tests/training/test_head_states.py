"""States collected for texts are those of each text by itself; folders are read as written."""

from pathlib import Path

import numpy as np
import pytest

from flyweight import LLM
from flyweight.draft.headfolder import HeadFolder
from flyweight.training.folder import write_heads
from flyweight.training.states import collect_states


def test_company_changes_no_state() -> None:
    llm = LLM(max_model_len=64, max_num_batched_tokens=96)
    rng, done = np.random.default_rng(0), 0
    texts = [rng.integers(1, 2048, int(n)).tolist() for n in (3, 64, 33, 90, 1, 40, 40)]

    def note(count: int) -> None:
        nonlocal done
        done += count

    together = list(collect_states(llm.loaded, texts, (0, -1), note))
    assert done == 3 + 64 + 33 + 64 + 1 + 40 + 40  # the longest is cut
    for text, found in zip(texts, together, strict=True):
        assert found.tokens.tolist() == text[:64]
        (alone,) = collect_states(llm.loaded, [text], (0, -1))
        for tap in (0, -1):
            assert found.states[tap].shape == (len(found.tokens), 192)
            assert found.states[tap].dtype == np.float16
            assert np.array_equal(found.states[tap], alone.states[tap])


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_a_folder_is_read_as_written(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(1)
    w, b = rng.normal(size=(8, 16)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    w[3] = 0
    write_heads(tmp_path / "h", {"hidden_size": 16}, {"x.weight": w, "x.bias": b}, dtype)
    folder = HeadFolder(tmp_path / "h")
    assert folder.config["hidden_size"] == 16
    found = folder.read("x.weight").astype(np.uint32) << 16
    step = np.abs(w).max(1, keepdims=True) / 127
    most = step / 2 + np.abs(w) / 256 if dtype == "int8" else np.abs(w) / 256
    assert (np.abs(found.view(np.float32) - w) <= most).all()
    assert np.array_equal(folder.read_vector("x.bias"), b)
    assert [path.name for path in tmp_path.iterdir()] == ["h"]
