"""`flyweight bench spec [MODEL]`: drafters against none, on texts that repeat and that do not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.bench import options as by
from flyweight.cli.parameters import expand
from flyweight.cli.reports import PlotOutput
from flyweight.config import find_data_folder, whole
from flyweight.errors import ConfigError, nearest

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.prove.spec_texts import SpecWorkload

MOST_PROMPT, MOST_ANSWER, MOST_ROUNDS = 1 << 20, 4096, 1000


@dataclass(frozen=True, slots=True)
class SpecOptions:
    """The drafters, and the texts that they draft."""

    workload: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this workload; may be repeated.  [default: all]"),
    ] = None
    speculative_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Only this drafter.  [default: every one that needs no files, or is inside]",
        ),
    ] = None
    num_speculative_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Most draft tokens in a step.  [default: 10]")
    ] = None
    input_len: Annotated[int, typer.Option(metavar="N", help="Most tokens of a prompt.")] = 4000
    output_len: Annotated[int, typer.Option(metavar="N", help="Tokens of an answer.")] = 96
    rounds: Annotated[
        int, typer.Option("-r", "--repetitions", metavar="N", help="Rounds to measure.")
    ] = 6
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Answer with the workload's own text, as a model would that writes it.",
        ),
    ] = False

    def check(self) -> None:
        """Raises `ConfigError` for a number that is out of range."""
        whole("input_len", self.input_len, 16, MOST_PROMPT)
        whole("output_len", self.output_len, 2, MOST_ANSWER)
        whole("repetitions", self.rounds, 2, MOST_ROUNDS)


@expand
def spec(
    *,
    model: opt.Model = "stories",
    given: SpecOptions,
    engine: by.MeasuredEngine,
    out: PlotOutput,
) -> None:
    """Measure drafts: acceptance, speed-up, decisions.

    With and without drafts in turns, on texts that repeat and on texts that do not.  Editing,
    summarising and code repair are made of the data sets in FLYWEIGHT_DATA.
    """
    out.check()
    given.check()
    from flyweight.cli.bench.progress import show_measuring
    from flyweight.prove.spec_drafters import choose_drafters
    from flyweight.prove.spec_report import SpecSetting, report_spec
    from flyweight.prove.spec_session import SpecEngine, measure_drafters
    from flyweight.prove.spec_texts import list_workloads

    works = choose_workloads(list(list_workloads(find_data_folder())), given.workload)
    drafters = choose_drafters(str(model), given.speculative_config, given.num_speculative_tokens)
    shared = SpecEngine(str(model), asdict(engine), given.input_len, given.output_len, given.replay)
    with show_measuring() as listener:
        runs = measure_drafters(drafters, shared, works, given.rounds, listener)
    whats = {work.name: work.what for work in works}
    setting = SpecSetting(str(model), drafters, given.output_len, given.rounds, given.replay, whats)
    out.show(report_spec(runs, setting))


def choose_workloads(known: list[SpecWorkload], names: list[str] | None) -> list[SpecWorkload]:
    """Raises `ConfigError` for a name that is none."""
    found = {work.name: work for work in known}
    for name in names or ():
        if name not in found:
            raise ConfigError(
                "is not valid", "workload", value=name,
                allowed=f"{', '.join(found)}{nearest(name, found)}",
            )  # fmt: skip
    return [found[name] for name in names or found]
