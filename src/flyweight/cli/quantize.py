"""`flyweight quantize MODEL [OUT]`: makes a quantised model of a full one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.quantization import QuantizedModel
    from flyweight.quantize.job import Report
    from flyweight.quantize.make import PreparedJob

Out = Annotated[
    str | None,
    typer.Argument(
        metavar="OUT",
        help="Folder or .gguf file to write.  [default: the model's name with what was made]",
        show_default=False,
    ),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file, or org/name.")]
Method = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Method: rtn, gptq, awq, smoothquant, nf4, hqq, int8-dynamic (or int8-w8a8), "
        "int8-static, binary.  [default: rtn; gptq under a budget]",
        show_default=False,
    ),
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
        metavar="NAME",
        help="File format: gptq, awq, compressed-tensors, bitsandbytes, hqq or gguf.  "
        "[default: by OUT and the method]",
    ),
]
Type = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Types of a GGUF file, in llama-quantize's names.  [default: Q4_K_M, or by --bits]",
    ),
]
Symmetric = Annotated[
    bool | None,
    typer.Option(
        "--sym/--asym", help="Quantise around zero, or with zero points.  [default: the method's]"
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
        help="Precision by layer, such as 0-23=int8,24-29=fp16,lm_head=fp32; of a GGUF file also "
        "its types, such as 0-1=q6_k,2-29=q4_0.",
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Calibration text, or JSON lines of texts or chat messages.  "
        "[default: Python's help texts]",
    ),
]
Imatrix = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Importance matrix of `flyweight imatrix` or llama-imatrix, in place of a calibration "
        "(gguf).",
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
TargetSize = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Max size of a GGUF file, such as 2.2GB; chooses the type of each matrix.",
    ),
]
MaxKld = Annotated[
    float | None,
    typer.Option(
        metavar="NATS",
        help="Max mean KLD (nats) on the calibration text; chooses the smallest types for it.",
    ),
]
EvalText = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Text to measure the quality on.  [default: that of `eval ppl`]",
    ),
]
EvalTokens = Annotated[
    int,
    typer.Option(
        metavar="N", help="Tokens to measure the quality on; 0: write no quality passport."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print what the job needs, and stop.  Measurements for a budget are kept.",
    ),
]


@expand
def quantize(
    *,
    model: Model,
    out: Out = None,
    method: Method = None,
    bits: Bits = None,
    group_size: GroupSize = None,
    type: Type = None,
    format: Format = None,
    symmetric: Symmetric = None,
    act_order: ActOrder = False,
    damping: Damping = 0.01,
    alpha: Alpha = None,
    layer_precision: LayerPrecisionText = None,
    calibration: Calibration = None,
    imatrix: Imatrix = None,
    samples: Samples = 128,
    length: Length = 512,
    config: Config = None,
    target_size: TargetSize = None,
    max_kld: MaxKld = None,
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
    from flyweight.quantization import Evaluation, merge_config, prepare_model, run_prepared
    from flyweight.quantize.naming import name_output
    from flyweight.quantize.options import QuantizeOptions
    from flyweight.validation.untrusted import read_json

    given: dict[str, Any] = {
        "method": method, "bits": bits, "group_size": group_size, "format": format,
        "symmetric": symmetric, "act_order": act_order, "damping": damping,
    }  # fmt: skip
    merged = merge_config(given, read_json(Path(config).expanduser()) if config else {})
    options = QuantizeOptions(
        **merged,
        layer_precision=layer_precision,
        alpha=alpha,
        type=type,
        imatrix=imatrix,
        target_size=parse_size(target_size),
        max_kld=max_kld,
        samples=samples,
        length=length,
        requantize=requantize,
    )
    out = name_output(model, options) if out is None else out
    with show_job(not as_json) as (listener, report):
        usual = {k: v for k, v in engine.items() if k not in ("revision", "offline")}
        evaluation = Evaluation(eval_text, eval_tokens, usual)
        prepared = prepare_model(model, out, options, calibration, engine, listener, report)
        evaluation.check(prepared.job.found)
        if not as_json:
            print_needs(prepared, out)
        if dry_run:
            if as_json:
                print(json.dumps(make_document(prepared, out)))
            return
        path = Path(out).expanduser()
        done = run_prepared(prepared, path, evaluation, report, lambda: listener)
    show_done(prepared, done, out, as_json)


def show_done(prepared: PreparedJob, done: QuantizedModel, out: str, as_json: bool) -> None:
    """What was written, how good it is, and how to serve it."""
    if as_json:
        more: dict[str, Any] = {
            "seconds": round(done.seconds, 3),
            "quality": done.passport.list_fields() if done.passport else None,
            "why": done.problem,
            "notes": list(done.notes),
        }
        print(json.dumps(make_document(prepared, out) | more))
        return
    for note in done.notes:
        print(f"Note:      {note}")
    print(f"Written:   {out} in {done.seconds:.1f} s")
    print(f"Quality:   {done.passport.describe() if done.passport else done.problem}")
    print(f"Serve:     {shlex.join(['flyweight', 'serve', out])}")


def parse_size(text: str | None) -> int | None:
    """Bytes of a size.  Raises `ConfigError`."""
    from flyweight.config import parse_bytes

    return None if text is None else parse_bytes(text, 0, "target_size")


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


def print_needs(prepared: PreparedJob, out: str) -> None:
    from flyweight.plan.memory import format_size
    from flyweight.validation.untrusted import printable

    job, needs = prepared.job, prepared.needs
    count = len(job.assignment.modules)
    kinds = ", ".join(sorted({str(p) for p in job.assignment.modules.values()}))
    print(f"Matrices:  {count} to {kinds} by {job.options.method}")
    for module, why in job.assignment.kept.items():
        print(f"Kept:      {printable(module)}: it {why}")
    print(f"Output:    {printable(out)}, {format_size(needs.disk)}, {job.layout.name}")
    print(f"Memory:    {format_size(needs.peak)} at the peak")
    if job.windows is not None:
        windows, length = job.windows.shape
        print(f"Calibration: {windows} windows of {length} tokens")


def make_document(prepared: PreparedJob, out: str) -> dict[str, Any]:
    job, needs = prepared.job, prepared.needs
    return {
        "out": out,
        "method": job.options.method,
        "format": job.layout.name,
        "modules": {name: str(p) for name, p in job.assignment.modules.items()},
        "kept": job.assignment.kept,
        "bytes": needs.disk,
        "memory": needs.memory,
    }
