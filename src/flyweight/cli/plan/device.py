"""`flyweight plan device`: GPU or CPU by requests a day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flyweight.cli.amounts import amount
from flyweight.cli.parameters import expand
from flyweight.cli.reports import PlotOutput
from flyweight.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """The GPU; defaults are the course's."""

    gpu_price: Annotated[
        float, amount("gpu_price", 2000, metavar="DOLLARS", help="Price of the GPU.")
    ] = 2000
    gpu_watts: Annotated[
        float, amount("gpu_watts", 300, metavar="WATTS", help="Power of the GPU at work.")
    ] = 300
    gpu_idle: Annotated[
        float,
        amount("gpu_idle", 50, zero=True, metavar="WATTS", help="Power of the GPU without work."),
    ] = 50
    gpu_latency: Annotated[
        float, amount("gpu_latency", 0.4, metavar="SECONDS", help="Time of an answer on the GPU.")
    ] = 0.4


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """The CPU; defaults are the course's."""

    cpu_price: Annotated[
        float, amount("cpu_price", 500, metavar="DOLLARS", help="Price of the CPU.")
    ] = 500
    cpu_watts: Annotated[
        float, amount("cpu_watts", 120, metavar="WATTS", help="Power of the CPU at work.")
    ] = 120
    cpu_idle: Annotated[
        float,
        amount("cpu_idle", 20, zero=True, metavar="WATTS", help="Power of the CPU without work."),
    ] = 20
    cpu_latency: Annotated[
        float, amount("cpu_latency", 15, metavar="SECONDS", help="Time of an answer on the CPU.")
    ] = 15


@expand
def device(
    *,
    req_per_day: Annotated[
        float, amount("req_per_day", 1000, metavar="N", help="Requests of a day.")
    ] = 1000,
    gpu: GpuOptions,
    cpu: CpuOptions,
    months: Annotated[
        float, amount("months", 6, metavar="N", help="Months in which hardware is paid off.")
    ] = 6,
    kwh_price: Annotated[
        float, amount("kwh_price", 0.15, metavar="DOLLARS", help="Price of a kilowatt hour.")
    ] = 0.15,
    tokens: Annotated[float, amount("tokens", 100, metavar="N", help="Tokens of an answer.")] = 100,
    out: PlotOutput,
) -> None:
    """Compare a GPU and CPUs by the cost of requests a day."""
    from flyweight.planning.workload_cost import Bill, PricedDevice
    from flyweight.planning.workload_report import report_devices

    out.check()
    check_idle("gpu", gpu.gpu_idle, gpu.gpu_watts)
    check_idle("cpu", cpu.cpu_idle, cpu.cpu_watts)
    devices = [
        PricedDevice("GPU", gpu.gpu_price, gpu.gpu_watts, gpu.gpu_idle, gpu.gpu_latency),
        PricedDevice("CPU", cpu.cpu_price, cpu.cpu_watts, cpu.cpu_idle, cpu.cpu_latency),
    ]
    out.show(report_devices(devices, Bill(req_per_day, months, kwh_price, tokens)))


def check_idle(device: str, idle: float, watts: float) -> None:
    """Raises `ConfigError` where a device takes more power without work than at work."""
    if idle > watts:
        raise ConfigError(
            f"{device}_idle = {idle:g} is more than {device}_watts = {watts:g}; "
            f"nearest valid: {watts:g}"
        )
