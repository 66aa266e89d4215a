"""What a figure was taken on: the model's file (name, kind, bytes, parameters), the processor,
cores and versions, and what else ran meanwhile.

Invariant: read from the system each time; a figure that cannot be read is left out, never guessed.
"""

import math
import os
import platform
import re
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyweight import __version__
from flyweight.bench.workloads import DEFAULT_PROMPT, choose_prompt
from flyweight.describe import ModelDescription, find_here, read_spec
from flyweight.errors import FlyweightError
from flyweight.models.registry import find_family
from flyweight.plan.machine import read_machine
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats import FORMATS


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`name` is the file's with its folder's before it, `kind` a short description."""

    name: str
    kind: str
    nbytes: int
    params: int

    @classmethod
    def of(cls, found: ModelDescription) -> "ModelFacts":
        tensors = [t for t in found.checkpoint.tensors.values() if t.kind in FORMATS]
        params = sum(math.prod(t.shape) for t in tensors)
        weights: Counter[str] = Counter()
        for tensor in tensors:
            if len(tensor.shape) > 1:
                weights[tensor.kind] += math.prod(tensor.shape)
        most = weights.most_common(1)[0][0].upper() if weights else ""
        path = found.checkpoint.path
        return cls(
            name_file(path),
            f"{found.spec.family} {format_count(params)} {most}",
            measure_size(path),
            params,
        )


def choose_model_prompt(model: str, depth: int) -> int:
    """The default prompt of a model.  One that is not here, or whose files are refused when they
    are loaded, gets the usual length.
    """
    path = find_here(model)
    if path is None:
        return DEFAULT_PROMPT
    try:
        checkpoint = open_checkpoint(path)
        context = read_spec(checkpoint, find_family(checkpoint.config)).context
    except FlyweightError:
        return DEFAULT_PROMPT
    return choose_prompt(context, depth)


def name_file(path: Path) -> str:
    return "/".join(Path(os.path.abspath(path)).parts[-2:]).strip("/")


def measure_size(path: Path) -> int:
    """Bytes of a model's file, or of the weights in its folder."""
    if path.is_file():
        return path.stat().st_size
    kinds = ("*.safetensors", "pytorch_model*.bin", "*.gguf")
    files = next((files for kind in kinds if (files := [*path.glob(kind)])), [])
    return sum(file.stat().st_size for file in files)


def format_count(params: int) -> str:
    """1.24B, 596M, 260K."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if params >= unit:
            return f"{params / unit:.3g}{name}"
    return str(params)


PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where figures were taken; the same for every row of a run."""

    cpu: str
    cores: int
    memory: int
    version: str
    commit: str

    @classmethod
    def here(cls) -> "Surroundings":
        found = read_machine()
        return cls(read_cpu_name(), found.cores, found.total, __version__, read_commit())


def read_cpu_name(root: Path = PROC) -> str:
    """The processor as the system calls it."""
    try:
        text = (root / "cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


def read_commit(package: Path = Path(__file__).parent) -> str:
    """The commit of a checkout, with a + where files were changed; nothing for an installed
    package.
    """
    words = ["git", "-C", str(package), "describe", "--always", "--dirty=+", "--abbrev=7"]
    tracked = ["git", "-C", str(package), "ls-files", "--error-unmatch", Path(__file__).name]
    try:
        subprocess.run(tracked, capture_output=True, check=True, timeout=10)
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


class OtherProcesses:
    """Cores that other processes used since this was made; those in `ours` are not others."""

    def __init__(self, ours: Sequence[int] = (), root: Path = PROC) -> None:
        self._ours, self._root = ours, root
        self._clock, self._others = time.monotonic(), self._read()

    def measure_cores(self) -> float:
        """A share of seconds: 1.0 is one whole core."""
        seconds = time.monotonic() - self._clock
        return max(0.0, (self._read() - self._others) / seconds) if seconds > 0 else 0.0

    def _read(self) -> float:
        """Seconds of processor time all others have used, the machine's guests excluded."""
        line = (self._root / "stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, softirq = map(int, line[:7])
        own = sum(_sum_cpu_seconds(resource.getrusage(who)) for who in _SELVES)
        own += sum(read_process_seconds(pid, self._root) for pid in self._ours)
        return (user + nice + system + irq + softirq) / TICKS - own


_SELVES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _sum_cpu_seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def read_process_seconds(pid: int, root: Path = PROC) -> float:
    """Processor time of a live process; 0 for one that is gone."""
    try:
        after_name = (root / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) / TICKS  # utime, stime
