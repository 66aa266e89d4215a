"""`flyweight plan cost` and `plan breakeven`: money a token, and cloud against own hardware."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from flyweight.cli.parameters import expand
from flyweight.cli.reports import PlotOutput, ReportOutput


@expand
def cost(
    *,
    gpu_hourly: Annotated[
        float, typer.Option(metavar="DOLLARS", help="Price of the machine for an hour.")
    ] = 2.0,
    latency: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time of an answer, in seconds.")
    ] = 0.5,
    tokens: Annotated[float, typer.Option(metavar="N", help="Tokens of an answer.")] = 100,
    out: ReportOutput,
) -> None:
    """Print the cost of a token on a rented machine."""
    from flyweight.planning.cost_report import report_cost
    from flyweight.planning.quantities import check_positive

    check_positive(gpu_hourly, "gpu_hourly", 2.0)
    check_positive(latency, "latency", 0.5)
    check_positive(tokens, "tokens", 1)
    out.show(report_cost(gpu_hourly, latency, tokens))


@dataclass(frozen=True, slots=True)
class CloudOptions:
    """What the API costs."""

    price: Annotated[
        float, typer.Option("--cloud-price", metavar="DOLLARS", help="Price of 1,000 tokens.")
    ] = 0.01
    tokens: Annotated[float, typer.Option(metavar="N", help="Tokens of a query.")] = 100


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """What own hardware costs."""

    hardware: Annotated[float, typer.Option(metavar="DOLLARS", help="Price of the hardware.")] = (
        2000
    )
    months: Annotated[float, typer.Option(metavar="N", help="Months in which it is paid off.")] = 6
    electricity: Annotated[
        float, typer.Option(metavar="DOLLARS", help="Electricity of a month.")
    ] = 100
    maintenance: Annotated[
        float, typer.Option(metavar="DOLLARS", help="Maintenance of a month; 0 is allowed.")
    ] = 50
    latency: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time of a query on it, in seconds.")
    ] = 0.4


@expand
def breakeven(*, cloud: CloudOptions, edge: EdgeOptions, out: PlotOutput) -> None:
    """Print when own hardware is cheaper than an API."""
    from flyweight.planning.cost import CloudPrice, EdgePrice
    from flyweight.planning.cost_report import report_breakeven
    from flyweight.planning.quantities import check_positive, check_range

    out.check()
    check_positive(cloud.price, "cloud_price", CloudOptions().price)
    check_positive(cloud.tokens, "tokens", CloudOptions().tokens)
    check_positive(edge.hardware, "hardware", EdgeOptions().hardware)
    check_positive(edge.months, "months", EdgeOptions().months)
    check_positive(edge.latency, "latency", EdgeOptions().latency)
    check_range(edge.electricity, "electricity", 0)
    check_range(edge.maintenance, "maintenance", 0)
    out.show(report_breakeven(CloudPrice(**asdict(cloud)), EdgePrice(**asdict(edge))))
