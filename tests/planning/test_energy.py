"""Energy by the course's formula, and counters of this machine that may not be readable."""

import sys
from pathlib import Path

import pytest

from flyweight.plan.energy import EnergyMeter, measure_cpu_watts, read_gpu_watts
from flyweight.planning.energy import PowerDraw
from flyweight.planning.energy_report import LivePower, report_energy

GPU = PowerDraw.of_hours("GPU", 350, 110, 1e6)
CPU = PowerDraw.of_hours("CPU", 200, 3600, 1e6)


def test_the_seeds_energy() -> None:
    assert GPU.compute_kwh(1e6) == pytest.approx(38.5)
    assert CPU.compute_kwh(1e6) == pytest.approx(720)
    assert 0.15 * GPU.compute_kwh(1e6) == pytest.approx(5.775)  # the course prints 5.80
    assert 0.15 * CPU.compute_kwh(1e6) == pytest.approx(108)


def test_what_cannot_be_read_is_unavailable_and_never_0() -> None:
    live = [LivePower("processors", None), LivePower("GPUs", 12.5)]
    table = report_energy([GPU, CPU], 1e6, 0.15, live).tables[-1]
    assert [row["watts"] for row in table.list_records()] == [None, 12.5]
    assert table.columns[1].write(None) == "unavailable"


def test_where_the_seed_rounds_is_said_for_its_own_inputs_only() -> None:
    assert "$5.80" in " ".join(report_energy([GPU, CPU], 1e6, 0.15, []).tables[0].notes)
    assert "$5.80" not in " ".join(report_energy([GPU, CPU], 1e6, 0.30, []).tables[0].notes)


def write_zone(root: Path, name: str, joules: float, most: float = 1000) -> None:
    zone = root / name
    zone.mkdir(exist_ok=True)
    (zone / "energy_uj").write_text(str(int(joules * 1e6)))
    (zone / "max_energy_range_uj").write_text(str(int(most * 1e6)))


def test_joules_of_packages_are_added_and_wrap(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:0", 10)
    write_zone(tmp_path, "intel-rapl:1", 995)
    write_zone(tmp_path, "intel-rapl:0:0", 3)  # a part of the first, counted in it
    with EnergyMeter(tmp_path) as meter:
        write_zone(tmp_path, "intel-rapl:0", 17)
        write_zone(tmp_path, "intel-rapl:1", 2)
    assert meter.joules == pytest.approx(7 + 7)


def test_watts_of_the_processors(tmp_path: Path) -> None:
    assert measure_cpu_watts(60, tmp_path) is None  # and it does not wait
    write_zone(tmp_path, "intel-rapl:0", 10)
    watts = measure_cpu_watts(2, tmp_path, lambda _: write_zone(tmp_path, "intel-rapl:0", 50))
    assert watts == pytest.approx(20)


@pytest.mark.parametrize(
    ("program", "watts"),
    [
        ("print('70.5'); print('20')", 90.5),
        ("print('[N/A]')", None),
        ("print(70); raise SystemExit(9)", None),
        ("", None),
    ],
)
def test_watts_of_gpus(program: str, watts: float | None) -> None:
    assert read_gpu_watts((sys.executable, "-c", program)) == watts


def test_no_program_that_reports_gpus() -> None:
    assert read_gpu_watts(("/no/such/program",)) is None
