"""`flyweight quantize MODEL OUT`: makes a quantised model of a full one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.config import Settings
from flyweight.errors import ConfigError, FlyweightError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.passport import Passport
    from flyweight.quantize.calibration import CalibrationText
    from flyweight.quantize.job import Report
    from flyweight.quantize.make import PreparedJob

Out = Annotated[str, typer.Argument(metavar="OUT", help="Folder or .gguf file to write.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file, or org/name.")]
Method = Annotated[
    str, typer.Option(metavar="NAME", help="Method: rtn (rounding to nearest) or gptq.")
]
Bits = Annotated[
    int | None,
    typer.Option(metavar="N", help="Bits of a weight: 2, 3, 4 or 8.  [default: the method's]"),
]
GroupSize = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Columns that share a scale; -1: the whole row.  [default: the method's]",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="File format: gptq, compressed-tensors.  [default: the method's]"
    ),
]
Symmetric = Annotated[
    bool | None,
    typer.Option(
        "--sym/--asym", help="Grids around zero, or with zero points.  [default: the method's]"
    ),
]
ActOrder = Annotated[
    bool, typer.Option("--act-order", help="Quantise columns with large inputs first (gptq).")
]
Damping = Annotated[
    float,
    typer.Option(metavar="SHARE", help="Share of the mean added to the Hessian's diagonal (gptq)."),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Share of outliers that moves into weights (smoothquant, int8-static).  "
        "[default: the method's]",
    ),
]
LayerPrecisionText = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Precision by layer, such as 0-23=int8,24-29=fp16,lm_head=fp32.",
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Calibration text, or JSON lines of texts or chat messages.  "
        "[default: Python's own help]",
    ),
]
Samples = Annotated[int, typer.Option(metavar="N", help="Number of calibration windows.")]
Length = Annotated[int, typer.Option(metavar="TOKENS", help="Tokens in a calibration window.")]
Config = Annotated[
    str | None, typer.Option(metavar="FILE", help="Options as JSON, in other tools' spellings too.")
]
Requantize = Annotated[
    bool, typer.Option("--requantize", help="Accept a model that is quantised already.")
]
EvalText = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Text to measure the quality on.  [default: that of `eval ppl`]",
    ),
]
EvalTokens = Annotated[
    int, typer.Option(metavar="N", help="Tokens to measure the quality on; 0: no passport.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what the job needs, and stop.")]


@expand
def quantize(
    *,
    model: Model,
    out: Out,
    method: Method = "rtn",
    bits: Bits = None,
    group_size: GroupSize = None,
    format: Format = None,
    symmetric: Symmetric = None,
    act_order: ActOrder = False,
    damping: Damping = 0.01,
    alpha: Alpha = None,
    layer_precision: LayerPrecisionText = None,
    calibration: Calibration = None,
    samples: Samples = 128,
    length: Length = 512,
    config: Config = None,
    requantize: Requantize = False,
    eval_text: EvalText = None,
    eval_tokens: EvalTokens = 10_000,
    dry_run: DryRun = False,
    engine: Annotated[
        Values, opt.select_settings("threads", "revision", "offline", "memory_limit")
    ],
    as_json: opt.AsJson = False,
) -> None:
    """Make a quantised model, layer by layer from disk.

    A job that was stopped continues where it was when the same command is given again.
    """
    from flyweight.plan.machine import read_machine
    from flyweight.quantize.make import make_backends, prepare_job
    from flyweight.quantize.options import QuantizeOptions

    given: dict[str, Any] = {
        "method": method, "bits": bits, "group_size": group_size, "format": format,
        "symmetric": symmetric, "act_order": act_order, "damping": damping,
    }  # fmt: skip
    options = QuantizeOptions(
        **merge_config(given, config),
        layer_precision=layer_precision,
        alpha=alpha,
        samples=samples,
        length=length,
        requantize=requantize,
    )
    target = check_out(out)
    settings = Settings.of(model=model, **engine)
    with show_job(not as_json) as (listener, report):
        text = read_calibration(calibration) if options.needs else None
        prepared = prepare_job(settings, options, text, listener)
        if not as_json:
            print_needs(prepared, target)
        began = time.monotonic()
        if not dry_run:
            backends = make_backends(settings, prepared.job.found, read_machine().cores)
            prepared.job.run(target, backends, report)
        seconds = time.monotonic() - began
        passport, why = None, "not measured"
        if not dry_run and eval_tokens:
            passport, why = stamp_quality(
                prepared, target, (eval_text, eval_tokens), engine, listener
            )
    if as_json:
        fields = passport.list_fields() if passport else None
        document = make_document(prepared, target, seconds)
        print(json.dumps(document | {"quality": fields, "why": "" if passport else why}))
    elif not dry_run:
        print(f"Written:   {target} in {seconds:.1f} s")
        print(f"Quality:   {passport.describe() if passport else why}")


def stamp_quality(
    prepared: PreparedJob,
    target: Path,
    text: tuple[str | None, int],
    engine: Values,
    listener: Any,
) -> tuple[Passport | None, str]:
    """Measures the quality of what was written and adds it as a passport; else says why not."""
    from flyweight.eval.passports import MakingWords, PassportPlan, measure_passport
    from flyweight.eval.windows import EvalText, WindowPlan
    from flyweight.weights.passports import write_passport

    job, full = prepared.job, str(prepared.job.found.checkpoint.path)
    context = min(512, job.found.spec.context)
    kind = job.found.checkpoint.quantisation or job.found.checkpoint.format
    words = MakingWords(
        method=job.options.method,
        bits=None,
        recipe=", ".join(sorted({str(p) for p in job.assignment.modules.values()})),
        requantized_from=kind if job.options.requantize else "",
        command=f"flyweight quantize ... --method {job.options.method}",
    )
    usual = {k: v for k, v in engine.items() if k not in ("revision", "offline")}
    try:
        plan = PassportPlan(EvalText.read(text[0]), WindowPlan(context, None, text[1]), usual)
        passport = measure_passport(str(target), full, plan, words, listener)
    except FlyweightError as error:
        command = f"flyweight eval stamp {target} --against {full}"
        return None, f"not measured: {error}; measure it with: {command}"
    write_passport(target, passport)
    return passport, ""


def merge_config(given: dict[str, Any], config: str | None) -> dict[str, Any]:
    """The options with those of a file, which must not contradict them."""
    from flyweight.quantize.options import read_config
    from flyweight.validation.untrusted import read_json

    if config is None:
        return given
    usual = {"method": "rtn", "act_order": False, "damping": 0.01}
    for name, value in read_config(read_json(Path(config).expanduser())).items():
        if given[name] not in (usual.get(name), value):
            raise ConfigError(f"contradicts {name} = {value} of {config}", name, value=given[name])
        given[name] = value
    return given


def check_out(out: str) -> Path:
    """The path to write; raises `ConfigError` where there is something."""
    path = Path(out).expanduser()
    if path.exists():
        raise ConfigError("exists already; remove it, or give another name", "out", value=out)
    if not path.parent.is_dir():
        raise ConfigError("has no folder to be in", "out", value=out)
    return path


def read_calibration(given: str | None) -> CalibrationText:
    """The file, else Python's help.  Raises `ConfigError`."""
    from flyweight.quantize.calibration import CalibrationText
    from flyweight.text.sample_text import CALIBRATION, read_sample

    if given is not None:
        return CalibrationText.read(Path(given).expanduser())
    name, text = read_sample(CALIBRATION)
    return CalibrationText.of(name, [text])


