"""`flyweight eval stamp MODEL --against FULL`: measures a model and writes the figures into it, as
its quality passport.

Invariant: what can be refused is refused before anything is scored; the model's weights stay as
they are.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli import options as opt
from flyweight.cli.eval import Context, KldTokens, Stride, Text, show_progress
from flyweight.cli.parameters import Values, expand
from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.passport import Passport, Quality
from flyweight.spec import read_kv_type

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.describe import ModelDescription
    from flyweight.eval.passports import MakingWords, PassportPlan
    from flyweight.eval.session import EvalListener

Against = Annotated[
    str | None, typer.Option(metavar="FULL", help="The model that MODEL was made from.")
]
Logits = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Read a file that `eval kld --save` wrote, instead of running FULL."
    ),
]
Types = Annotated[
    str,
    typer.Option(metavar="TYPE,...", help="Also measure these types of the K/V cache: int8,int4."),
]
Prompts = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Also check greedy answers to the prompts of a file of JSON lines."
    ),
]
LongContext = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        help="Also score the end of one long window; 0: no.  [default: 8192 with --prompts]",
    ),
]
Engine = Annotated[
    Values, opt.select_settings("memory_limit", "threads", "activations", "revision", "offline")
]


@expand
def stamp(
    *,
    model: opt.Model,
    against: Against = None,
    text: Text = None,
    context: Context = 512,
    stride: Stride = None,
    limit_tokens: KldTokens = 10_000,
    logits: Logits = None,
    kv_cache_types: Types = "",
    prompts: Prompts = None,
    long_context: LongContext = None,
    engine: Engine,
    as_json: opt.AsJson = False,
) -> None:
    """Measure a model and write its quality passport into it.

    Without --against, types of the K/V cache are added to its existing passport.
    """
    from flyweight.eval.answers import PromptFile
    from flyweight.eval.passports import LONGEST, PassportPlan
    from flyweight.eval.windows import EvalText, WindowPlan
    from flyweight.weights.passports import write_passport

    given = [logits, prompts, long_context]
    if against is None and (not kv_cache_types or any(one is not None for one in given)):
        raise ConfigError("is needed: the model that MODEL was made from", "against")
    probe = long_context if long_context is not None else LONGEST if prompts else 0
    plan = PassportPlan(
        EvalText.read(text),
        WindowPlan(context, stride, limit_tokens),
        engine,
        tuple(read_kv_type(kind.strip()) for kind in kv_cache_types.split(",") if kind.strip()),
        probe,
        PromptFile.read(Path(prompts).expanduser()) if prompts else None,
        Path(logits).expanduser() if logits else None,
    )
    with show_progress(not as_json) as tell:
        found = describe_writable(model, engine, tell)
        words = make_command(model, against, plan, text, prompts)
        passport = measure(found, against, plan, words, tell)
        path = write_passport(found.checkpoint.path, passport)
    if as_json:
        print(json.dumps({"path": str(path), **passport.list_fields()}))
        return
    from flyweight.cli.passports import make_quality_table
    from flyweight.cli.show import make_console

    make_console().print(make_quality_table(Quality(passport)))
    print(f"written to {path}")


def describe_writable(model: str, engine: Values, tell: EvalListener) -> ModelDescription:
    """The model, closed.  Raises `ConfigError` where no passport could be written."""
    from flyweight.describe import describe, find
    from flyweight.weights.passports import check_place

    source = {name: engine[name] for name in ("revision", "offline")}
    found = describe(find(Settings.of(model=model, **source), tell))
    found.checkpoint.close()
    check_place(found.checkpoint)
    return found


def measure(
    found: ModelDescription,
    against: str | None,
    plan: PassportPlan,
    command: str,
    tell: EvalListener,
) -> Passport:
    """The new passport; without `against` the old one with more types of the K/V cache."""
    from flyweight.eval.passports import describe_making, measure_kv, measure_passport

    old, path = found.quality.passport, str(found.checkpoint.path)
    kept = dict(old.kv_cache) if old is not None else {}
    if against is not None:
        words: MakingWords = replace(describe_making(found), command=command)
        made = measure_passport(path, against, plan, words, tell)
        return replace(made, kv_cache={**kept, **made.kv_cache})
    if old is None:
        why = found.quality.problem or "this model has no passport to add to"
        raise ConfigError(f"is needed: {why}", "against")
    if old.activations != plan.engine["activations"]:
        raise ConfigError(
            "is not what the passport was measured with",
            "activations",
            value=plan.engine["activations"],
            hint=f"nearest valid: {old.activations}",
        )
    return replace(old, kv_cache={**kept, **measure_kv(path, plan, tell)})


def make_command(
    model: str, against: str | None, plan: PassportPlan, text: str | None, prompts: str | None
) -> str:
    """The command that measures the same, without the folders of files: they are private
    where the model is published.
    """
    options: dict[str, Any] = {
        "against": Path(against).name if against and Path(against).exists() else against,
        "text": plan.text.name if text else None,
        "context": plan.windows.context,
        "stride": plan.windows.stride,
        "limit-tokens": plan.windows.limit,
        "activations": plan.engine["activations"],
        "kv-cache-types": ",".join(plan.kv_types),
        "long-context": plan.long_context,
        "prompts": Path(prompts).name if prompts else None,
    }
    name = Path(model).name if Path(model).exists() else model
    words = ["flyweight", "eval", "stamp", name]
    for option, value in options.items():
        words += [f"--{option}", str(value)] if value else []
    return shlex.join(words)
