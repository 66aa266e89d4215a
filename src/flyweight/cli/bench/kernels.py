"""`flyweight bench kernels [MODEL]`: llama-bench's tests beside the machine's limits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.bench import options as by
from flyweight.config import peer_python, whole
from flyweight.errors import ConfigError, nearest

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.rows import BenchRow
    from flyweight.bench.workloads import Workload

Numbers = Annotated[
    str,
    typer.Option("-p", "--n-prompt", metavar="N,N", help="Lengths of prompts to time; 0: none."),
]
Gens = Annotated[
    str, typer.Option("-n", "--n-gen", metavar="N,N", help="Numbers of tokens to decode; 0: none.")
]
Depths = Annotated[
    str,
    typer.Option(
        "-d",
        "--n-depth",
        metavar="N,N",
        help="Tokens before them and before each batch, not timed.",
    ),
]
Batches = Annotated[
    str, typer.Option("-b", "--batch", metavar="N,N", help="Sequences to decode at once.")
]
BatchGen = Annotated[
    int, typer.Option(metavar="N", help="Tokens to decode for each sequence of a batch.")
]
Shared = Annotated[str, typer.Option(metavar="N,N", help="Lengths of a prompt that they share.")]
Rounds = Annotated[
    int, typer.Option("-r", "--repetitions", metavar="N", help="Rounds of each test.")
]
Form = Annotated[
    str, typer.Option("-o", "--output", metavar="md|csv|json|jsonl|html", help="Format to print.")
]
Busy = Annotated[
    int, typer.Option(metavar="N", help="Processes that keep a core busy each during the tests.")
]
Results = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="File to append rows to; tests that it holds are skipped."),
]


def kernels(
    model: by.Model = "stories",
    n_prompt: Numbers = "512",
    n_gen: Gens = "128",
    n_depth: Depths = "0",
    batch: Batches = "1",
    batch_gen: BatchGen = 32,
    shared_prefix: Shared = "",
    repetitions: Rounds = 5,
    threads: by.Threads = None,
    activations: opt.Activations = "int8",
    kv_cache_dtype: opt.KVDtype = "auto",
    memory_limit: by.MemoryLimit = "80%",
    vs: by.Vs = None,
    vs_python: by.VsPython = None,
    vs_binary: by.VsBinary = None,
    busy: Busy = 0,
    results: Results = None,
    output: Form = "md",
) -> None:
    """Time prompts (pp), decoding (tg) and batches.

    Shares are of the machine's limits, sampled just before and after each run.  Ours and peers run
    in turn; `ours ÷ it` is the median of the rounds' ratios, with the least and the most.
    """
    from flyweight.bench import report
    from flyweight.bench.facts import Surroundings
    from flyweight.bench.kernels import KernelRun, run
    from flyweight.bench.ours import BenchEngineOptions
    from flyweight.bench.peers import PeerArgument, PeerMethod
    from flyweight.bench.rows import load, save
    from flyweight.cli.bench.progress import measuring

    if output not in report.FORMS:
        allowed = ", ".join(report.FORMS)
        raise ConfigError(f"output = {output!r}; allowed: {allowed}{nearest(output, report.FORMS)}")
    whole("repetitions", repetitions, 1, 1000)
    whole("busy", busy, 0, 256)
    asked = KernelRun(
        model,
        list_tests(n_prompt, n_gen, n_depth, batch, batch_gen, shared_prefix),
        BenchEngineOptions(threads, activations, kv_cache_dtype, memory_limit=memory_limit),
        repetitions,
        [PeerArgument.of(name) for name in vs or ()],
        PeerMethod(python=peer_python(vs_python), binary=vs_binary or ""),
        busy,
    )
    if not asked.tests:
        raise ConfigError("there is nothing to measure; give -p, -n, or -b above 1")
    path = by.writable("results", results)
    with by.using("results", path):
        done = load(path) if path else []
    found: list[BenchRow] = []

    def shown(rows: Sequence[BenchRow]) -> None:
        if path:
            with by.using("results", path):
                save(path, rows)
        if output == "md":
            print(
                *([] if found else report.write_head()),
                *map(report.write_line, rows),
                sep="\n",
                flush=True,
            )
        found.extend(rows)

    with measuring(shown) as tell:
        run(asked, done, tell)
    if output == "md":
        print(f"\n{report.describe_machine(Surroundings.here(), found)}")
        print(report.DETERMINISTIC)
    else:
        sys.stdout.write(report.report(found, output) + "\n")


def list_tests(
    n_prompt: str, n_gen: str, n_depth: str, batch: str, batch_gen: int, shared_prefix: str
) -> list[Workload]:
    from flyweight.bench.workloads import MOST_SEQS, MOST_TOKENS, WorkloadPlan, parse_numbers

    whole("batch_gen", batch_gen, 1, MOST_TOKENS)
    wanted = WorkloadPlan(
        parse_numbers("n_prompt", n_prompt, 0, MOST_TOKENS),
        parse_numbers("n_gen", n_gen, 0, MOST_TOKENS),
        parse_numbers("n_depth", n_depth, 0, MOST_TOKENS) or [0],
        parse_numbers("batch", batch, 1, MOST_SEQS),
        batch_gen,
        parse_numbers("shared_prefix", shared_prefix, 1, MOST_TOKENS),
    )
    return [*wanted.list_tests()]
