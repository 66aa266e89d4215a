"""`flyweight plan device`: GPU or CPU by requests a day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from flyweight.cli.parameters import expand
from flyweight.cli.reports import PlotOutput


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """The seed's GPU."""

    gpu_price: Annotated[float, typer.Option(metavar="DOLLARS", help="Price of the GPU.")] = 2000
    gpu_watts: Annotated[float, typer.Option(metavar="WATTS", help="Power of the GPU at work.")] = (
        300
    )
    gpu_idle: Annotated[
        float, typer.Option(metavar="WATTS", help="Power of the GPU without work.")
    ] = 50
    gpu_latency: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time of an answer on the GPU.")
    ] = 0.4


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """The seed's CPU."""

    cpu_price: Annotated[float, typer.Option(metavar="DOLLARS", help="Price of the CPU.")] = 500
    cpu_watts: Annotated[float, typer.Option(metavar="WATTS", help="Power of the CPU at work.")] = (
        120
    )
    cpu_idle: Annotated[
        float, typer.Option(metavar="WATTS", help="Power of the CPU without work.")
    ] = 20
    cpu_latency: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time of an answer on the CPU.")
    ] = 15


@expand
def device(
    *,
    req_per_day: Annotated[float, typer.Option(metavar="N", help="Requests of a day.")] = 1000,
    gpu: GpuOptions,
    cpu: CpuOptions,
    months: Annotated[
        float, typer.Option(metavar="N", help="Months in which hardware is paid off.")
    ] = 6,
    kwh_price: Annotated[
        float, typer.Option(metavar="DOLLARS", help="Price of a kilowatt hour.")
    ] = 0.15,
    tokens: Annotated[float, typer.Option(metavar="N", help="Tokens of an answer.")] = 100,
    out: PlotOutput,
) -> None:
    """Compare a GPU and CPUs by the cost of requests a day."""
    from dataclasses import asdict

    from flyweight.planning.quantities import check_positive, check_range
    from flyweight.planning.workload_cost import Bill, PricedDevice
    from flyweight.planning.workload_report import report_devices

    out.check()
    for options in (gpu, cpu):
        for name, value in asdict(options).items():
            if name.endswith("idle"):
                check_range(value, name, 0)
            else:
                check_positive(value, name, getattr(type(options)(), name))
    check_positive(req_per_day, "req_per_day", 1)
    check_positive(months, "months", 6)
    check_positive(kwh_price, "kwh_price", 0.15)
    check_positive(tokens, "tokens", 1)
    devices = [
        PricedDevice("GPU", gpu.gpu_price, gpu.gpu_watts, gpu.gpu_idle, gpu.gpu_latency),
        PricedDevice("CPU", cpu.cpu_price, cpu.cpu_watts, cpu.cpu_idle, cpu.cpu_latency),
    ]
    out.show(report_devices(devices, Bill(req_per_day, months, kwh_price, tokens)))
