"""Every family equals transformers on tiny random checkpoints, and every feature that sets it apart
is felt.

The expected logits and greedy tokens were written by make_fixtures.py; nothing here needs torch.
"""

from dataclasses import replace

import numpy as np
import pytest
from harness import MODELS, decoder, logits
from random_models import answers, engine, request

from flyweight.errors import CheckpointError
from flyweight.ops.base import Ops

TOLERANCE = 1e-3
NAMES = sorted(p.name for p in MODELS.iterdir())


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_logits(name: str, backend: Ops) -> None:
    expected = np.load(MODELS / name / "expected.npz")
    got = logits(decoder(MODELS / name, backend), expected["prompt"], expected["rows"])
    error = got - expected["logits"]
    assert expected["logits"].std() >= 2
    assert np.abs(error).max() <= TOLERANCE
    assert np.square(error).sum() / np.square(expected["logits"]).sum() <= 1e-6


def test_prompt_logprobs(name: str, native: Ops) -> None:
    """Through the engine, in chunks, at the rows transformers' logits are known of."""
    expected = np.load(MODELS / name / "expected.npz")
    prompt, model = expected["prompt"].tolist(), decoder(MODELS / name, native)
    asked = request("a", prompt, 1, prompt_logprobs=5)
    found = answers(engine(model, "f32"), [asked])["a", 0].prompt
    compared = 0
    for row, theirs in zip(expected["rows"].tolist(), expected["logits"], strict=True):
        if row + 1 < len(prompt):
            exact = theirs.astype(np.float64)
            want = exact - np.logaddexp.reduce(exact)
            assert found[row].chosen == pytest.approx(want[prompt[row + 1]], abs=2 * TOLERANCE)
            assert found[row].top == pytest.approx(sorted(want)[:-6:-1], abs=2 * TOLERANCE)
            compared += 1
    assert compared > 3


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_chunks_do_not_change_a_bit(name: str, backend: Ops, chunk: int) -> None:
    if chunk == 1 and name not in ("llama3", "qwen3"):
        pytest.skip("one token at a time is slow; two families prove it")
    expected = np.load(MODELS / name / "expected.npz")
    model = decoder(MODELS / name, backend)
    whole = logits(model, expected["prompt"], expected["rows"])
    parts = logits(model, expected["prompt"], expected["rows"], chunk=chunk)
    assert (whole == parts).all()


FEATURES = {
    "llama3 rope": (
        "llama3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        None,
    ),
    "llama3 thresholds": (
        "llama3",
        {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0}},
        None,
    ),
    "rope base": (
        "llama3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        None,
    ),
    "linear rope": (
        "llama-linear",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        None,
    ),
    "qwen3 rope base": ("qwen3", {"rope_theta": 10000.0, "rope_parameters": None}, None),
    "qk norm": (
        "qwen3",
        {},
        lambda s: replace(s, layers=tuple(replace(x, qk_norm="") for x in s.layers)),
    ),
    "activation": ("llama1", {"hidden_act": "gelu"}, None),
    "norm epsilon": ("llama1", {"rms_norm_eps": 1.0}, None),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_switching_a_feature_off_is_felt(feature: str, native: Ops) -> None:
    name, config, change = FEATURES[feature]
    expected = np.load(MODELS / name / "expected.npz")
    got = logits(
        decoder(MODELS / name, native, config, change), expected["prompt"], expected["rows"]
    )
    assert np.abs(got - expected["logits"]).max() > 100 * TOLERANCE


BIASED = {
    "llama-bias": ("qkv", "out", "up", "down"),
    "qwen2": ("qkv",),
    "qwen3-bias": ("qkv", "out"),
}


@pytest.mark.parametrize(
    ("name", "which"), [(name, which) for name, parts in BIASED.items() for which in parts]
)
def test_every_bias_is_felt(name: str, which: str, native: Ops) -> None:
    expected = np.load(MODELS / name / "expected.npz")
    model = decoder(MODELS / name, native)
    layers = tuple(replace(x, **{which: Unbiased(getattr(x, which))}) for x in model.layers)
    model.layers, model.ops = layers, _Unbiasing(native)  # type: ignore[assignment]
    got = logits(model, expected["prompt"], expected["rows"])
    assert np.abs(got - expected["logits"]).max() > 100 * TOLERANCE


def test_a_window_as_wide_as_the_context_is_none(native: Ops) -> None:
    expected = np.load(MODELS / "mistral" / "expected.npz")
    model = decoder(MODELS / "mistral", native, {"sliding_window": 512})
    got = logits(model, expected["prompt"], expected["rows"])
    assert np.abs(got - expected["logits"]).max() <= TOLERANCE
    with pytest.raises(CheckpointError, match="sliding_window = 64 is not supported"):
        decoder(MODELS / "mistral", native, {"sliding_window": 64})


class Unbiased:
    """Marks a weight whose bias is to be taken off again."""

    def __init__(self, weight: object) -> None:
        self.weight = weight


class _Unbiasing:
    """The backend, but for marked weights: subtracts what an all-zero input gives, which is the
    bias.
    """

    def __init__(self, ops: Ops) -> None:
        self.ops = ops

    def __getattr__(self, name: str) -> object:
        return getattr(self.ops, name)

    def linear(self, x: np.ndarray, w: object) -> np.ndarray:
        if not isinstance(w, Unbiased):
            return self.ops.linear(x, w)  # type: ignore[arg-type]
        out = self.ops.linear(x, w.weight)  # type: ignore[arg-type]
        return out - self.ops.linear(np.zeros_like(x[:1]), w.weight)  # type: ignore[arg-type]
