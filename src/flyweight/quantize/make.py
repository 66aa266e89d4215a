"""Sets up a job of `flyweight quantize`: finds the model, reads the calibration, assigns tensors,
and says what the job will need before it starts.

Invariant: nothing is written here and no weight is read, but for a choice under a budget.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import Any

from flyweight.backends import choose_backend
from flyweight.config import Settings
from flyweight.describe import LoadListener, ModelDescription, SilentListener, describe, find
from flyweight.errors import ConfigError
from flyweight.ops.base import Ops
from flyweight.ops.cpu.calibration import CalibrationKernels
from flyweight.plan.machine import read_machine
from flyweight.quantize.assignment import (
    Assigner,
    LayerChoice,
    find_common_columns,
    list_quantised,
    make_uniform,
)
from flyweight.quantize.calibration import CalibrationText, Reading
from flyweight.quantize.estimate import JobNeeds, estimate
from flyweight.quantize.ggml.recipes import find_recipe
from flyweight.quantize.gguf_job import list_layer_types, make_target
from flyweight.quantize.importance import ColumnImportance
from flyweight.quantize.job import Backends, QuantizeJob, Report
from flyweight.quantize.layer_types import LayerTypes
from flyweight.quantize.mixed import ChoiceTools, MixedBudget, choose_mixed
from flyweight.quantize.options import LEAST_GROUP, QuantizeOptions
from flyweight.quantize.output.awq import AwqLayout
from flyweight.quantize.output.bitsandbytes import BitsandbytesLayout
from flyweight.quantize.output.compressed import CompressedLayout
from flyweight.quantize.output.gptq import GptqLayout
from flyweight.quantize.output.hqq import HqqLayout
from flyweight.quantize.output.layout import MatrixLayout
from flyweight.quantize.output.target import FolderTarget
from flyweight.quantize.precision import LayerPrecision
from flyweight.text.chat import choose, render
from flyweight.wire import I32

LAYOUTS: dict[str, Callable[[QuantizeOptions], MatrixLayout]] = {
    "gptq": lambda options: GptqLayout(order=options.act_order),
    "compressed-tensors": lambda options: CompressedLayout(),
    "awq": lambda options: AwqLayout(),
    "bitsandbytes": lambda options: BitsandbytesLayout(),
    "hqq": lambda options: HqqLayout(),
}


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job and what it needs; `calibration` names the file that was given for it, if any."""

    job: QuantizeJob
    needs: JobNeeds
    calibration: str = ""


def prepare_job(
    settings: Settings,
    options: QuantizeOptions,
    calibration: CalibrationText | None,
    listener: LoadListener | None = None,
    report: Report | None = None,
    work: Path | None = None,
) -> PreparedJob:
    """`report` gets the progress of choosing a mixed precision, whose measurements are kept in the
    folder `work`.  Raises `ConfigError` and `CheckpointError`.
    """
    found = describe(find(settings, listener))
    check_input(found, options)
    windows = cut_windows(found, options, calibration)
    if options.container == "gguf":
        tools = ChoiceTools(
            lambda: make_floats(settings, found),
            4 if are_floats(found) else 2,
            report or (lambda stage, done, total: None),
            (listener or SilentListener()).note,
            work,
        )
        return prepare_gguf(found, options, windows, tools)
    options, notes = choose_group(found, options)
    layout = LAYOUTS[options.container](options)
    count = len(found.spec.layers)
    precision = make_uniform(count, options.precision)
    if options.layer_precision:
        precision = LayerPrecision.parse(options.layer_precision, count, options.precision)
    choose = LayerChoice(layout, precision, find_common_columns(found.published))
    assigner = Assigner(found.plan, found.published, found.checkpoint, layout, choose)
    assignment = assigner.assign(precision.layers)
    if not assignment.modules:
        raise ConfigError(
            f"can store no matrix of this model: {next(iter(assignment.kept.values()), 'none')}",
            "format",
            value=layout.name,
        )
    job = QuantizeJob(found, options, FolderTarget(found, assignment, layout), windows)
    job.notes += notes
    return PreparedJob(job, estimate(found, assignment, windows, options.needs))


