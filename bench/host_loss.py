"""A server with replicas on two hosts: what is lost when something happens to the second one.

    python bench/host_loss.py [--event NAME,NAME|all] [--seconds 60] [--json FILE] [--svg FILE]

The hosts are network namespaces of this machine (tests/hosts.py), joined to one Ray cluster; each
has one replica.  Clients stream greedy answers all the time.  The event happens after a third of
the time; after two thirds a host that was killed joins the cluster again, and a link is restored.
Printed are the server's log, how answers ended and a row for each event.  A plot is of the last
event, and counts the answers that ended in each second.

Needs the extra `distributed`, iproute2, and the right to make namespaces.
"""

import argparse
import http.client
import json
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import pytest  # noqa: E402

from flyweight.describe import ASSETS  # noqa: E402
from flyweight.planning.plots import LinePlot, Series  # noqa: E402
from flyweight.planning.svg import draw_lines  # noqa: E402
from host_servers import HostServer, serving  # noqa: E402
from hosts import Host, make_hosts  # noqa: E402

PORT = 6379  # of Ray
MODEL = "stories.gguf"  # a copy, which an update replaces
CLIENTS = 6
PROMPTS = ("Once upon a time", "The little dog", "One day, Tom and Sue went to the park")
BODY = {"temperature": 0, "max_tokens": 200, "ignore_eos": True, "stream": True}
SLOW = "64kbit"  # a second
WHOLE, BROKEN, REFUSED, SILENT = "whole", "ended with an error", "refused", "lost in silence"


@dataclass
class Outcome:
    """How an answer ended, `at` so many seconds after the load began."""

    at: float
    kind: str
    code: str = ""
    text: str = ""
    prompt: str = ""


def start_ray(host: Host, head: Host | None, token: str, folder: Path) -> None:
    """Lets a host join the cluster of `head`, or start one; returns once it has.  Without a token,
    anyone may use the cluster.
    """
    where = ["--head", "--port", str(PORT), "--include-dashboard=false"]
    if head:
        where = ["--address", f"{head.address}:{PORT}"]
    words = [
        sys.executable, "-m", "ray.scripts.scripts", "start", *where, "--node-ip-address",
        host.address, "--num-cpus", "1", "--object-store-memory", str(100 << 20),
        "--disable-usage-stats",
    ]  # fmt: skip
    own = folder / host.address
    own.mkdir(exist_ok=True)
    with (own / "ray.txt").open("w") as log:
        started = host.run(words, stdout=log, stderr=log, env=make_environment(token))
        if started.wait():
            raise SystemExit((own / "ray.txt").read_text())


