"""Joules that processors used, by the counters that Linux keeps where the hardware has them (RAPL),
and the power of GPUs, as nvidia-smi reports it.

Invariant: whole packages are counted, with what other processes used; where no counter is readable
there is no figure, never a guess.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
GPU_POWER = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")
PATIENCE = 5.0  # seconds for nvidia-smi


class EnergyMeter:
    """Measures while it is entered; `joules` is None where nothing can be read."""

    def __init__(self, root: Path = POWERCAP) -> None:
        zones = [zone for zone in root.glob("intel-rapl:*") if zone.name.count(":") == 1]
        self._zones = [zone for zone in sorted(zones) if read_number(zone / "energy_uj")]
        self._before: list[int] = []
        self.joules: float | None = None

    @property
    def readable(self) -> bool:
        return bool(self._zones)

    def __enter__(self) -> "EnergyMeter":
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.joules = self.take()

    def begin(self) -> None:
        self._before = self._read()

    def take(self) -> float | None:
        """Joules since it began, or since they were taken last; None where nothing can be read."""
        before, self._before = self._before, self._read()
        pairs = zip(self._zones, before, self._before, strict=True)
        used = [self._subtract(*pair) for pair in pairs]
        return sum(used) / 1e6 if used else None

    def _read(self) -> list[int]:
        return [read_number(zone / "energy_uj") or 0 for zone in self._zones]

    def _subtract(self, zone: Path, before: int, now: int) -> int:
        """A counter begins at 0 again when it has reached its end."""
        return now - before if now >= before else (
            now - before + (read_number(zone / "max_energy_range_uj") or 0)
        )  # fmt: skip


def read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def measure_cpu_watts(
    seconds: float, root: Path = POWERCAP, sleep: Callable[[float], None] = time.sleep
) -> float | None:
    """The packages' mean power over so many seconds; None where it cannot be read."""
    begin = time.monotonic()
    with EnergyMeter(root) as meter:
        if not meter.readable:
            return None
        sleep(seconds)
    passed = max(time.monotonic() - begin, seconds)
    return None if meter.joules is None else meter.joules / passed


def read_gpu_watts(command: Sequence[str] = GPU_POWER) -> float | None:
    """The power of all GPUs together; None where it cannot be read."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        found = [float(line) for line in done.stdout.splitlines() if line.strip()]
    except (OSError, ValueError, subprocess.TimeoutExpired):  # "[N/A]" is no number
        return None
    return sum(found) if found and done.returncode == 0 else None
