"""Servers on hosts that take blocks of K/V from one another, while links and hosts fail: answers
stay equal, and each request ends with an answer or an error.

    pytest --long -s tests/server/test_peers_on_hosts.py

prints what was lost, which docs/scale.md shows.
"""

import http.client
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from peer_servers import SMALL
from test_prefix_cache_peers import NAME, read_metrics

from host_servers import HostServer, computing, serving, write_secret
from hosts import Host, make_hosts
from http_server import WAIT

pytestmark = pytest.mark.long

PORT = 8400
COUNT = 3  # prompts of each event
HITS = 5 * 32  # tokens of a prompt's whole blocks
FULL = 64 << 10  # bytes of a full disk: one block of 48 KiB fits
Answer = tuple[str, list[float]]


def grew(folder: Path, sizes: list[int]) -> bool:
    """Whether all blocks are saved: an idle server writes until nothing is left."""
    now = [path.stat().st_size for path in folder.glob("*.blocks")]
    settled, sizes[:] = now == sizes and sum(now) > 4096, now
    return settled


@dataclass
class Outcome:
    """What became of requests; `given_up` counts transfers, `said` is the server's line."""

    event: str
    requests: int
    equal: int = 0
    errors: int = 0
    fetched: int = 0
    given_up: int = 0
    said: str = ""

    @property
    def row(self) -> str:
        cells = (self.event, self.requests, self.equal, self.errors, self.fetched, self.given_up)
        return f"| {' | '.join(map(str, cells))} | {self.said} |"


@dataclass
class Prompts:
    """Prompts that no server has seen, each with the answer of a server that computed it."""

    count: int = 0
    outcomes: list[Outcome] = field(default_factory=list)

    def make(self) -> list[str]:
        self.count += COUNT
        return [f"Day {n}, " + "one day, " * 55 for n in range(self.count - COUNT, self.count)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with make_hosts(2) as made:
        yield made


@pytest.fixture(scope="module")
def prompts() -> Iterator[Prompts]:
    made = Prompts()
    yield made
    print("\n" + "\n".join(one.row for one in made.outcomes))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    write_secret(folder / "secret")
    return folder


def share(place: Path, name: str, *more: str) -> tuple[str, ...]:
    """Options of a server with a directory of its own."""
    secret = ("--prefix-cache-secret-file", str(place / "secret"))
    return (*SMALL, "--prefix-cache-dir", str(place / name), *secret, *more)


@contextmanager
def start_source(hosts: list[Host], place: Path) -> Iterator[HostServer]:
    """The server on host 0, whose blocks the others take."""
    listen = ("--prefix-cache-listen", f"{hosts[0].address}:{PORT}")
    with serving(hosts[0], *share(place, "source", *listen)) as server:
        yield server


def take_from(hosts: list[Host]) -> tuple[str, str]:
    return "--prefix-cache-peers", f"{hosts[0].address}:{PORT}"


@pytest.fixture(scope="module")
def pair(hosts: list[Host], place: Path) -> Iterator[tuple[HostServer, HostServer]]:
    words = share(place, "second", *take_from(hosts))
    with start_source(hosts, place) as one, serving(hosts[1], *words) as two:
        yield one, two


def ask(server: HostServer, prompt: str) -> Answer:
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 1}
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    [choice] = reply.json["choices"]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def prepare(source: HostServer, place: Path, prompts: Prompts) -> dict[str, Answer]:
    """Prompts whose blocks the source has in its directory, with its answers."""
    found = {prompt: ask(source, prompt) for prompt in prompts.make()}
    sizes: list[int] = []
    source.until(lambda: grew(place / "source", sizes))
    return found


def record(
    event: str, server: HostServer, prompts: Prompts, expected: dict[str, Answer], line: str = ""
) -> Outcome:
    """Asks a server for all of these; `line` is a part of what it says."""
    before = read_metrics(server)
    outcome = Outcome(event, len(expected))
    for prompt, answer in expected.items():
        outcome.equal += ask(server, prompt) == answer
    after = read_metrics(server)
    changed = {name: int(after[name] - before[name]) for name in after}
    outcome.fetched = changed[f"{NAME}hit_tokens_total"]
    outcome.given_up = changed[f"{NAME}transfers_given_up_total"]
    if line:
        server.until(lambda: any(line in said for said in server.said))
        outcome.said = line
    prompts.outcomes.append(outcome)
    assert outcome.equal == outcome.requests
    return outcome


Pair = tuple[HostServer, HostServer]


def test_blocks_cross_the_link(pair: Pair, place: Path, prompts: Prompts) -> None:
    expected = prepare(pair[0], place, prompts)
    assert record("none", pair[1], prompts, expected).fetched == COUNT * HITS


