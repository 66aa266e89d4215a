"""`plan roofline`: puts limits, shapes and a partial model together, and checks what they predict.

Invariant: limits are those of the moment, or published ones of a device that names its source; a
prediction that cannot be made is left out, and a note says why.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import PurePath

from flyweight.backends import choose_backend
from flyweight.bench.kernels import UNTIMED
from flyweight.bench.limits import LimitSampler
from flyweight.bench.ours import BenchEngineOptions, OwnEngine
from flyweight.bench.workloads import BATCH_PROMPT, Workload
from flyweight.config import Settings
from flyweight.describe import LoadListener
from flyweight.errors import ConfigError
from flyweight.ops.cpu import CpuOps
from flyweight.plan.machine import read_machine
from flyweight.plan.roofline import MachineLimits, StepShape, sum_work
from flyweight.planning.calibration import LocalEngine, calibrate, check_positions, require_files
from flyweight.planning.devices import Device, find_device, read_devices
from flyweight.planning.outline import (
    KINDS_BY_BITS,
    ModelOutline,
    assume_bits,
    outline_model,
)
from flyweight.planning.quantities import parse_bits, parse_params, write_gb, write_params
from flyweight.planning.report import Report
from flyweight.planning.speed import (
    SpeedQuestion,
    Timer,
    answer,
    make_decode,
    make_nominal_shape,
    make_planned_shape,
    time_prompt,
)
from flyweight.planning.speed_report import CheckedSpeed, make_check_table, report_speed

TERA, GIGA = 1e12, 1e9
ROUNDS, CHECK_GEN = 5, 32
CACHED = 32 << 20  # bytes of weights that may stay in caches


def outline_with_bits(settings: Settings, bits: str | None, tell: LoadListener) -> ModelOutline:
    """A model's outline, with matrices of other bits where they are given.  Raises
    `FlyweightError`.
    """
    outline = outline_model(settings, tell)
    if bits is None:
        return outline
    width = parse_bits(bits)
    if width not in KINDS_BY_BITS:
        near = min(KINDS_BY_BITS, key=lambda known: abs(known - width))
        known = ", ".join(f"{one:g}" for one in KINDS_BY_BITS)
        raise ConfigError(
            "has no type of matrices", "bits", value=bits, allowed=known,
            hint=f"nearest valid: {near:g}",
        )  # fmt: skip
    basis = f"{outline.basis}, matrices in {KINDS_BY_BITS[width]}"
    return replace(outline, kinds=assume_bits(outline, width), basis=basis)


def predict_here(
    outline: ModelOutline, settings: Settings, asked: SpeedQuestion, *, check: bool
) -> Report:
    """On this machine, with limits measured now."""
    if check:
        require_files(outline, "check")
    check_positions(outline, prompt_tokens=asked.prompt, context=asked.context)
    engine = LocalEngine.of(settings, outline)
    sampler = engine.make_sampler()
    before = sampler.sample()
    fitted = calibrate(outline, engine)
    rows = answer(asked, engine.shape, before.vector, fitted.timer)
    limits = before.average(sampler.sample()).vector
    rows = [replace(new, seconds=old.seconds) for new, old in zip(
        answer(asked, engine.shape, limits, None), rows, strict=True
    )]  # fmt: skip
    notes = [
        f"{outline.name}, from {outline.basis}; {engine.ops.threads} threads ({engine.ops.isa}), "
        f"K/V in {engine.kv_dtype}. Limits are from a micro-benchmark just before and after.",
        fitted.note,
    ]
    if engine.weight_bytes < CACHED:
        notes.append(
            "The weights may stay in the processor's caches, which are faster than memory: "
            "more than the ceiling may be reached."
        )
    report = report_speed(shorten_name(outline), rows, limits, notes)
    if not check:
        return report
    if fitted.timer is None:
        raise ConfigError("check needs a prediction, and this model has a ceiling only")
    checks = check_speed(settings, engine, fitted.timer)
    return replace(report, tables=[*report.tables, make_check_table(checks)])


def predict_device(
    outline: ModelOutline, settings: Settings, asked: SpeedQuestion, name: str
) -> Report:
    """At best on a device, whose limits are published."""
    device = find_device(name, read_devices())
    ops = choose_backend(settings, 1)
    assert isinstance(ops, CpuOps), "the CPU backend"
    kv_dtype = "bf16" if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype
    shape = make_planned_shape(
        outline.spec, outline.kinds, "bf16", kv_dtype, ops.count_packed_bytes
    )
    limits = read_limits(device)
    notes = (
        f"{outline.name}, from {outline.basis}; products in bf16, K/V in {kv_dtype}.",
        describe_device(device),
    )
    rows = answer(asked, shape, limits, None)
    known = [row for row in rows if not row.prompt or limits.bf16 < inf]
    return report_speed(shorten_name(outline), known, limits, notes)


def predict_params(params: str, bits: str, asked: SpeedQuestion, name: str | None) -> Report:
    """At best for so many weights alone, on a device or here."""
    count, width = parse_params(params), parse_bits(bits)
    shape = make_nominal_shape(count, width)
    if name is not None:
        device = find_device(name, read_devices())
        limits, source = read_limits(device), describe_device(device)
        if width < 16:  # what units multiply on is the kernel's choice; bf16 is the usual one
            limits = replace(limits, int8=limits.bf16)
    else:
        ops = choose_backend(Settings(), read_machine().cores)
        assert isinstance(ops, CpuOps), "the CPU backend"
        limits = LimitSampler(ops.threads, ops.isa, round(count * width / 8)).sample().vector
        source = f"Limits are from a micro-benchmark: {ops.threads} threads ({ops.isa})."
    nbytes = count * width / 8
    title = f"{write_params(count)} parameters of {width:g} bits"
    notes = (
        f"Every token reads all weights: {write_params(count)} × {width:g} bits ÷ 8 = "
        f"{write_gb(nbytes)}, at most {limits.read / nbytes:.3g} tokens a second for one sequence.",
        "Weights alone: attention and K/V come on top; give a MODEL to count them.",
        source,
    )
    return report_speed(title, answer(asked, shape, limits, None), limits, notes)


def shorten_name(outline: ModelOutline) -> str:
    """The last part of a path or of a Hub name."""
    return PurePath(outline.name).name or outline.name


def read_limits(device: Device) -> MachineLimits:
    """Published figures; peaks that are not published never bind."""
    bf16 = device.bf16_tflops * TERA if device.bf16_tflops else inf
    int8 = device.int8_tops * TERA if device.int8_tops else inf
    return MachineLimits(device.bandwidth_gbs * GIGA, int8, bf16, bf16)


def describe_device(device: Device) -> str:
    doubt = f"; not confirmed: {device.unconfirmed}" if device.unconfirmed else ""
    return f"{device.title}: published limits ({device.source}{doubt})."


def check_speed(settings: Settings, engine: LocalEngine, timer: Timer) -> list[CheckedSpeed]:
    """Predicts three tests of `bench kernels` and runs them, in turn, on the whole model."""
    options = BenchEngineOptions(
        threads=settings.threads,
        activations=settings.activations,
        kv_cache_dtype=settings.kv_cache_dtype,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
    tests = list_checks(engine.context)
    own, sampler, found = OwnEngine(str(settings.model), tests, options), engine.make_sampler(), []
    for test in tests:
        steps = list_steps(test, settings.max_num_batched_tokens)
        own.measure(replace(test, gen=min(test.gen, 2)), UNTIMED)
        before, pairs = sampler.sample(), []
        for turn in range(ROUNDS):
            predicted = time_prompt(steps, timer)
            pairs.append((predicted, own.measure(test, turn).seconds / (test.gen or 1)))
        limits = before.average(sampler.sample()).vector
        least = sum_work(engine.shape, steps, limits).seconds
        found.append(CheckedSpeed.of(test.name, least, pairs))
    return found


def list_checks(context: int) -> Sequence[Workload]:
    """A prompt, one sequence and a batch, within the model's context."""
    prompt = max(1, min(512, context - 2))
    return Workload(prompt=prompt), Workload(gen=CHECK_GEN), Workload(gen=CHECK_GEN, seqs=8)


def list_steps(test: Workload, chunk: int) -> list[StepShape]:
    """The steps of a prompt, or one step of a decoding test, in the middle of it."""
    if test.prompt:
        return SpeedQuestion(prompt=test.prompt, chunk=chunk).list_chunks()
    before = BATCH_PROMPT if test.seqs > 1 else 1
    return [make_decode(test.seqs, before + test.gen // 2)]
