"""Answers a batch in replicas: processes that Ray places on this machine or on a cluster's.

Invariant: replicas of one machine share its cores and the allowed memory evenly.  A replica reads
the rows of its share from the input itself, so every machine must have it at the same path.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec

from flyweight import __version__
from flyweight.batch.answering import RowAnswerer, make_failure
from flyweight.batch.files import open_rows
from flyweight.batch.requests import read_custom_id, read_fields
from flyweight.batch.rows import Row, RowAnswer, RowFile, RowIndex
from flyweight.config import Settings, parse_bytes
from flyweight.describe import (
    DEFAULT_MODEL,
    LoadListener,
    describe,
    find,
    find_here,
    fingerprint_text,
)
from flyweight.errors import ConfigError, EngineError, RequestError
from flyweight.llm import LLM
from flyweight.plan.machine import read_machine
from flyweight.server.replicas.builds import describe_build
from flyweight.server.replicas.places import find_snapshot, locate_settings
from flyweight.server.replicas.reports import shorten
from flyweight.server.settings import ServerSettings

MAX_SHARE = 256  # rows that a replica gets at a time
SHARES = 4  # that each gets at least, so that all end at about the same time
MAX_REPLICAS = 4096
LOST = "the replica ended each time that it computed this row"
FACTS = {
    "version": "flyweight", "code": "a build", "fingerprint": "a model with fingerprint",
    "adapter_weights": "adapters with fingerprints",
    "tokenizer": "a tokenizer or chat template with fingerprint",
}  # fmt: skip
MISSING = "needs Ray; pip install 'flyweight[distributed]'"


class RowShare(msgspec.Struct):
    """Rows of the input with their digests, by number in order; reading begins with the first, at
    `position`.
    """

    input: str
    position: int
    digests: dict[int, int]

    def read(self, open_file: Callable[[Path], RowFile] = open_rows) -> Iterator[Row]:
        """Raises `ConfigError` where this machine's file does not have these rows.  Shares of a
        Parquet file are read faster where `open_file` returns the same object for all of them.
        """
        left = dict(self.digests)
        first, last = min(left), max(left)
        for row in open_file(Path(self.input)).read(first, self.position):
            if row.number in left:
                if left.pop(row.number) != row.digest:
                    raise self._make_refusal(row.number)
                yield row
            if row.number >= last:
                break
        if left:
            raise self._make_refusal(min(left))

    def _make_refusal(self, number: int) -> ConfigError:
        return ConfigError(
            f"row {number} of the input {self.input!r} is missing on {gethostname()} or differs "
            "there; have the same file on every machine, and do not change it during a run"
        )


class RayReplica:
    """One engine, in a process of its own."""

    def __init__(
        self, settings: dict[str, Any], server: ServerSettings, driver: dict[str, Any], sharing: int
    ) -> None:
        """`sharing` replicas are on this machine, which has to have the facts of `driver`.  Raises
        `ConfigError` or `CheckpointError`.
        """
        check_facts(driver, {"version": __version__})
        check_facts(driver, describe_build(settings) if driver else {})
        self._llm = LLM(**divide_machine(settings, sharing))
        loaded = self._llm.loaded
        check_facts(driver, {"fingerprint": loaded.fingerprint, "tokenizer": loaded.text})
        self._answerer = RowAnswerer(self._llm, server)
        self._open = cache(open_rows)  # a Parquet file keeps its place

    def __call__(self, item: bytes) -> Iterator[bytes]:
        share = msgspec.msgpack.decode(item, type=RowShare)
        return map(msgspec.msgpack.encode, self._answerer.answer(share.read(self._open)))


@dataclass(frozen=True, slots=True)
class RayRunner:
    """`replicas` engines on the cluster at `address`; empty: on this machine.  `tell` is shown the
    download of a model for a cluster.
    """

    settings: dict[str, Any]
    replicas: int
    address: str = ""
    server: ServerSettings = field(default_factory=ServerSettings)
    tell: LoadListener | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise ConfigError(
                "is out of range", "replicas", value=self.replicas, allowed=f"1 to {MAX_REPLICAS}",
                hint=f"nearest valid: {min(max(1, self.replicas), MAX_REPLICAS)}",
            )  # fmt: skip

    def answer(self, index: RowIndex) -> Iterator[RowAnswer]:
        """Rows that were lost with a replica are answered in another round, and one by one once
        a round has brought nothing.  What is lost then as well gets an error for its answer.
        """
        try:
            from flyweight.parallel.ray_data import ActorPool, map_in_actors
        except ImportError:
            raise ConfigError(MISSING, "replicas", value=self.replicas) from None
        cpus = float(self.settings.get("threads") or 1)
        settings, driver = self.settings, dict[str, Any]()
        if self.address:  # replicas of this machine have its files
            settings, driver = describe_driver(settings, self.tell)
        make = partial(partial, RayReplica, locate_settings(settings), self.server, driver)
        most = MAX_SHARE
        while index.done < index.rows:
            done = index.done
            pool = ActorPool(self.replicas, self.address, cpus, 1 if most == 1 else 2)
            for result in map_in_actors(make_shares(index, self.replicas, most), make, pool):
                yield msgspec.msgpack.decode(result, type=RowAnswer)
            if index.done == done and most == 1:
                yield from map(make_lost, index.read_pending())
            elif index.done == done:
                most = 1


def describe_driver(
    settings: dict[str, Any], tell: LoadListener | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings, with the commit of a model of the Hub, and what this machine has, so that
    others can be compared with it.  Raises `ConfigError` or `CheckpointError`.
    """
    chosen = Settings.of(**settings)
    path = find(chosen, tell)
    snapshot = None if find_here(chosen.model or DEFAULT_MODEL) else find_snapshot(path)
    if snapshot is not None:
        settings = {**settings, "model": snapshot.name, "revision": snapshot.commit}
    found = describe(path, chosen.quantization)
    with closing(found.checkpoint) as checkpoint:
        facts = {"fingerprint": checkpoint.fingerprint, "tokenizer": fingerprint_text(found)}
    return settings, {"version": __version__, **facts, **describe_build(settings)}