def test_a_slow_link(pair: Pair, hosts: list[Host], place: Path, prompts: Prompts) -> None:
    """A block takes seconds, and a prompt less."""
    expected = prepare(pair[0], place, prompts)
    hosts[1].slow("64kbit")
    outcome = record("slow link, 64 kbit/s", pair[1], prompts, expected)
    hosts[1].restore()
    assert outcome.fetched < COUNT * HITS


def test_a_link_that_is_cut(pair: Pair, hosts: list[Host], place: Path, prompts: Prompts) -> None:
    expected = prepare(pair[0], place, prompts)
    hosts[1].cut()
    outcome = record("cut link", pair[1], prompts, expected)
    hosts[1].restore()
    assert outcome.fetched == 0


def test_a_link_that_is_restored(
    pair: Pair, hosts: list[Host], place: Path, prompts: Prompts
) -> None:
    """The peer is tried again after a while."""

    def fetches() -> bool:
        before = read_metrics(pair[1])[f"{NAME}hit_tokens_total"]
        for prompt, answer in prepare(pair[0], place, prompts).items():
            assert ask(pair[1], prompt) == answer
        return read_metrics(pair[1])[f"{NAME}hit_tokens_total"] > before

    pair[1].until(fetches)


def test_other_settings(pair: Pair, hosts: list[Host], place: Path, prompts: Prompts) -> None:
    expected = prepare(pair[0], place, prompts)
    words = share(place, "other", *take_from(hosts), "--block-size", "16")
    with serving(hosts[1], *words) as server:
        line = "its model, settings or version differ"
        assert record("another fingerprint", server, prompts, expected, line).fetched == 0
        assert read_metrics(server)[f"{NAME}refusals_total"] == 1


def test_another_secret(pair: Pair, hosts: list[Host], place: Path, prompts: Prompts) -> None:
    expected = prepare(pair[0], place, prompts)
    other = str(write_secret(place / "other-secret", b"t" * 32))
    words = [*share(place, "stranger", *take_from(hosts))]
    words[words.index(str(place / "secret"))] = other
    with serving(hosts[1], *words) as server:
        line = "it refused our secret"
        assert record("another secret", server, prompts, expected, line).fetched == 0


def test_no_secret(hosts: list[Host], place: Path, prompts: Prompts) -> None:
    words = (*SMALL, "--prefix-cache-dir", str(place / "none"), *take_from(hosts))
    with computing(hosts[1], *words, "--port", "0") as node:
        code, said = node.wait()
    prompts.outcomes.append(Outcome("no secret", 0, said=f"`{said}`, exit code {code}"))
    assert code == 2 and "needs a secret that the peers share" in said


def test_a_full_disk(pair: Pair, hosts: list[Host], place: Path, prompts: Prompts) -> None:
    """Blocks that arrive cannot be saved; they are used all the same."""
    expected = prepare(pair[0], place, prompts)
    disk = place / "full"
    disk.mkdir()
    private = f"size={FULL},mode=0700"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", private, "none", str(disk)])
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with serving(hosts[1], *share(place, "full", *take_from(hosts))) as server:
            line = "no more blocks are written: No space left on device"
            outcome = record("full disk", server, prompts, expected, line)
            assert outcome.fetched == COUNT * HITS
    finally:
        subprocess.run(["umount", str(disk)], check=True)


class Stream(threading.Thread):
    """A long answer; `end` is what it ended with: its last bytes, or the error of the client."""

    def __init__(self, server: HostServer) -> None:
        super().__init__()
        self.server, self.began, self.end = server, threading.Event(), ""
        self.start()

    def run(self) -> None:
        body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
        line = self.server.connection()
        line.request("POST", "/v1/completions", json.dumps(body))
        reply: Any = line.getresponse()
        reply.readline()
        self.began.set()
        try:
            self.end = reply.read()[-14:].decode()
        except (OSError, http.client.HTTPException) as error:
            self.end = type(error).__name__
        line.close()


def test_a_host_that_is_killed(
    pair: Pair, hosts: list[Host], place: Path, prompts: Prompts
) -> None:
    """The end of the module: its streams end with a broken connection, which clients see."""
    expected = prepare(pair[0], place, prompts)
    streams = [Stream(pair[0]) for _ in range(COUNT)]
    assert all(stream.began.wait(WAIT) for stream in streams)
    hosts[0].kill_all()
    for stream in streams:
        stream.join(WAIT)
    ends = [stream.end for stream in streams]
    lost = Outcome("kill -9 of a host: its own streams", COUNT, said=", ".join(sorted(set(ends))))
    lost.errors = sum("DONE" not in end for end in ends)
    lost.equal = COUNT - lost.errors
    prompts.outcomes.append(lost)
    assert all(end for end in ends)
    outcome = record("kill -9 of a host: requests at its peer", pair[1], prompts, expected)
    assert outcome.fetched == 0
    assert hosts[0].pids == []
