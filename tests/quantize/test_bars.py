"""What quantisation of both real models costs on held-out stories, against the bars.

The usual suite has those of methods on the model of the package, with a short calibration; `long`
tests have all bars on both models.  Texts, calibration and arithmetic are fixed.
"""

import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from full_models import write_stories, write_stories3m
from held_out import PriceTest, split_stories

pytestmark = pytest.mark.skipif("FLYWEIGHT_DATA" not in os.environ, reason="needs the data folder")
SHORT: dict[str, Any] = {"samples": 12, "length": 256}
INT8 = 0.003  # the most that eight bits may cost, in nats a token
HALF = 0.5  # the most that GPTQ in four bits may cost, as a share of rounding
FEEDBACK = 0.9  # the most that GPTQ in types of GGUF may cost, as a share of plain rounding
MIXED = 0.8  # the most that mixed types may cost, as a share of one type for all


def make_test(name: str, out: Path, tokens: int) -> PriceTest:
    data = Path(os.environ["FLYWEIGHT_DATA"])
    write = write_stories if name == "stories" else lambda to: write_stories3m(to, data)
    return PriceTest(write(out / name), *split_stories(data, out), out, tokens)


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> PriceTest:
    return make_test("stories", tmp_path_factory.mktemp("bars"), 2000)


@pytest.fixture(scope="module", params=["stories", "stories3m"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PriceTest:
    return make_test(request.param, tmp_path_factory.mktemp("bars"), 10_000)


def price(model: PriceTest, method: str, bits: int, **options: Any) -> float:
    shape = {"group_size": 64, "symmetric": True, "format": "gptq"} if bits < 8 else {}
    name = f"{method}-{bits}-{'-'.join(map(str, options.values()))}"
    return model.measure(model.quantize(name, method=method, bits=bits, **shape | options))


@pytest.mark.parametrize("method", ["int8-dynamic", "int8-static"])
def test_eight_bits(stories: PriceTest, method: str) -> None:
    assert price(stories, method, 8, **SHORT) <= INT8


@pytest.mark.parametrize("bits", [4, 3])
def test_calibrated_methods_beat_rounding(stories: PriceTest, bits: int) -> None:
    """In the same container, with the same grids."""
    rounded = price(stories, "rtn", bits, **SHORT)
    assert price(stories, "gptq", bits, **SHORT) <= HALF * rounded
    assert price(stories, "awq", bits, **SHORT) < rounded


@pytest.mark.long
@pytest.mark.parametrize("method", ["int8-dynamic", "int8-static"])
def test_eight_bits_of_both(either: PriceTest, method: str) -> None:
    assert price(either, method, 8, samples=64) <= INT8


@pytest.mark.long
@pytest.mark.parametrize(("bits", "symmetric"), [*product([4, 3], [True, False])])
def test_calibrated_methods_beat_rounding_of_both(
    either: PriceTest, bits: int, symmetric: bool
) -> None:
    same = {"symmetric": symmetric, "samples": 64}
    rounded = price(either, "rtn", bits, **same)
    gptq = price(either, "gptq", bits, **same)
    assert gptq < rounded and price(either, "awq", bits, **same) < rounded
    assert bits != 4 or gptq <= HALF * rounded


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Q4_0", "IQ4_NL", "Q5_0", "Q5_1"])
def test_mixed_types_beat_one_type(either: PriceTest, kind: str) -> None:
    """That of one type is rounded without error feedback, with the same calibration's importance
    of columns.
    """
    uniform = either.quantize_uniformly(kind, samples=32)
    size = uniform.stat().st_size
    mixed = either.quantize(f"mixed-{kind}.gguf", target_size=size, samples=32)
    assert mixed.stat().st_size <= size
    assert either.measure(mixed) <= MIXED * either.measure(uniform)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1"])
def test_error_feedback_beats_rounding(stories: PriceTest, kind: str) -> None:
    """In the same types of GGUF, with the same calibration."""
    rounded = stories.quantize(f"rtn-{kind}.gguf", method="rtn", type=kind, **SHORT)
    swept = stories.quantize(f"gptq-{kind}.gguf", method="gptq", type=kind, **SHORT)
    assert stories.measure(swept) < FEEDBACK * stories.measure(rounded)


@pytest.mark.long
def test_mixed_types_beat_the_usual_recipe(either: PriceTest) -> None:
    recipe = either.quantize("recipe.gguf", type="Q4_K_M", samples=32)
    size = recipe.stat().st_size
    mixed = either.quantize("mixed-recipe.gguf", target_size=size, samples=32)
    assert mixed.stat().st_size <= size
    assert either.measure(mixed) < either.measure(recipe)
