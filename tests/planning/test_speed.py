"""Predicted speed: ceilings by values worked out by hand, and partial models of families."""

from pathlib import Path

import numpy as np
import pytest

from flyweight.config import Settings
from flyweight.describe import SilentListener, describe, find
from flyweight.errors import ConfigError
from flyweight.ops.cpu import CpuOps
from flyweight.plan.machine import Machine
from flyweight.plan.roofline import MachineLimits, StepShape, make_shape
from flyweight.planning import partial
from flyweight.planning.calibration import check_positions
from flyweight.planning.loop_cost import LoopCost, measure_loop
from flyweight.planning.outline import ModelOutline, outline_model
from flyweight.planning.partial import ModelShape, PartialModel
from flyweight.planning.predict import list_checks, list_steps
from flyweight.planning.speed import (
    SpeedQuestion,
    answer,
    make_decode,
    make_nominal_shape,
    make_planned_shape,
    time_prompt,
)
from flyweight.planning.speed_report import CheckedSpeed, make_check_table, report_speed

MODELS = Path(__file__).parents[1] / "data" / "models"
QUANTIZED = MODELS.with_name("models-quantized")
LIMITS = MachineLimits(read=1e12, int8=4e14, bf16=2e14, f32=1e14)


def outline(model: str | Path) -> ModelOutline:
    return outline_model(Settings.of(model=str(model)), SilentListener())


def make_partial(model: str | Path) -> PartialModel:
    found, ops = outline(model), CpuOps(1)
    return PartialModel(ModelShape(found.spec, found.plan, found.kinds), ops, ops.kv_dtype)


def test_seventy_billion_weights_of_16_bits_are_140_gb_a_token() -> None:
    shape = make_nominal_shape(70e9, 16)
    asked = SpeedQuestion(prompt=512, batches=(1, 400))
    prompt, one, many = answer(asked, shape, LIMITS, None)
    assert one.nbytes == 140e9
    assert one.least == 0.14 and one.binds == "memory"  # 140 GB at 1,000 GB/s: 7.1 tokens/s
    assert one.operations == 2 * 70e9
    assert many.compute == pytest.approx(2 * 70e9 * 400 / 2e14)  # bf16
    assert many.least == pytest.approx(0.28) and many.binds == "compute"
    assert prompt.least == pytest.approx(2 * 70e9 * 512 / 2e14)
    assert (one.seconds, one.share) == (None, None)


@pytest.mark.parametrize("bits, unit", [(4, "int8"), (8, "int8"), (16, "bf16"), (32, "f32")])
def test_units_by_bits(bits: float, unit: str) -> None:
    [(matrix, _)] = make_nominal_shape(1e9, bits).matrices
    assert (matrix.unit, matrix.nbytes) == (unit, 1e9 * bits / 8)


def test_a_prompt_is_computed_in_chunks() -> None:
    assert SpeedQuestion(prompt=1000, chunk=512).list_chunks() == [
        StepShape(((512, 512),), 0, 512),
        StepShape(((488, 1000),), 1, 1000),
    ]
    assert SpeedQuestion(prompt=512, chunk=512).list_chunks() == [StepShape(((512, 512),), 1, 512)]


def test_a_long_prompt_is_timed_at_its_ends() -> None:
    """Exact where time grows linearly with the context."""
    asked: list[StepShape] = []

    def timer(seen: StepShape) -> float:
        asked.append(seen)
        [(count, context)] = seen.chunks
        return count * 0.01 + context * 0.001

    chunks = SpeedQuestion(prompt=5000, chunk=512).list_chunks()
    total = sum(count * 0.01 + context * 0.001 for step in chunks for count, context in step.chunks)
    assert time_prompt(chunks, timer) == pytest.approx(total)
    assert len(asked) == 3


@pytest.mark.parametrize("model", ["stories", "gemma2", "qwen3-moe", "deepseek-v2-lite", "gpt2"])
def test_planned_shape_is_that_of_the_file(model: str) -> None:
    path = "stories" if model == "stories" else MODELS / model
    found, ops = outline(path), CpuOps(1)
    planned = make_planned_shape(found.spec, found.kinds, "int8", "bf16", ops.count_packed_bytes)
    checkpoint = outline_checkpoint(path)
    steps = [make_decode(3, 40), StepShape(((20, 20),), 1, 20)]
    for step in steps:
        mine = sum(op.nbytes for op in planned.list_ops(step))
        file = sum(op.nbytes for op in checkpoint.list_ops(step))
        assert mine == pytest.approx(file)
        work = [sum(op.operations for op in one.list_ops(step)) for one in (planned, checkpoint)]
        assert work[0] == pytest.approx(work[1])


def outline_checkpoint(path: str | Path):
    from flyweight.text.absent import load_any_tokenizer

    found = describe(find(Settings.of(model=str(path))), read_tokenizer=load_any_tokenizer)
    return make_shape(found.checkpoint, found.plan, found.spec, "int8", "bf16")


FAMILIES = ["gpt2", "gemma2", "gemma3", "olmo2", "phi3", "cohere", "opt", "stablelm", "starcoder2"]


@pytest.mark.parametrize("name", FAMILIES)
def test_partial_models_of_families_compute_numbers(name: str) -> None:
    model = make_partial(MODELS / name)
    step = StepShape(((5, 5), (1, 40)), 2, 45)
    assert model.measure(step) > 0
    decoder = model._make_decoder(model.layers)
    batch = model._make_batch(step)
    rows = np.array([0, 4, 5], np.int32)
    logits = decoder.compute_logits(decoder.compute_hidden(batch, model._kv, rows))
    assert logits.shape == (3, model.rows) and np.isfinite(logits).all()


