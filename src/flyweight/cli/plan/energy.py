"""`flyweight plan energy`: kWh and dollars of queries on a GPU and a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flyweight.cli.amounts import amount
from flyweight.cli.parameters import expand
from flyweight.cli.reports import ReportOutput

SAMPLE = 0.5  # seconds that this machine's power is measured for


@dataclass(frozen=True, slots=True)
class PowerOptions:
    """What the two devices draw, and for how long."""

    gpu_watts: Annotated[
        float, amount("gpu_watts", 350, metavar="WATTS", help="Power of the GPU at work.")
    ] = 350
    gpu_hours: Annotated[
        float, amount("gpu_hours", 110, metavar="HOURS", help="Time of the GPU for all queries.")
    ] = 110
    cpu_watts: Annotated[
        float, amount("cpu_watts", 200, metavar="WATTS", help="Power of the CPU at work.")
    ] = 200
    cpu_hours: Annotated[
        float, amount("cpu_hours", 3600, metavar="HOURS", help="Time of the CPU for all queries.")
    ] = 3600
    queries: Annotated[float, amount("queries", 1e6, metavar="N", help="Number of queries.")] = 1e6
    kwh_price: Annotated[
        float, amount("kwh_price", 0.15, metavar="DOLLARS", help="Price of a kilowatt hour.")
    ] = 0.15


@expand
def energy(*, power: PowerOptions, out: ReportOutput) -> None:
    """Print the energy of queries, and what this machine draws now."""
    from flyweight.plan.energy import measure_cpu_watts, read_gpu_watts
    from flyweight.planning.energy import PowerDraw
    from flyweight.planning.energy_report import LivePower, report_energy

    draws = [
        PowerDraw.of_hours("GPU (RTX 4090)", power.gpu_watts, power.gpu_hours, power.queries),
        PowerDraw.of_hours("CPU (64 cores)", power.cpu_watts, power.cpu_hours, power.queries),
    ]
    live = [
        LivePower("processors (RAPL)", measure_cpu_watts(SAMPLE)),
        LivePower("GPUs (nvidia-smi)", read_gpu_watts()),
    ]
    out.show(report_energy(draws, power.queries, power.kwh_price, live))
