"""Real weights: the public greedy texts of stories260K and stories3M, and their published losses.

Needs FLYWEIGHT_DATA.  Figures are those of the corpora's own SOURCE.md files.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import decoder, logits

from flyweight.llm import LLM
from flyweight.ops.cpu import CpuOps
from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.types import SamplingParams
from flyweight.weights.checkpoint import open_checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))
from convert import to_folder, to_gguf

Data = Callable[[str], Path]
CONTEXT = 512
STORY_260K = """\
Once upon a time, there was a little girl named Lily. She loved to play outside in the \
park. One day, she saw a big, red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. \
She said, "I want to play with your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what \
to do."
Lily didn't want to help her mom, so she"""
IDS_3M = [
    4016, 383, 286, 261, 376, 445, 395, 317, 4010, 338, 435, 267, 337, 590, 322,
    265, 2236, 4010, 385, 328, 4016, 358, 425, 267, 265, 524, 335, 311, 357, 4010,
    342, 394, 261, 370, 539, 335, 850, 373, 1380, 4010, 317, 436, 267, 896, 265,
    539, 4016, 398, 311, 357,
]  # fmt: skip
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def stories260k(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("260k") / "folder"
    to_folder(data("stories260k/stories260K.bin"), data("stories260k/tok512.bin"), out)
    return out


@pytest.fixture(scope="module")
def stories3m(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("3m") / "folder"
    to_folder(data("stories3m/stories3M-q80.bin"), data("stories3m/tok4096.bin"), out)
    return out


@pytest.fixture(scope="module")
def stories3m_q8(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("3m") / "q8.gguf"
    to_gguf(data("stories3m/stories3M-q80.bin"), data("stories3m/tok4096.bin"), out, kind="q8_0")
    return out


@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_260k_writes_its_200_public_tokens_from_gguf(data: Data, kv: str) -> None:
    """The metadata says 128 tokens; 512 are allowed on request, with a warning."""
    reported = Warnings()
    path = str(data("stories260k/stories260K-f32.gguf"))
    llm = LLM(path, max_model_len=CONTEXT, activations="f32", kv_cache_dtype=kv, notify=reported)
    out = llm.generate("", SamplingParams(max_tokens=200, **GREEDY), use_tqdm=False)[0]
    assert out.prompt_token_ids == [1]
    assert out.outputs[0].text.encode() == STORY_260K.encode()
    assert len(out.outputs[0].token_ids) == 200
    assert (
        len(reported.warnings) == 1
        and "128" in reported.warnings[0]
        and "512" in reported.warnings[0]
    )


def test_260k_writes_them_from_safetensors(stories260k: Path) -> None:
    llm = LLM(str(stories260k), activations="f32")
    out = llm.generate([[1]], SamplingParams(max_tokens=200, **GREEDY), use_tqdm=False)[0]
    assert out.outputs[0].text.encode() == STORY_260K.encode()


def test_3m_writes_its_50_reference_ids(stories3m: Path) -> None:
    llm = LLM(str(stories3m), activations="f32")
    out = llm.generate("Once upon a time", SamplingParams(max_tokens=50, **GREEDY), use_tqdm=False)[
        0
    ]
    assert out.prompt_token_ids == [1, 403, 407, 261, 378]
    assert out.outputs[0].token_ids == IDS_3M


def test_3m_ends_its_story(stories3m: Path) -> None:
    """BOS ends a story, as the reference program has it."""
    llm = LLM(str(stories3m), activations="f32")
    params = SamplingParams(temperature=0, max_tokens=400, stop_token_ids=(1,))
    out = llm.generate([[1]], params, use_tqdm=False)[0]
    assert len(out.outputs[0].token_ids) == 172  # the last is BOS itself
    assert out.outputs[0].text.endswith('"I\'m glad you had fun, Lily."')


def test_losses_with_float_activations(
    stories260k: Path, stories3m: Path, stories: list[str]
) -> None:
    """To three digits: 1.624 per token over 4,601, and 1.993 over 2,323."""
    for path, loss, count in ((stories260k, 1.624, 4601), (stories3m, 1.993, 2323)):
        rows = predictions(path, stories, "f32")
        assert rows.count == count
        assert abs(rows.loss - loss) < 5e-4


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16"])
def test_int8_activations_stay_close(stories3m_q8: Path, stories: list[str], kv: str) -> None:
    """With bf16 K and V attention multiplies in bf16 too."""
    exact = predictions(stories3m_q8, stories, "f32")
    rounded = predictions(stories3m_q8, stories, "int8", kv)
    assert abs(rounded.loss - 1.993) <= 0.005 + 5e-4
    assert abs(rounded.loss - exact.loss) <= 0.005
    divergence = (np.exp(exact.logprobs) * (exact.logprobs - rounded.logprobs)).sum(axis=1)
    assert 0 < divergence.mean() <= 0.002
    agreement = (exact.logprobs.argmax(axis=1) == rounded.logprobs.argmax(axis=1)).mean()
    assert agreement >= 0.97


class Predictions:
    """Log-probabilities [rows, V] of every scored position of the stories."""

    def __init__(self, logprobs: np.ndarray, targets: np.ndarray) -> None:
        self.logprobs, self.count = logprobs, len(targets)
        self.loss = float(-logprobs[np.arange(len(targets)), targets].mean())


def predictions(path: Path, stories: list[str], activations: str, kv: str = "f32") -> Predictions:
    model = decoder(path, CpuOps(2, None, activations))
    tokenizer = tokenizer_of(path)
    found, targets = [], []
    for story in stories:
        tokens = np.array(tokenizer.encode(story, add_special=True)[:CONTEXT])
        assert tokens[0] == 1
        z = logits(model, tokens[:-1], np.arange(len(tokens) - 1), kv).astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        found.append(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))
        targets.append(tokens[1:])
    return Predictions(np.concatenate(found), np.concatenate(targets))


def tokenizer_of(path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(path).tokenizer_source)


@pytest.fixture(scope="module")
def stories(data: Data) -> list[str]:
    text = data("text-tinystories/tinystories-excerpt.txt").read_text()
    return [s.strip() for s in text.split("<|endoftext|>") if s.strip()][:12]


class Warnings:
    """A `Notify` that keeps warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def show_plan(self, plan: object, spec: object) -> None: ...
    def report_progress(self, done: int, total: int) -> None: ...
    def note(self, message: str) -> None: ...

    def warn(self, message: str) -> None:
        self.warnings.append(message)
