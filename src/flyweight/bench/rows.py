"""A row of results: one engine's figures for one test, under llama-bench's keys and a few of ours.

Invariant: a row is plain data that goes to JSON and back unchanged; everything shown is made from
rows.  Shares and ratios are medians over rounds of what was measured in the same round.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from flyweight.errors import ConfigError

OURS = "flyweight"
CACHED_BYTES = 32 << 20  # of weights: fewer may stay in caches


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of several figures, and their ends."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Self:
        return cls(statistics.median(figures), min(figures), max(figures))


def make_key(
    engine: tuple[str, str],
    test: str,
    model: tuple[str, int, int],
    options: tuple[str, str, int],
) -> tuple[Any, ...]:
    """What makes a figure the same again: engine and instruction set, test, file, its bytes and
    threads, K/V, activations and busy neighbours.
    """
    return (*engine, test, *model, *options)


@dataclass(frozen=True, slots=True)
class BenchRow:
    """`share` is of the vector units' limits, `share_tile` of the tile unit's where there is one;
    `ratio` is our speed over this engine's in the same round, for peers.  `gbps` and `gops` are
    bytes of the file and K/V, and operations, that the test requires, over the time it took.
    `isa` is the instruction set ours ran with, in peers' rows too.  `other_cores` is what other
    processes used meanwhile, `n_busy` how many were started for it.  `outside_us` is what a step
    of ours took outside the model: scheduling, batches, commits.
    """

    engine: str
    version: str
    isa: str
    test: str
    build_commit: str
    cpu_info: str
    backends: str
    model_filename: str
    model_type: str
    model_size: int
    model_n_params: int
    n_batch: int
    n_threads: int
    type_k: str
    type_v: str
    activations: str
    n_prompt: int
    n_gen: int
    n_depth: int
    n_seqs: int
    n_shared: int
    n_busy: int
    test_time: str
    avg_ns: int
    stddev_ns: int
    avg_ts: float
    stddev_ts: float
    samples_ns: tuple[int, ...]
    samples_ts: tuple[float, ...]
    gbps: float
    gops: float
    limit_read: float
    limit_int8: float
    limit_bf16: float
    other_cores: float
    share: Spread
    share_tile: Spread | None = None
    ratio: Spread | None = None
    outside_us: float = 0.0

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes a row the same figure again: all that was requested, nothing measured."""
        model = (self.model_filename, self.model_size, self.n_threads)
        options = (self.type_k, self.activations, self.n_busy)
        return make_key((self.engine, self.isa), self.test, model, options)

    def to_document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """From JSON.  Raises `ConfigError` for what is no row."""
        names = {field.name for field in fields(cls)}
        given = {name: value for name, value in document.items() if name in names}
        try:
            for name in ("share", "share_tile", "ratio"):
                if given.get(name) is not None:
                    given[name] = Spread(**given[name])
            for name in ("samples_ns", "samples_ts"):
                given[name] = tuple(given[name])
            return cls(**given)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"not a row of results: {error}") from None


def load(path: Path) -> list[BenchRow]:
    """Rows of a file of results, none where there is not a file.  A line that was cut off by an end
    of the run is passed over; its figures are taken anew.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    if is_torn(lines[-1]):  # only what follows the last newline can have been cut off
        lines.pop()
    return [_read(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _read(path: Path, number: int, line: str) -> BenchRow:
    """The row on a line."""
    where = f"{path}: line {number}"
    try:
        document = json.loads(line)
    except ValueError:
        raise ConfigError(f"{where} is not JSON; is this a file of results?") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{where} is not a row of results")
    try:
        return BenchRow.of(document)
    except ConfigError as error:
        raise ConfigError(f"{where} is {error}") from None


def is_torn(line: str) -> bool:
    """Whether a line is the start of a row and not all of it."""
    try:
        json.loads(line)
    except ValueError:
        return line.startswith("{")
    return False


def save(path: Path, rows: Iterable[BenchRow]) -> None:
    """Adds rows to a file of results, each on a line of its own.  The start of a row that an
    interrupted run left is cut off; whatever else is there stays.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    kept, _, last = text.rpartition("\n")
    if is_torn(last):
        path.write_text(kept + "\n" if kept else "", encoding="utf-8")
        last = ""
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" if last else "")
        for row in rows:
            file.write(json.dumps(row.to_document()) + "\n")
