"""`flyweight bench kernels [MODEL]`: llama-bench's tests, with the machine's limits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.bench import options as by
from flyweight.cli.parameters import expand
from flyweight.config import whole
from flyweight.errors import ConfigError, nearest

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.rows import BenchRow
    from flyweight.bench.workloads import Workload


@dataclass(frozen=True, slots=True)
class TestOptions:
    """The tests, and how often each runs."""

    n_prompt: Annotated[
        str | None,
        typer.Option(
            "-p",
            "--n-prompt",
            metavar="N,N",
            help="Lengths of prompts to time; 0: none.  [default: 512, or what the model's "
            "context leaves]",
        ),
    ] = None
    n_gen: Annotated[
        str,
        typer.Option("-n", "--n-gen", metavar="N,N", help="Numbers of tokens to decode; 0: none."),
    ] = "128"
    n_depth: Annotated[
        str,
        typer.Option(
            "-d",
            "--n-depth",
            metavar="N,N",
            help="Tokens of context before each test, not timed.",
        ),
    ] = "0"
    batch: Annotated[
        str, typer.Option("-b", "--batch", metavar="N,N", help="Sequences to decode at once.")
    ] = "1"
    batch_gen: Annotated[
        int, typer.Option(metavar="N", help="Tokens to decode for each sequence of a batch.")
    ] = 32
    shared_prefix: Annotated[
        str, typer.Option(metavar="N,N", help="Lengths of a prefix that the sequences share.")
    ] = ""
    repetitions: Annotated[
        int, typer.Option("-r", "--repetitions", metavar="N", help="Rounds of each test.")
    ] = 5

    def list_tests(self, model: str) -> list[Workload]:
        """Raises `ConfigError`."""
        from flyweight.bench.facts import choose_model_prompt
        from flyweight.bench.workloads import MOST_SEQS, MOST_TOKENS, WorkloadPlan, parse_numbers

        whole("repetitions", self.repetitions, 1, 1000)
        whole("batch_gen", self.batch_gen, 1, MOST_TOKENS)
        depths = parse_numbers("n_depth", self.n_depth, 0, MOST_TOKENS) or [0]
        given = self.n_prompt
        if given is None:
            given = str(choose_model_prompt(model, max(depths)))
        wanted = WorkloadPlan(
            parse_numbers("n_prompt", given, 0, MOST_TOKENS),
            parse_numbers("n_gen", self.n_gen, 0, MOST_TOKENS),
            depths,
            parse_numbers("batch", self.batch, 1, MOST_SEQS),
            self.batch_gen,
            parse_numbers("shared_prefix", self.shared_prefix, 1, MOST_TOKENS),
        )
        return [*wanted.list_tests()]


@dataclass(frozen=True, slots=True)
class KernelOutput:
    """Where rows go, and in which form."""

    busy: Annotated[
        int,
        typer.Option(metavar="N", help="Processes that each keep one core busy during the tests."),
    ] = 0
    results: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File to append rows to; tests that it holds are skipped."
        ),
    ] = None
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="md|csv|json|jsonl|html", help="Format to print."),
    ] = "md"

    def check(self) -> None:
        """Raises `ConfigError`."""
        from flyweight.bench.report import FORMS

        if self.output not in FORMS:
            allowed = f"{', '.join(FORMS)}{nearest(self.output, FORMS)}"
            raise ConfigError(f"output = {self.output!r}; allowed: {allowed}")
        whole("busy", self.busy, 0, 256)


@expand
def kernels(
    *,
    model: opt.Model = "stories",
    tests: TestOptions,
    engine: by.MeasuredEngine,
    peers: by.PeerOptions,
    out: KernelOutput,
) -> None:
    """Time prompts (pp), decoding (tg) and batches.

    Shares are of the machine's limits, sampled just before and after each run.  flyweight and
    its peers run in turn; `ours ÷ it` is the median of the rounds' ratios, with the minimum and the
    maximum.
    """
    from flyweight.bench import report
    from flyweight.bench.facts import Surroundings
    from flyweight.bench.kernels import KernelRun, run
    from flyweight.bench.ours import BenchEngineOptions
    from flyweight.bench.rows import load, save
    from flyweight.cli.bench.progress import show_measuring

    out.check()
    requested = KernelRun(
        model,
        tests.list_tests(model),
        BenchEngineOptions(**asdict(engine)),
        tests.repetitions,
        peers.list_peers(),
        peers.method(),
        out.busy,
    )
    if not requested.tests:
        raise ConfigError("there is nothing to measure; give -p, -n, or -b above 1")
    path = by.find_writable("results", out.results)
    with by.name_errors("results", path):
        done = load(path) if path else []
    found: list[BenchRow] = []

    def show(rows: Sequence[BenchRow]) -> None:
        if path:
            with by.name_errors("results", path):
                save(path, rows)
        if out.output == "md":
            print(
                *([] if found else report.write_head()),
                *map(report.write_line, rows),
                sep="\n",
                flush=True,
            )
        found.extend(rows)

    with show_measuring(show) as listener:
        run(requested, done, listener)
    if not found:
        names = ", ".join(test.name for test in requested.tests)
        print(f"nothing was measured: {path} has {names} already", file=sys.stderr)
    if out.output == "md" and found:
        print(f"\n{report.describe_machine(Surroundings.here(), found)}")
        print(report.DETERMINISTIC)
    elif out.output != "md":
        sys.stdout.write(report.report(found, out.output) + "\n")
