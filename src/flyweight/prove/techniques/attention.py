"""Tiled attention: scores are used as they are computed, and no matrix of all pairs is built."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flyweight.bench.attention import (
    AttentionInputs,
    TiledAttention,
    attend_naively,
    make_inputs,
)
from flyweight.errors import ConfigError
from flyweight.ops.cpu import CpuOps
from flyweight.plan.machine import read_machine
from flyweight.plan.memory import format_size
from flyweight.prove.engine_side import count_share
from flyweight.prove.peak import measure_peak, reset_peak
from flyweight.prove.technique import Measurement, ProveJob, Technique
from flyweight.wire import F32

LENGTHS = (8192, 32_768)
ROOM = 1.25  # of the matrix, which the naive side needs
Attend = Callable[[], F32]


class AttentionSide:
    """Whole prompts of each length, by one way."""

    def __init__(self, job: ProveJob, side: str) -> None:
        self.notes: tuple[str, ...] = ()
        self.lengths = choose_lengths(job.folder / "lengths")
        if len(self.lengths) < len(LENGTHS):
            self.notes = (f"{LENGTHS[-1]:,} positions are left out: their matrix does not fit",)
        self._ops = (
            CpuOps(job.threads or read_machine().cores, None, "f32") if side == "on" else None
        )
        self._folder = job.folder

    def run(self, round: int, share: float) -> Measurement:
        figures: dict[str, float] = {}
        total, most = 0.0, 0
        lengths = self.lengths[: count_share(len(self.lengths), share)]
        for length in lengths:
            inputs = make_inputs(length, seed=round + 2)
            attend = self._prepare(inputs)
            reset_peak()
            start = time.perf_counter()
            out = attend()
            seconds = time.perf_counter() - start
            peak = measure_peak()
            total, most = total + seconds, max(most, peak)
            figures[f"seconds at {length:,}"] = seconds
            figures[f"peak MiB at {length:,}"] = peak / (1 << 20)
            figures[f"difference at {length:,}"] = self._compare(out, length, round)
        tokens = sum(lengths)
        return Measurement(total, len(lengths), tokens, 0, peak=most, figures=figures)

    def close(self) -> None:
        """Nothing is held between runs."""

    def _prepare(self, inputs: AttentionInputs) -> Attend:
        if self._ops is None:
            return lambda: attend_naively(inputs)
        return TiledAttention(self._ops, inputs).attend

    def _compare(self, out: F32, length: int, round: int) -> float:
        """The greatest difference to the other side's result; 0 where this side is the first."""
        file = self._folder / f"attention-{length}-{round}.f32"
        if not file.exists():
            out.tofile(file)
            return 0.0
        other = np.fromfile(file, out.dtype).reshape(out.shape)
        file.unlink()
        return float(np.abs(out - other).max())


def choose_lengths(chosen: Path) -> list[int]:
    """The lengths whose matrix fits when the first side opens; the other finds them in the file.
    Raises `ConfigError` where none does.
    """
    if chosen.exists():
        return [int(word) for word in chosen.read_text().split()]
    here = read_machine()
    lengths = [n for n in LENGTHS if ROOM * count_matrix(n) <= here.available]
    if not lengths:
        need = format_size(int(ROOM * count_matrix(LENGTHS[0])))
        raise ConfigError(
            f"attention needs {need} of memory for its naive side, and "
            f"{format_size(here.available)} are available"
        )
    chosen.write_text(" ".join(map(str, lengths)))
    return lengths


def count_matrix(tokens: int) -> int:
    """Bytes of the scores of all pairs, of one head."""
    return 4 * tokens * tokens


TECHNIQUE = Technique(
    name="attention",
    what="tiled attention: online softmax, without a matrix of all pairs of positions",
    workload=f"prompts of {LENGTHS[0]:,} and {LENGTHS[1]:,} tokens, 2 heads of 64, in float32",
    off="NumPy: scores of all pairs, their softmax, times V; in place, one head at a time",
    on="the engine's attention kernel, with K/V in blocks",
    metric="throughput",
    open=AttentionSide,
    exact=False,
    instead="on random Q, K and V",
)
