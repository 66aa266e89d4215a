"""`flyweight plan cost` and `plan breakeven`: money a token, and cloud against own hardware."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from flyweight.cli.amounts import amount
from flyweight.cli.parameters import expand
from flyweight.cli.reports import PlotOutput, ReportOutput


@expand
def cost(
    *,
    gpu_hourly: Annotated[
        float,
        amount("gpu_hourly", 2.0, metavar="DOLLARS", help="Price of the machine for an hour."),
    ] = 2.0,
    latency: Annotated[
        float, amount("latency", 0.5, metavar="SECONDS", help="Time of an answer, in seconds.")
    ] = 0.5,
    tokens: Annotated[float, amount("tokens", 100, metavar="N", help="Tokens of an answer.")] = 100,
    out: ReportOutput,
) -> None:
    """Print the cost of a token on a rented machine."""
    from flyweight.planning.cost_report import report_cost

    out.show(report_cost(gpu_hourly, latency, tokens))


@dataclass(frozen=True, slots=True)
class CloudOptions:
    """What the API costs."""

    price: Annotated[
        float,
        amount(
            "cloud_price", 0.01, "--cloud-price", metavar="DOLLARS", help="Price of 1,000 tokens."
        ),
    ] = 0.01
    tokens: Annotated[float, amount("tokens", 100, metavar="N", help="Tokens of a query.")] = 100


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """What own hardware costs."""

    hardware: Annotated[
        float, amount("hardware", 2000, metavar="DOLLARS", help="Price of the hardware.")
    ] = 2000
    months: Annotated[
        float, amount("months", 6, metavar="N", help="Months in which it is paid off.")
    ] = 6
    electricity: Annotated[
        float,
        amount("electricity", 100, zero=True, metavar="DOLLARS", help="Electricity of a month."),
    ] = 100
    maintenance: Annotated[
        float,
        amount(
            "maintenance",
            50,
            zero=True,
            metavar="DOLLARS",
            help="Maintenance of a month; 0 is allowed.",
        ),
    ] = 50
    latency: Annotated[
        float, amount("latency", 0.4, metavar="SECONDS", help="Time of a query on it, in seconds.")
    ] = 0.4


@expand
def breakeven(*, cloud: CloudOptions, edge: EdgeOptions, out: PlotOutput) -> None:
    """Print when own hardware is cheaper than an API."""
    from flyweight.planning.cost import CloudPrice, EdgePrice
    from flyweight.planning.cost_report import report_breakeven

    out.check()
    out.show(report_breakeven(CloudPrice(**asdict(cloud)), EdgePrice(**asdict(edge))))