def choose_group(
    found: ModelDescription, options: QuantizeOptions
) -> tuple[QuantizeOptions, list[str]]:
    """The options, with smaller groups than the method's where no size is given and its own
    does not divide the columns of every matrix; and a note that says so.
    """
    usual, common = options.precision.group, find_common_columns(found.published)
    group = gcd(usual, common & -common)  # a power of two, which other libraries read too
    if options.group_size is not None or usual <= 0 or not common % usual or group < LEAST_GROUP:
        return options, []
    note = f"group_size = {group}, as {usual} does not divide the columns of every matrix"
    return replace(options, group_size=group), [note]


def prepare_gguf(
    found: ModelDescription, options: QuantizeOptions, windows: I32 | None, tools: ChoiceTools
) -> PreparedJob:
    """A job that writes a GGUF file.  Raises `ConfigError`."""
    recipe, types, notes = find_recipe(options.recipe), dict[str, str](), list[str]()
    if options.layer_precision:
        named = LayerTypes.parse(options.layer_precision, len(found.spec.layers))
        if options.type is None and options.bits is None:
            recipe = find_recipe(named.find_recipe())
        types = list_layer_types(found, recipe, named)
    target = make_target(found, recipe, options.knows_importance, types)
    if options.mixed and windows is not None:
        budget = MixedBudget(options.target_size, options.max_kld)
        chosen = choose_mixed(found, target, windows, budget, tools)
        target = make_target(found, recipe, True, chosen.types)
        notes.append(chosen.describe())
    importance = None
    if options.imatrix is not None:
        path = Path(options.imatrix).expanduser()
        importance = ColumnImportance.read(path, target.assignment.rows)
    job = QuantizeJob(found, options, target, windows, importance)
    job.notes += notes
    return PreparedJob(job, estimate(found, target.assignment, windows, options.needs))


def cut_windows(
    found: ModelDescription, options: QuantizeOptions, calibration: CalibrationText | None
) -> I32 | None:
    """The calibration's tokens, for methods that take any."""
    if not options.needs:
        return None
    if calibration is None:
        raise ConfigError("is needed by this method", "calibration", hint="give a text file")
    tokenizer = found.tokenizer
    lead = (tokenizer.bos_id,) if tokenizer.add_bos and tokenizer.bos_id is not None else ()
    length = min(options.length, found.spec.context)
    return calibration.cut(
        make_reading(found),
        lead,
        options.samples,
        length,
    )


def make_reading(found: ModelDescription) -> Reading:
    """How this model reads calibration; special tokens of templates are read as such."""
    tokenizer = found.tokenizer

    def show(messages: list[Any]) -> str:
        template = choose(tokenizer.marks.templates, None, tools=False)
        return render(template, messages, tokenizer, add_generation_prompt=False)

    return Reading(lambda text: tokenizer.encode(text, add_special=False, parse_special=True), show)


def check_input(found: ModelDescription, options: QuantizeOptions) -> None:
    """Raises `ConfigError` for what cannot be the input of a job."""
    quantised = list_quantised(found.checkpoint, found.plan)
    if quantised and not options.requantize:
        kind = found.checkpoint.tensors[quantised[0]].kind
        raise ConfigError(
            f"is quantised already ({quantised[0]} is {kind}); give the model it was made from, "
            "or --requantize",
            "model",
            value=found.checkpoint.path.name,
        )
    folder = isinstance(found.checkpoint.tokenizer_source, Path)
    if not folder and options.container != "gguf":
        raise ConfigError(
            "needs a folder with tokenizer files; the vocabulary of a GGUF file cannot be copied",
            "format",
            value=options.container,
            hint="nearest valid: gguf",
        )


def make_floats(settings: Settings, found: ModelDescription) -> Ops:
    """The backend for weights as they were."""
    floats = "f32" if are_floats(found) else "bf16"
    return choose_backend(replace(settings, activations=floats), read_machine().cores)


def are_floats(found: ModelDescription) -> bool:
    """Whether all tensors are float32."""
    return {info.kind for info in found.checkpoint.tensors.values()} == {"f32"}


def make_backends(settings: Settings, found: ModelDescription, cores: int) -> Backends:
    """Both backends: float32 where the whole model is, else bfloat16, for the weights as they were;
    the usual rounding for quantised ones.
    """
    whole = make_floats(settings, found)
    kernels = CalibrationKernels(settings.threads or cores)
    return Backends(whole, choose_backend(settings, cores), kernels.accumulate)
