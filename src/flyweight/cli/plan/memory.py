"""`flyweight plan memory`: memory by the seed's formula, from sizes and bits."""

from __future__ import annotations

from typing import Annotated

import typer

from flyweight.cli.parameters import expand
from flyweight.cli.reports import PlotOutput


@expand
def memory(
    *,
    params: Annotated[
        str, typer.Option(metavar="N,N", help="Numbers of parameters: 8B, 500M.")
    ] = "8B",
    bits: Annotated[str, typer.Option(metavar="N,N", help="Bits of a weight.")] = "16,8,4",
    out: PlotOutput,
) -> None:
    """Print the memory that models of these sizes need."""
    from flyweight.planning.estimate import report_estimates
    from flyweight.planning.quantities import parse_bits, parse_list, parse_params

    out.check()
    sizes = parse_list(params, parse_params, "params")
    out.show(report_estimates(sizes, parse_list(bits, parse_bits, "bits")))
