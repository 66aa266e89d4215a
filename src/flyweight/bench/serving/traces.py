"""Traces of real servers: when requests came and how long they were, sent again with random words.

Invariant: requests keep their order and their distances, scaled by `speed`; equal block hashes
become equal tokens, so that prefixes are shared where they were.  Reads Azure's CSV and Mooncake's
lines of JSON.
"""

import csv
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from flyweight.bench.serving.datasets import read_json_lines
from flyweight.bench.serving.requests import LoadRequest
from flyweight.bench.serving.vocabulary import PromptMaker
from flyweight.errors import ConfigError
from flyweight.validation.untrusted import shown

FINE = re.compile(r"(\.\d{6})\d+")
BLOCK = 512  # tokens of a hash in Mooncake's traces


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a trace: seconds since its first, lengths, hashes of its blocks."""

    at: float
    input: int
    output: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """What is left of a trace where requests above `longest` tokens in all are left out."""

    path: Path
    speed: float = 1.0
    longest: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.speed <= 1e6:
            raise ConfigError(
                f"speed = {self.speed:g} is out of range; allowed: above 0 to 1e6; nearest valid: 1"
            )

    def make_requests(
        self, words: PromptMaker, count: int, rng: random.Random
    ) -> list[LoadRequest]:
        fits = (
            one for one in read_trace(self.path)
            if self.longest is None or one.input + one.output <= self.longest
        )  # fmt: skip
        chosen = [*islice(fits, count)]
        if not chosen:
            least = min((one.input + one.output for one in read_trace(self.path)), default=None)
            if least is None:
                raise ConfigError(f"{self.path}: there is no request in this file")
            raise ConfigError(
                f"{self.path}: no request of at most {self.longest} tokens, the shortest has "
                f"{least}; serve a longer --max-model-len, or send it all the same: --trace-max-len"
            )
        seed, first = rng.getrandbits(32), chosen[0].at
        found = []
        for number, one in enumerate(chosen):
            ids = make_tokens(one, words, seed, number)
            at = (one.at - first) / self.speed
            found.append(LoadRequest(words.make_prompt(ids), one.input, one.output, at))
        return found


def make_tokens(one: TraceRequest, words: PromptMaker, seed: int, number: int) -> list[int]:
    """Each block's from its hash; without hashes, the request's own."""
    if not one.blocks:
        return words.draw(random.Random(f"{seed} own {number}"), one.input)
    ids: list[int] = []
    for block in one.blocks:
        ids += words.draw(random.Random(f"{seed} block {block}"), BLOCK)
    ids += words.draw(random.Random(f"{seed} own {number}"), max(0, one.input - len(ids)))
    return ids[: one.input]


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """The requests of a file, by its kind.  Raises `ConfigError`."""
    kinds = {".csv": read_azure, ".jsonl": read_mooncake}
    if path.suffix not in kinds:
        raise ConfigError(f"dataset_path = {str(path)!r}: a trace is a .csv (Azure's) or a .jsonl")
    try:
        yield from kinds[path.suffix](path)
    except (UnicodeDecodeError, csv.Error):
        raise ConfigError(f"dataset_path = {str(path)!r}: this is not text") from None


def read_azure(path: Path) -> Iterator[TraceRequest]:
    with path.open(encoding="utf-8", newline="") as file:
        first: datetime | None = None
        before = 0.0
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                when = parse_time(row["TIMESTAMP"])
                lengths = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except (KeyError, TypeError, ValueError):
                raise _make_error(path, number, [*row.values()]) from None
            first = first or when
            one = TraceRequest((when - first).total_seconds(), *lengths)
            yield _check_request(path, number, one, before)
            before = one.at


def parse_time(text: str) -> datetime:
    """Seven digits after the point are one more than Python reads; without a zone it is UTC."""
    found = datetime.fromisoformat(FINE.sub(r"\1", text))
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def read_mooncake(path: Path) -> Iterator[TraceRequest]:
    before = -math.inf
    for number, row in enumerate(read_json_lines(path), 1):
        try:
            at = float(row["timestamp"]) / 1000
            lengths = int(row["input_length"]), int(row["output_length"])
            blocks = tuple(int(block) for block in row.get("hash_ids", ()))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise _make_error(path, number, [*row.values()]) from None
        yield _check_request(path, number, TraceRequest(at, *lengths, blocks), before)
        before = at


def _check_request(path: Path, number: int, one: TraceRequest, before: float) -> TraceRequest:
    if one.input < 1 or one.output < 1 or not math.isfinite(one.at):
        raise _make_error(path, number, [one.at, one.input, one.output])
    if one.at < before:
        raise ConfigError(
            f"{path}, line {number}: the request is earlier than the one above; sort them by time"
        )
    return one


def _make_error(path: Path, number: int, row: Sequence[object]) -> ConfigError:
    return ConfigError(f"{path}, line {number}: this is not a request of a trace: {shown(row)}")
