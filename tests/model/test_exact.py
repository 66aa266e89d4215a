"""Float32 logits against float64 ones: our rms error is no larger than that of torch's float32."""

import math
from pathlib import Path

import numpy as np
import pytest
from exact_models import EVERY, MODELS, make, prompt
from harness import decoder, logits

from flyweight.models.rope import compute_inverse_frequencies
from flyweight.ops.cpu import CpuOps
from flyweight.spec import RopeSpec

EXACT = Path(__file__).parents[1] / "data" / "exact"


@pytest.mark.parametrize("name", MODELS)
def test_as_near_to_float64_as_torch(name: str, tmp_path: Path) -> None:
    want, tokens = np.load(EXACT / f"{name}.npz"), prompt(name)
    model = decoder(make(name, tmp_path), CpuOps(2, None, "f32"), length=1024)
    got = logits(model, tokens, np.arange(0, len(tokens), EVERY))
    rms = float(np.sqrt(np.square(got - want["logits"]).mean()))
    assert rms <= float(want["scores"]), f"{rms:.2e}, torch's {want['scores']:.2e}"


@pytest.mark.parametrize(("base", "dim"), [(10000.0, 64), (500000.0, 128), (1e6, 128)])
def test_frequencies_are_rounded_powers(base: float, dim: int) -> None:
    """An ulp of a frequency is as many of an angle as there are positions before it."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    powers = np.array([math.pow(base, float(e)) for e in exponents], np.float32)
    got = compute_inverse_frequencies(RopeSpec(dim, base), 100)
    assert (got == np.float32(1) / powers).all()
