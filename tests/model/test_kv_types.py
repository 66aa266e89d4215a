"""What each type of K/V cache costs in quality: distributions next to a float32 cache at the
longest context, and a model built by hand that copies from 8k back.

Figures are loose; docs/kv-and-scheduling.md has what was measured:

    PYTHONPATH=src:tests:tests/model python tests/model/test_kv_types.py
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import decoder, logits
from induction import make_model, make_needles

from flyweight.config import find_data_folder
from flyweight.ops.cpu import CpuOps
from flyweight.spec import KV_TYPES
from flyweight.text.tokenizer import load_tokenizer
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.wire import F64

sys.path.insert(0, str(Path(__file__).parents[1]))
from convert import to_folder

Data = Callable[[str], Path]
BUNDLED = Path(__file__).parents[2] / "src" / "flyweight" / "assets" / "stories.gguf"
CONTEXT = 512
# Mean divergence and how often the most likely token stays, at most and at least.
LOOSE = {
    "bf16": (0.001, 0.97), "int8": (0.003, 0.97), "fp8_e4m3": (0.02, 0.93),
    "fp8_e5m2": (0.06, 0.87), "int4": (0.15, 0.8),
}  # fmt: skip


def make_texts(path: Path, stories: str, count: int) -> list[list[int]]:
    """Texts of CONTEXT tokens: stories one after the other."""
    tokenizer = load_tokenizer(open_checkpoint(path).tokenizer_source)
    found: list[list[int]] = []
    text: list[int] = []
    for story in stories.split("<|endoftext|>"):
        text += tokenizer.encode(story.strip(), add_special=True)
        if len(text) >= CONTEXT:
            found.append(text[:CONTEXT])
            text = []
    return found[:count]


def predict(path: Path, texts: list[list[int]], kv: str) -> F64:
    """Log-probabilities [rows, V], with float32 activations."""
    model, found = decoder(path, CpuOps(2, None, "f32"), length=CONTEXT), []
    for text in texts:
        z = logits(model, np.array(text), np.arange(len(text)), kv).astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        found.append(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))
    return np.concatenate(found)


def compare(exact: F64, other: F64) -> tuple[float, float]:
    """Mean KL divergence, and how often the most likely token is the same."""
    divergence = (np.exp(exact) * (exact - other)).sum(axis=1).mean()
    return float(divergence), float((exact.argmax(axis=1) == other.argmax(axis=1)).mean())


@pytest.fixture(scope="module")
def stories3m(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("3m") / "folder"
    to_folder(data("stories3m/stories3M-q80.bin"), data("stories3m/tok4096.bin"), out)
    return out


@pytest.mark.parametrize("bundled", [False, True])
def test_distributions_stay_close(stories3m: Path, data: Data, bundled: bool) -> None:
    path = BUNDLED if bundled else stories3m
    texts = make_texts(path, data("text-tinystories/tinystories-excerpt.txt").read_text(), 2)
    exact, found = predict(path, texts, "f32"), {}
    for kv, (divergence, same) in LOOSE.items():
        found[kv] = compare(exact, predict(path, texts, kv))
        assert found[kv][0] <= divergence and found[kv][1] >= same, (kv, found[kv])
    assert found["int8"][0] < found["fp8_e4m3"][0] < found["fp8_e5m2"][0]
    assert found["int8"][0] < found["int4"][0]


@pytest.mark.parametrize("kv", list(KV_TYPES))
def test_needles_are_found_8k_back(kv: str) -> None:
    assert find_needles(kv, 12) == 1.0


def test_fine_differences_of_position_need_8_bits() -> None:
    """Scores of neighbours that differ by one part in forty."""
    assert find_needles("int8", 32) == find_needles("fp8_e4m3", 32) == 1.0
    assert 0.3 < find_needles("int4", 32) < 1.0


def find_needles(kv: str, pairs: int) -> float:
    """The share of 64 needles in 8192 tokens that are found, by a model that distinguishes
    positions by so many pairs of rope.
    """
    model = make_model(CpuOps(2, None, "f32"), pairs)
    tokens, rows, reported = make_needles(64, 8192)
    found = logits(model, tokens, rows, kv, chunk=512).argmax(axis=1)
    return float((found == reported).mean())


def main() -> None:
    """Prints the tables of the docs."""
    data = find_data_folder()
    assert data is not None, "set FLYWEIGHT_DATA"
    stories = (data / "text-tinystories/tinystories-excerpt.txt").read_text()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "3m"
        to_folder(data / "stories3m/stories3M-q80.bin", data / "stories3m/tok4096.bin", out)
        for path in (out, BUNDLED):
            texts = make_texts(path, stories, 8)
            exact = predict(path, texts, "f32")
            for kv in KV_TYPES:
                divergence, same = compare(exact, predict(path, texts, kv))
                print(f"{path.name} {len(exact)} {kv:9} {divergence:.6f} {same:.2%}")
    for kv in KV_TYPES:
        print(f"needles {kv:9} {find_needles(kv, 12):.0%} {find_needles(kv, 32):.0%}")


if __name__ == "__main__":
    main()