@contextmanager
def show_job(wanted: bool) -> Iterator[tuple[Any, Report]]:
    """What a person sees: a bar with the time left on stderr."""
    from flyweight.bench.kernels import RunListener
    from flyweight.cli.bench.progress import show_measuring

    if not wanted:
        yield RunListener(), lambda stage, done, total: None
        return
    with show_measuring() as listener:
        yield listener, listener.round


def print_needs(prepared: PreparedJob, target: Path) -> None:
    from flyweight.plan.memory import format_size
    from flyweight.validation.untrusted import printable

    job, needs = prepared.job, prepared.needs
    count = len(job.assignment.modules)
    kinds = ", ".join(sorted({str(p) for p in job.assignment.modules.values()}))
    print(f"Matrices:  {count} to {kinds} by {job.options.method}")
    for module, why in job.assignment.kept.items():
        print(f"Kept:      {printable(module)}: it {why}")
    print(f"Output:    {printable(str(target))}, {format_size(needs.disk)}, {job.layout.name}")
    print(f"Memory:    {format_size(needs.peak)} at the peak")
    if job.windows is not None:
        windows, length = job.windows.shape
        print(f"Calibration: {windows} windows of {length} tokens")


def make_document(prepared: PreparedJob, target: Path, seconds: float) -> dict[str, Any]:
    job, needs = prepared.job, prepared.needs
    return {
        "out": str(target),
        "method": job.options.method,
        "format": job.layout.name,
        "modules": {name: str(p) for name, p in job.assignment.modules.items()},
        "kept": job.assignment.kept,
        "bytes": needs.disk,
        "memory": needs.memory,
        "seconds": round(seconds, 3),
    }
