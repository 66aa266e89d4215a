"""`flyweight explain MODEL`: a prompt through the model, op by op, against the machine's limits."""

from __future__ import annotations

from typing import Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.reports import ReportOutput

PROMPT = "Once upon a time there was a little girl who"


@expand
def explain(
    *,
    model: opt.Model = "stories",
    prompt: Annotated[
        str, typer.Option("-p", "--prompt", metavar="TEXT", help="Text to take through the model.")
    ] = (PROMPT),
    engine: Annotated[
        Values,
        opt.select_settings(
            "threads",
            "activations",
            "kv_cache_dtype",
            "max_model_len",
            "memory_limit",
            "revision",
            "offline",
        ),
    ],
    out: ReportOutput,
) -> None:
    """Compare each op of a model with the machine's limits.

    Takes a prompt through the model and prints shapes, operations, bytes and arithmetic intensity
    of one prefill step and one decode step, which limit binds each op, its least time and the time
    it took.
    """
    from flyweight.planning.walk_report import report_walkthrough
    from flyweight.planning.walkthrough import walk

    out.show(report_walkthrough(walk(model, prompt, engine)))
