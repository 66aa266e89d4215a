"""The most memory this process has held, and a new start for that figure.

Invariant: read from the system; 0 where it does not say.
"""

import re
from contextlib import suppress
from pathlib import Path

SELF = Path("/proc/self")


def measure_peak(root: Path = SELF) -> int:
    """Bytes, since the process began or since the last `reset_peak`."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", (root / "status").read_text(), re.M)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


def reset_peak(root: Path = SELF) -> None:
    """What was held so far counts no more; nothing where the system has no such switch."""
    with suppress(OSError):
        (root / "clear_refs").write_text("5")
