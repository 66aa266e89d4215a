"""`flyweight advise [MODEL]`: the founding documents' advice, checked against this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.reports import ReportOutput
from flyweight.config import Settings

UseCase = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Use case: chat, bulk, cheap, quality, rag.  [default: all]"),
]
OptionalModel = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="A .gguf file, a folder, or org/name.")
]


@expand
def advise(
    *,
    model: OptionalModel = None,
    use_case: UseCase = None,
    engine: Annotated[Values, opt.select_settings("threads", "revision", "offline")],
    out: ReportOutput,
) -> None:
    """Check published advice against this machine.

    Prints the selection matrix and the rules of the founding documents, what holds here, and
    whether both agree. Without MODEL, steps of Llama 2 7B's shape are timed, as in the documents.
    """
    from flyweight.cli.show import show_loading
    from flyweight.planning.advice import check_use_case, report_advice
    from flyweight.planning.advice_facts import gather_facts

    check_use_case(use_case)
    settings = Settings.of(model=model, **engine)
    with show_loading(planned=False) as listener:
        facts = gather_facts(model, settings, listener)
    out.show(report_advice(facts, use_case))
