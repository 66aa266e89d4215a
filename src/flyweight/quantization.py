"""`quantize_model`: makes a quantised model and measures what it lost.

Invariant: nothing is under the final name until it is whole; a model whose quality could not be
measured is kept, and the reason is returned.  Knows no command line.
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flyweight.config import Settings
from flyweight.describe import ModelDescription, SilentListener, describe, find
from flyweight.errors import ConfigError, FlyweightError
from flyweight.eval.passports import (
    MakingWords,
    PassportPlan,
    describe_making,
    measure_passport,
)
from flyweight.eval.session import EvalListener
from flyweight.eval.windows import EvalText, WindowPlan
from flyweight.passport import Passport
from flyweight.plan.machine import read_machine
from flyweight.quantize.assignment import list_quantised
from flyweight.quantize.calibration import CalibrationText
from flyweight.quantize.ggml.imatrix import ImportanceFile
from flyweight.quantize.importance import measure_importance
from flyweight.quantize.job import Report
from flyweight.quantize.journal import find_work
from flyweight.quantize.make import (
    PreparedJob,
    cut_windows,
    make_backends,
    make_floats,
    prepare_job,
)
from flyweight.quantize.methods import resolve_method
from flyweight.quantize.naming import name_output
from flyweight.quantize.options import QuantizeOptions, read_config
from flyweight.text.sample_text import CALIBRATION, read_sample
from flyweight.weights.hub.names import name_checkpoint
from flyweight.weights.passports import write_passport

CalibrationSource = str | Path | Sequence[str | list[Any]] | None
EVALUATED = 10_000  # tokens
CONTEXT = 512
CHARACTERS = 16  # of a text that are tokenized first for each token that is needed


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How quality is measured: `text` is a file (None: that of `eval ppl`), `tokens` how many are
    scored (0: no passport); `engine` are settings of the engine by name.
    """

    text: str | None = None
    tokens: int = EVALUATED
    engine: Mapping[str, Any] = field(default_factory=dict)

    def check(self, found: ModelDescription) -> None:
        """Raises `ConfigError` where fewer tokens than a window would be scored: it is cheaper to
        know before the model is made.
        """
        if not self.tokens:
            return
        tokenizer, context = found.tokenizer, min(CONTEXT, found.spec.context)
        lead = tokenizer.add_bos and tokenizer.bos_id is not None
        if self.tokens < context - 1:
            raise ConfigError(
                "is less than a window", "eval_tokens", value=self.tokens,
                hint=f"nearest valid: {context - 1}, or 0 for no quality passport",
            )  # fmt: skip
        if self.text is None:  # the usual one is long
            return
        text, least = EvalText.read(self.text).text, context - lead
        for part in (text[: CHARACTERS * context], text):
            count = len(tokenizer.encode(part, add_special=False, parse_special=False))
            if count >= least:
                return
        raise ConfigError(
            f"has {count} tokens; at least {least} are needed", "eval_text", value=self.text,
            hint="give a longer text, or --eval-tokens 0 for no quality passport",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """What was written, in how many seconds; its passport, or why it has none; and what else a user
    should know of the result.
    """

    path: Path
    seconds: float
    passport: Passport | None
    problem: str = ""
    notes: tuple[str, ...] = ()


class SilentEvaluation(SilentListener):
    """Reports nothing."""

    def round(self, test: str, done: int, total: int) -> None: ...


def quantize_model(
    model: str,
    out: str | Path | None = None,
    *,
    quant_config: Mapping[str, Any] | None = None,
    calib_data: CalibrationSource = None,
    evaluation: Evaluation | None = None,
    **options: Any,
) -> QuantizedModel:
    """Makes a quantised model: `model` is a folder, a .gguf file or a name on the Hub, `out` the
    folder or .gguf file to write, by default one in the current folder (`name_output`).

    `options` are the fields of `QuantizeOptions`; `quant_config` is a dict with the keys of
    AutoAWQ or GPTQModel.  `calib_data` is a file of text or JSON lines, or a list of texts and of
    chat messages; None takes Python's help.  Raises `ConfigError` and `CheckpointError`.
    """
    chosen = QuantizeOptions(**merge_config(options, quant_config or {}))
    place = name_output(model, chosen) if out is None else str(out)
    prepared = prepare_model(model, place, chosen, calib_data)
    return run_prepared(prepared, check_out(place), evaluation or Evaluation())


def prepare_model(
    model: str,
    out: str,
    options: QuantizeOptions,
    calibration: CalibrationSource = None,
    engine: Mapping[str, Any] | None = None,
    listener: EvalListener | None = None,
    report: Report | None = None,
) -> PreparedJob:
    """The job and what it needs, before anything is written but measurements of a choice of mixed
    precision, whose progress `report` gets.
    """
    work = find_work(check_out(out))
    if out.endswith(".gguf"):
        if options.format not in (None, "gguf"):
            raise ConfigError(
                f"is a folder, but {out} is named as a file", "format", value=options.format,
                hint="nearest valid: gguf, or a name without .gguf",
            )  # fmt: skip
        options = replace(options, format="gguf")
    if options.container == "gguf" and calibration is not None:
        options = replace(options, weighed=True)
    if calibration is not None and not options.takes_calibration:
        by = "with imatrix" if options.imatrix else f"by method {options.method}"
        raise ConfigError(f"is not used {by}; leave it out", "calibration")
    settings = Settings.of(model=model, **(engine or {}))
    text = read_calibration(calibration) if options.needs else None
    prepared = prepare_job(settings, options, text, listener, report, work)
    return replace(prepared, calibration=name_calibration(calibration))


def measure_imatrix(
    model: str,
    calibration: CalibrationSource = None,
    windows: tuple[int, int] = (128, 512),
    engine: Mapping[str, Any] | None = None,
    listener: EvalListener | None = None,
    report: Report | None = None,
) -> ImportanceFile:
    """The importance matrix of a model, over so many windows of so many tokens.  Raises
    `ConfigError` and `CheckpointError`.
    """
    settings = Settings.of(model=model, **(engine or {}))
    found = describe(find(settings, listener))
    text = read_calibration(calibration)
    options = QuantizeOptions(format="gguf", weighed=True, samples=windows[0], length=windows[1])
    cut = cut_windows(found, options, text)
    assert cut is not None
    ignore: Report = lambda stage, done, total: None  # noqa: E731
    made = measure_importance(found, cut, make_floats(settings, found), report or ignore)
    return replace(made, datasets=(text.name,))


def run_prepared(
    prepared: PreparedJob,
    out: Path,
    evaluation: Evaluation,
    report: Report | None = None,
    make_listener: Callable[[], EvalListener] | None = None,
) -> QuantizedModel:
    """Runs a job and measures the quality of what it wrote.  Raises `ConfigError`, before anything
    is written where that is of the text.
    """
    job = prepared.job
    evaluation.check(job.found)
    full = str(job.found.checkpoint.path)
    settings = Settings.of(model=full, **evaluation.engine)
    began = time.monotonic()
    job.run(
        out,
        make_backends(settings, job.found, read_machine().cores),
        report or (lambda stage, done, total: None),
    )
    seconds = time.monotonic() - began
    if not evaluation.tokens:
        return QuantizedModel(out, seconds, None, "not measured", tuple(job.notes))
    listener = make_listener() if make_listener else SilentEvaluation()
    try:
        passport = measure_quality(prepared, out, evaluation, listener)
        write_passport(out, passport)
    except FlyweightError as error:
        command = f"flyweight eval stamp {out} --against {full}"
        why = f"not measured: {error}; measure it with: {command}"
        return QuantizedModel(out, seconds, None, why, tuple(job.notes))
    return QuantizedModel(out, seconds, passport, "", tuple(job.notes))


def measure_quality(
    prepared: PreparedJob, out: Path, evaluation: Evaluation, listener: EvalListener
) -> Passport:
    """The passport of what was written, against the job's input."""
    job = prepared.job
    checkpoint = job.found.checkpoint
    source = describe_making(job.found)
    made = describe(out)
    made.checkpoint.close()
    files = describe_making(made)
    words = MakingWords(
        method=job.options.method,
        file_format=files.file_format,
        bits=files.bits,
        recipe=", ".join(sorted({str(p) for p in job.assignment.modules.values()})),
        requantized_from=f"{source.method or source.file_format} ({source.recipe})"
        if list_quantised(checkpoint, job.found.plan)
        else "",
        command=spell_command(prepared, out, evaluation),
    )
    context = min(CONTEXT, job.found.spec.context)
    plan = PassportPlan(
        EvalText.read(evaluation.text),
        WindowPlan(context, None, evaluation.tokens),
        evaluation.engine,
    )
    return measure_passport(str(out), str(checkpoint.path), plan, words, listener)


def spell_command(prepared: PreparedJob, out: Path, evaluation: Evaluation) -> str:
    """The command that makes and measures the same, without the folders of files: they are private
    where the model is published.
    """
    source = name_checkpoint(prepared.job.found.checkpoint.path)
    words = ["flyweight", "quantize", source, out.name, *prepared.job.options.list_words()]
    if prepared.calibration:
        words += ["--calibration", prepared.calibration]
    if evaluation.text:
        words += ["--eval-text", Path(evaluation.text).name]
    if evaluation.tokens != EVALUATED:
        words += ["--eval-tokens", str(evaluation.tokens)]
    return shlex.join(words)


def merge_config(options: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The options with those of a dict of another tool, which must not contradict them."""
    found = {name: value for name, value in options.items() if value is not None}
    if "method" in found:
        found["method"] = resolve_method(found["method"])
    usual = QuantizeOptions()
    for name, value in (read_config(config) if config else {}).items():
        given = found.get(name)
        default = None if name == "method" else getattr(usual, name)  # "rtn" is given, if it is
        if given not in (None, default, value):
            raise ConfigError(f"contradicts {name} = {value} of the config; leave out one", name,
                              value=given)  # fmt: skip
        found[name] = value
    return found


def check_out(out: str) -> Path:
    """The path to write; raises `ConfigError` where there is something."""
    path = Path(out).expanduser()
    if path.exists():
        raise ConfigError("exists already; remove it, or give another name", "out", value=out)
    if not path.parent.is_dir():
        raise ConfigError("has no folder to be in", "out", value=out)
    return path


def name_calibration(given: CalibrationSource) -> str:
    """As in a command: a file without its folder, FILE for texts, "" for the default."""
    if given is None:
        return ""
    return Path(given).name if isinstance(given, str | Path) else "FILE"


def read_calibration(given: CalibrationSource) -> CalibrationText:
    """A file, texts, or Python's help.  Raises `ConfigError`."""
    if given is None:
        name, text = read_sample(CALIBRATION)
        return CalibrationText.of(name, [text])
    if isinstance(given, str | Path):
        return CalibrationText.read(Path(given).expanduser())
    return CalibrationText.of(f"{len(given)} texts", given)
