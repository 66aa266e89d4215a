"""`flyweight bench window`: the timeline of dynamic batching, simulated."""

from __future__ import annotations

from typing import Annotated

import typer

from flyweight.cli.parameters import expand
from flyweight.cli.reports import ReportOutput


@expand
def window(
    *,
    batch_wait_ms: Annotated[
        float, typer.Option(metavar="MS", help="Longest wait of a batch's first request.")
    ] = 5.0,
    preferred_batch: Annotated[
        int, typer.Option(metavar="N", help="Requests that start a batch at once.")
    ] = 5,
    arrivals: Annotated[
        str, typer.Option(metavar="MS,MS", help="When requests arrive, in order.")
    ] = "0,2,3,4,5",
    single_ms: Annotated[
        float, typer.Option(metavar="MS", help="Time that one request takes alone.")
    ] = 400.0,
    batch_ms: Annotated[
        float, typer.Option(metavar="MS", help="Time that a batch of --preferred-batch takes.")
    ] = 1000.0,
    out: ReportOutput,
) -> None:
    """Print the timeline of requests that wait for one another.

    A batch starts when it has --preferred-batch requests, or when its first has waited for
    --batch-wait-ms.  The clock is simulated: nothing is computed.
    """
    from flyweight.bench.batch_window import BatchWindow
    from flyweight.planning.quantities import parse_number
    from flyweight.planning.window import report_window

    given = BatchWindow(batch_wait_ms, preferred_batch, single_ms, batch_ms)
    times = [parse_number(word, "arrivals", 0.0) for word in arrivals.split(",")]
    out.show(report_window(given, times))
