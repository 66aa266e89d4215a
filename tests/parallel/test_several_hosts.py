"""A model over two hosts: the answers of one process, and what becomes of requests, processes and
hosts where one of them is lost.
"""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from host_servers import HostServer, Node, computing, serving, write_secret
from hosts import Host, make_hosts
from http_server import started

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not find_spec("torch"), reason="the extra [distributed] is not installed"),
]

BODY = {"model": "stories", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
LONG = {**BODY, "max_tokens": 400, "ignore_eos": True, "stream": True}
SMALL = ("stories", "--max-model-len", "512")
PAIR = (*SMALL, "-tp", "2", "--nnodes", "2", "--threads", "1")
SECOND = ("--headless", "--node-rank", "1")
TIMEOUT = "--distributed-timeout-seconds"
OTHER_VERSION = """
import flyweight
flyweight.__version__ = "0.0.1"
from flyweight.cli.main import main
raise SystemExit(main())
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with make_hosts(2) as made:
        yield made


@pytest.fixture(scope="module")
def shared(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options that both hosts have."""
    secret = write_secret(tmp_path_factory.mktemp("hosts") / "secret")
    return ("--master-addr", hosts[0].address, "--node-secret-file", str(secret))


@pytest.fixture(scope="module")
def pair(hosts: list[Host], shared: tuple[str, ...]) -> Iterator[tuple[HostServer, Node]]:
    first, second = hosts
    with computing(second, *PAIR, *shared, *SECOND) as node, serving(first, *PAIR, *shared) as one:
        yield one, node


@pytest.fixture(scope="module")
def expected() -> str:
    """The answer of one process."""
    with started(*SMALL, "--threads", "1") as alone:
        return ask(alone)


def ask(server: Any, body: dict[str, Any] = BODY) -> str:
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    return str(reply.json["choices"][0]["text"])


def find_ranks(host: Host) -> list[int]:
    """The processes of ranks on a host."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in host.pids}
    return [pid for pid, words in commands.items() if b"flyweight.rank" in words]


class Load:
    """Requests under way on threads of their own; `ends` are the last bytes of their streams."""

    def __init__(self, server: HostServer, count: int) -> None:
        self.ends: list[bytes] = []
        self._began = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._run, args=(server,)) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            assert self._began.acquire(timeout=120)

    def _run(self, server: HostServer) -> None:
        line = server.connection()
        line.request("POST", "/v1/completions", json.dumps(LONG))
        reply = line.getresponse()
        first = reply.readline()  # it is computed
        self._began.release()
        self.ends.append(first + reply.read())
        line.close()

    def finish(self) -> list[bytes]:
        for thread in self._threads:
            thread.join(120)
        return self.ends


@contextmanager
def lost(server: HostServer, expected: str) -> Iterator[None]:
    """The block loses a part of the server: all requests under way end with an error, and the
    server answers as before once it has restarted.
    """
    load = Load(server, 3)
    yield
    ends = load.finish()
    assert len(ends) == 3 and all(b"engine_down" in end for end in ends), ends
    server.until(lambda: server.post("/v1/completions", BODY).status == 200)
    assert ask(server) == expected


def test_two_hosts_answer_as_one_process(pair: tuple[HostServer, Node], expected: str) -> None:
    assert ask(pair[0]) == expected
    rows = {r["feature"]: r for r in pair[0].get("/v1/engine/effective").json["features"]}
    assert rows["--nnodes"]["effective"] == "2"
    assert rows["--node-secret-file"]["effective"] == "secret"  # no folder


def test_a_rank_that_is_killed_on_the_other_host(
    pair: tuple[HostServer, Node], hosts: list[Host], expected: str
) -> None:
    (rank,) = find_ranks(hosts[1])
    with lost(pair[0], expected):
        os.kill(rank, signal.SIGKILL)
    assert find_ranks(hosts[1]) != [rank]


def test_an_engine_process_that_is_killed(pair: tuple[HostServer, Node], expected: str) -> None:
    with lost(pair[0], expected):
        os.kill(pair[0].worker, signal.SIGKILL)


def test_a_link_that_is_cut(
    pair: tuple[HostServer, Node], hosts: list[Host], expected: str
) -> None:
    server, node = pair
    (rank,) = find_ranks(hosts[1])
    with lost(server, expected):
        hosts[1].cut()
        server.until(lambda: any("node 1 is lost" in line for line in server.said))
        server.until(lambda: rank not in hosts[1].pids)  # the other host has noticed it too
        server.until(lambda: any("node 0 is lost" in line for line in node.said))
        hosts[1].restore()


def test_a_link_that_is_cut_while_nothing_is_computed(
    pair: tuple[HostServer, Node], hosts: list[Host], expected: str
) -> None:
    server, before = pair[0], pair[0].worker
    hosts[1].cut()
    server.until(lambda: before not in hosts[0].pids)
    hosts[1].restore()
    server.until(lambda: server.post("/v1/completions", BODY).status == 200)
    assert ask(server) == expected


def test_a_host_that_is_ended_and_started_again(
    pair: tuple[HostServer, Node], hosts: list[Host], shared: tuple[str, ...], expected: str
) -> None:
    """The end of the module: node 1 is another process afterwards."""
    second = hosts[1]
    with lost(pair[0], expected):
        second.kill_all()
        assert second.pids == []
        again = computing(second, *PAIR, *shared, *SECOND)
        node = again.__enter__()
    assert pair[0].stop() == 0
    assert node.wait() == (0, "node 0 has ended")
    assert second.pids == []
    again.__exit__(None, None, None)


def test_four_ranks_on_two_hosts(hosts: list[Host], shared: tuple[str, ...], expected: str) -> None:
    four = (*SMALL, "-tp", "2", "-pp", "2", "--nnodes", "2", "--threads", "2", *shared)
    with computing(hosts[1], *four, *SECOND) as node:
        with serving(hosts[0], *four) as server:
            assert ask(server) == expected
            assert [len(find_ranks(host)) for host in hosts] == [1, 2]
            assert server.stop() == 0
        assert node.wait()[0] == 0
    assert [host.pids for host in hosts] == [[], []]


# --- what is refused ---


Refused = Callable[..., tuple[tuple[int, str], tuple[int, str]]]


@pytest.fixture
def refused(hosts: list[Host], shared: tuple[str, ...]) -> Refused:
    """Exit codes and last lines of both hosts, where the second has more words, or another
    command.
    """

    def run(*more: str, patience: str = "60", **other: Any) -> Any:
        both = (*PAIR, *shared, TIMEOUT, patience)
        with (
            computing(hosts[0], *both, "--port", "0") as first,
            computing(hosts[1], *both, *SECOND, *more, **other) as second,
        ):
            found = first.wait(), second.wait()
        assert [host.pids for host in hosts] == [[], []], "a process was left"
        return found

    return run


def test_another_secret(refused: Refused, tmp_path: Path) -> None:
    other = write_secret(tmp_path / "other", b"t" * 32)
    first, second = refused("--node-secret-file", str(other), patience="20")
    assert second[0] == 2 and "node_secret_file is not the secret of 10.77.0.1:29501" in second[1]
    assert first[0] == 2 and "1 more had not joined at 10.77.0.1:29501" in first[1]


def test_another_version(refused: Refused) -> None:
    first, second = refused(command=("-c", OTHER_VERSION, "serve"))
    assert first == second and first[0] == 2
    assert first[1].startswith("error: node 1 has flyweight 0.0.1, node 0 has ")


def test_other_weights(refused: Refused, hosts: list[Host], shared: tuple[str, ...]) -> None:
    both = (*shared, "-tp", "2", "--nnodes", "2", "--threads", "1", "--max-model-len", "256")
    with (
        computing(hosts[0], "stories", *both, "--port", "0") as first,
        computing(hosts[1], "stories-draft", *both, *SECOND) as second,
    ):
        assert first.wait() == second.wait()
    assert first.wait()[0] == 2
    assert first.wait()[1].startswith("error: node 1 has other weights: fingerprint ")


def test_other_options(refused: Refused) -> None:
    first, second = refused("--block-size", "16")
    assert first == second == (
        2, "error: node 1 has block_size = 16, node 0 has 32; give both the same"
    )  # fmt: skip


def test_a_host_that_is_not_there(hosts: list[Host], shared: tuple[str, ...]) -> None:
    with computing(hosts[1], *PAIR, *shared, *SECOND, TIMEOUT, "1") as node:
        code, said = node.wait()
    assert code == 2
    assert said.startswith(
        "error: master_addr = '10.77.0.1' cannot be reached at port 29501 within 1 s: "
    )
    with computing(hosts[0], *PAIR, *shared, TIMEOUT, "1", "--port", "0") as node:
        code, said = node.wait()
    assert code == 2 and "distributed_timeout_seconds = 1 passed, and 1 more had not" in said
    assert [host.pids for host in hosts] == [[], []]


def test_a_port_in_use(hosts: list[Host], shared: tuple[str, ...]) -> None:
    with hosts[0].entered():
        taken = socket.create_server((hosts[0].address, 29501))
    with taken, computing(hosts[0], *PAIR, *shared, "--port", "0") as node:
        code, said = node.wait()
    assert (code, said) == (
        2, "error: master_port = 29501 is in use on 10.77.0.1; give all nodes another"
    )  # fmt: skip


def test_a_rank_that_does_not_fit_its_host(hosts: list[Host], shared: tuple[str, ...]) -> None:
    small = (*PAIR, *shared, *SECOND, "--memory-limit", "64MiB")
    with computing(hosts[1], *small) as node:
        code, said = node.wait()
    assert code == 2 and "is too small: this model needs" in said