def make_environment(token: str) -> dict[str, str]:
    mode = "token" if token else "disabled"
    return {**os.environ, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": token}


def read_answer(server: HostServer, prompt: str) -> tuple[str, str, str]:
    """How one streamed answer ends: its kind, the error's code, and its text."""
    try:
        reply = server.post("/v1/completions", {**BODY, "prompt": prompt})
    except (OSError, http.client.HTTPException):
        return SILENT, "", ""
    if reply.status != 200:
        return REFUSED, reply.json["error"]["code"], ""
    events = reply.events
    text = "".join(one["choices"][0]["text"] for one in events if one.get("choices"))
    if events and "error" in events[-1]:
        return BROKEN, events[-1]["error"]["code"], text
    whole = reply.body.rstrip().endswith(b"data: [DONE]")
    return (WHOLE if whole else SILENT), "", text


def load(server: HostServer, began: float, seconds: float, found: list[Outcome]) -> None:
    """A client, which asks again as soon as an answer has ended."""
    turn = len(found)
    while time.monotonic() < began + seconds:
        prompt = PROMPTS[turn % len(PROMPTS)]
        turn += 1
        kind, code, text = read_answer(server, prompt)
        found.append(Outcome(time.monotonic() - began, kind, code, text, prompt))
        if kind == REFUSED:
            time.sleep(0.2)


@dataclass
class ReplicaCluster:
    """A server on the first of two hosts, and what can happen to it."""

    server: HostServer
    first: Host
    second: Host
    token: str
    folder: Path

    def kill(self) -> None:
        self.second.kill_all()

    def join(self) -> None:
        start_ray(self.second, self.first, self.token, self.folder)

    def cut(self) -> None:
        self.second.cut()

    def slow(self) -> None:
        self.second.slow(SLOW)

    def restore(self) -> None:
        self.second.restore()

    def kill_engine(self) -> None:
        self._kill_processes(b"flyweight.server.worker")

    def kill_actor(self) -> None:
        self._kill_processes(b"ray::ServeReplica")

    def update(self) -> None:
        model = self.folder / MODEL
        shutil.copy(model, model.with_suffix(".new")).replace(model)
        self.server.process.send_signal(signal.SIGHUP)

    def stay(self) -> None: ...

    def _kill_processes(self, name: bytes) -> None:
        found = [pid for pid in self.second.pids if name in read_command(pid)]
        assert found, f"no {name.decode()} on the second host"
        for pid in found:
            os.kill(pid, signal.SIGKILL)


Act = Callable[[ReplicaCluster], None]

# What happens after a third of the time, and after two thirds; how many replicas it starts anew
EVENTS: dict[str, tuple[str, Act, Act, int]] = {
    "kill": ("all processes of the host killed", ReplicaCluster.kill, ReplicaCluster.join, 1),
    "cut": ("link cut", ReplicaCluster.cut, ReplicaCluster.restore, 1),
    "slow": (f"link at {SLOW}", ReplicaCluster.slow, ReplicaCluster.restore, 0),
    "engine": ("`kill -9` of the engine", ReplicaCluster.kill_engine, ReplicaCluster.stay, 1),
    "actor": ("`kill -9` of Ray's actor", ReplicaCluster.kill_actor, ReplicaCluster.stay, 1),
    "update": ("rolling update by SIGHUP", ReplicaCluster.update, ReplicaCluster.stay, 2),
}


def read_command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


@dataclass
class EventRun:
    """`found`: how answers ended; `wrong`: whole answers with another text than before."""

    found: list[Outcome]
    said: list[str]
    counters: dict[str, str]
    wrong: int

    def count(self, kind: str) -> int:
        return sum(one.kind == kind for one in self.found)


def run(event: str, seconds: float, folder: Path) -> EventRun:
    token = secrets.token_hex(32)
    _, happen, recover, anew = EVENTS[event]
    with ExitStack() as stack:
        first, second = stack.enter_context(make_hosts(2))
        model = shutil.copy(ASSETS / "stories.gguf", folder / MODEL)
        start_ray(first, None, token, folder)
        start_ray(second, first, token, folder)
        words = ("--ray-address", f"{first.address}:{PORT}", "--replicas", "2", "--threads", "1")
        limits = ("--max-model-len", "512", "--memory-limit", "2GiB", "--no-coalesce-requests")
        server = stack.enter_context(
            serving(first, str(model), *words, *limits, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
        )
        cluster = ReplicaCluster(server, first, second, token, folder)
        wait_for_replicas(server, 2)
        expected = {one: read_answer(server, one)[2] for one in PROMPTS}
        found: list[Outcome] = []
        began = time.monotonic()
        clients = [
            threading.Thread(target=load, args=(server, began, seconds, found))
            for _ in range(CLIENTS)
        ]
        for one in clients:
            one.start()
        time.sleep(seconds / 3)
        happen(cluster)
        time.sleep(max(0.0, began + 2 * seconds / 3 - time.monotonic()))
        recover(cluster)
        for one in clients:
            one.join()
        wait_for_replicas(server, 2 + anew)
        lines = server.get("/metrics").body.decode().splitlines()
        counters = dict(
            line.rsplit(" ", 1) for line in lines if line.startswith("flyweight:replica_")
        )
        wrong = [one for one in found if one.kind == WHOLE and one.text != expected[one.prompt]]
        return EventRun(found, list(server.said), counters, len(wrong))


def wait_for_replicas(server: HostServer, count: int) -> None:
    end = time.monotonic() + 120
    while sum("replica_ready" in line for line in server.said) < count:
        if time.monotonic() > end:
            raise SystemExit("the replicas were not ready in 120 s")
        time.sleep(0.2)


def draw(found: list[Outcome], seconds: float) -> str:
    """Answers that ended in each second, whole and not."""
    series = []
    for name, kinds in (("whole", {WHOLE}), ("error or refusal", {BROKEN, REFUSED, SILENT})):
        ends = Counter(int(one.at) for one in found if one.kind in kinds)
        series.append(Series(name, tuple((s + 0.5, ends[s]) for s in range(int(seconds)))))
    return draw_lines(
        LinePlot(
            "Two replicas on two hosts, one of which is lost", "seconds", "answers a second",
            tuple(series),
        )
    )  # fmt: skip


def sum_counter(run: EventRun, name: str) -> int:
    """A counter over its labels."""
    return round(sum(float(value) for line, value in run.counters.items() if name in line))


def make_row(event: str, run: EventRun) -> str:
    kinds = (run.count(kind) for kind in (WHOLE, BROKEN, REFUSED, SILENT))
    lost, retried, failed = (
        sum_counter(run, name)
        for name in ("replica_lost_total", "retried_requests_total", "failed_requests_total")
    )
    cells = EVENTS[event][0], *kinds, run.wrong, lost, retried, failed
    return f"| {' | '.join(map(str, cells))} |"


def report(event: str, run: EventRun) -> None:
    print(f"--- {event}")
    print("".join(line for line in run.said if "method=POST" not in line))
    for (kind, code), count in sorted(Counter((one.kind, one.code) for one in run.found).items()):
        print(f"{kind} {code}".strip() + f": {count}")
    for name, value in run.counters.items():
        print(f"{name} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--event", default="kill", help=f"all, or some of {', '.join(EVENTS)}")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("build/host_loss"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    names = [*EVENTS] if given.event == "all" else given.event.split(",")
    if unknown := [name for name in names if name not in EVENTS]:
        parser.error(f"--event {', '.join(unknown)}: allowed are all, {', '.join(EVENTS)}")
    runs: dict[str, EventRun] = {}
    for name in names:
        try:
            runs[name] = run(name, given.seconds, given.folder)
        except pytest.skip.Exception as why:
            print(f"--- {name}: {why}")
            continue
        report(name, runs[name])
    print("| event | whole | error | refused | silent | differ | lost | retried | failed |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, one in runs.items():
        print(make_row(name, one))
    if given.json:
        found = {name: [asdict(answer) for answer in one.found] for name, one in runs.items()}
        given.json.write_text(json.dumps(found))
    if given.svg and runs:
        given.svg.write_text(draw([*runs.values()][-1].found, given.seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