def check_facts(driver: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raises `ConfigError` where a fact of this machine is not that of `driver`, if it has any."""
    for name, value in ours.items():
        if driver and value != driver[name]:
            pair = shorten(value), shorten(driver[name])
            raise ConfigError(
                "a replica on {} has {} {}, and not {}; have the same on every machine".format(
                    gethostname(), FACTS[name], *pair
                )
            )


def divide_machine(settings: dict[str, Any], sharing: int) -> dict[str, Any]:
    """The settings of one of so many replicas on this machine."""
    here, chosen = read_machine(), Settings.of(**settings)
    limit = parse_bytes(str(chosen.memory_limit), here.total)
    threads = chosen.threads or max(1, here.cores // sharing)
    return {
        **settings,
        "threads": threads,
        "memory_limit": limit // sharing,
        "kv_cache_memory_bytes": chosen.kv_cache_memory_bytes // sharing,
    }


def make_lost(row: Row) -> RowAnswer:
    """The answer of a row that no replica survived."""
    custom_id = f"row-{row.number}"
    with suppress(RequestError):
        custom_id = read_custom_id(read_fields(row.data), row.number)
    return make_failure(row, custom_id, EngineError(LOST))


def make_shares(index: RowIndex, replicas: int, most: int = MAX_SHARE) -> Sequence[bytes]:
    """The rows that have no answer, in shares of at most so many."""
    left = index.rows - index.done
    size = max(1, min(most, left // (SHARES * replicas)))
    shares: list[bytes] = []
    share = RowShare(str(index.file.path.absolute()), 0, {})
    for row in index.read_pending():
        if not share.digests:
            share.position = row.position
        share.digests[row.number] = row.digest
        if len(share.digests) == size:
            shares.append(msgspec.msgpack.encode(share))
            share.digests = {}
    if share.digests:
        shares.append(msgspec.msgpack.encode(share))
    return shares