@pytest.mark.parametrize("folder", sorted(p.name for p in QUANTIZED.iterdir() if p.is_dir()))
def test_partial_models_of_quantised_files_compute_numbers(folder: str) -> None:
    model = outline(QUANTIZED / folder)
    if any(layer.moe for layer in model.spec.layers):
        with pytest.raises(ConfigError, match="mixture of experts"):
            make_partial(QUANTIZED / folder)
        return
    assert make_partial(QUANTIZED / folder).measure(make_decode(2, 33)) > 0


def test_a_mixture_of_experts_is_refused() -> None:
    with pytest.raises(ConfigError, match="mixture of experts"):
        make_partial(MODELS / "qwen3-moe")


def test_a_part_is_scaled_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of six layers, at a second a pass, take three seconds; half a head takes two."""
    layer = 320 * 192 + 192 * 192 + 1024 * 192 + 192 * 512
    head = 2048 * 192
    monkeypatch.setattr(partial, "WEIGHT_BYTES", int(2.2 * layer * 34 / 32) + 4 * 2 * 192 * 2)
    monkeypatch.setattr(partial, "repeat", lambda run: 1.0)
    model = make_partial("stories")
    assert model.layers == 2
    assert model.rows == 2048, "the head has its own room"
    assert model.measure(make_decode(1, 64)) == pytest.approx(6 / 2 + 1)
    assert model.measure(StepShape(((64, 64),), 0, 64)) == pytest.approx(6 / 2)
    monkeypatch.setattr(partial, "WEIGHT_BYTES", int(head * 34 / 32) // 2)
    half = make_partial("stories")
    assert half.rows == 1024
    assert half.measure_layers(make_decode(1, 64)) > 0
    assert half.measure_head(1) == pytest.approx(2048 / half.rows)


def test_contexts_beyond_the_room_are_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that take a second and a millionth for each position."""
    model = make_partial("stories")
    monkeypatch.setattr(model, "_time_layers", lambda seen: 1 + 1e-6 * seen.distinct)
    monkeypatch.setattr(model, "measure_head", lambda rows: 0.0)
    wanted = make_decode(64, 2 * model.positions)
    assert model.measure(wanted) == pytest.approx(1 + 1e-6 * wanted.distinct, rel=1e-3)


@pytest.mark.parametrize(
    "step",
    [
        make_decode(40_000, 64),
        StepShape(((100_000, 100_000),), 1, 100_000),
        StepShape(((1000, 900_000), (1, 40)), 2, 900_040),
    ],
)
def test_steps_beyond_the_room_are_timed_in_part(
    monkeypatch: pytest.MonkeyPatch, step: StepShape
) -> None:
    """Layers that take a millionth of a second a token, and what they are asked fits."""
    monkeypatch.setattr(partial, "KV_BYTES", 4 << 20)
    model = make_partial("stories")

    def time_layers(seen: StepShape) -> float:
        assert model._count_positions(seen) <= model.positions
        return 1e-6 * seen.tokens

    monkeypatch.setattr(model, "_time_layers", time_layers)
    assert model.measure_layers(step) == pytest.approx(1e-6 * step.tokens)


def test_what_does_not_fit_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Machine(1, 1 << 30, 1 << 20)
    monkeypatch.setattr(partial, "read_machine", lambda: small)
    with pytest.raises(ConfigError, match="too large to be timed in parts"):
        make_partial("stories")


def test_learned_positions_are_a_limit() -> None:
    model = outline(MODELS / "gpt2")
    check_positions(model, context=model.spec.positions)
    with pytest.raises(ConfigError, match=rf"nearest valid: {model.spec.positions}"):
        check_positions(model, context=model.spec.positions + 1)
    check_positions(outline("stories"), context=100_000)


def test_the_loop_costs_a_constant_and_a_term_for_each_sequence() -> None:
    assert LoopCost(1.0, 0.5).compute_seconds(4) == 3.0
    found = measure_loop()
    assert found.step >= 0 and found.sequence >= 0 and found.compute_seconds(1) > 0


def test_checks_are_three_shapes_within_the_context() -> None:
    prompt, one, many = list_checks(512)
    assert prompt.prompt == 510 and one.seqs == 1 and many.seqs == 8
    assert list_steps(prompt, 256)[-1] == StepShape(((254, 510),), 1, 510)
    assert list_steps(many, 512) == [make_decode(8, 32 + 16)]


def test_reports_hold_rates_and_ratios() -> None:
    shape = make_nominal_shape(1e9, 8)
    rows = answer(SpeedQuestion(batches=(1, 2)), shape, LIMITS, lambda seen: 0.01)
    report = report_speed("model", rows, LIMITS, ())
    speed, latency = report.tables
    assert [row["share"] for row in speed.list_records()][1:] == [0.1, 0.1]
    assert speed.list_records()[2]["expected_tokens_per_second"] == pytest.approx(200)
    assert [row["what"] for row in latency.list_records()] == ["TTFT, 512 tokens", "ITL", "ITL"]
    assert report.plot is not None and len(report.plot.series) == 2
    checked = CheckedSpeed.of("tg32", 1.0, [(2.0, 1.0), (3.0, 2.0), (4.0, 4.0)])
    [row] = make_check_table([checked]).list_records()
    assert (row["predicted_seconds"], row["measured_seconds"], row["ratio"]) == (3.0, 2.0, 1.5)
