"""A server with replicas on two hosts, one of which is lost under load and comes back.

    python bench/host_loss.py [--event kill|cut] [--seconds 60] [--json FILE] [--svg FILE]

The hosts are network namespaces of this machine (tests/hosts.py), joined to one Ray cluster; each
has one replica.  Clients stream greedy answers all the time.  After a third of the time all
processes of the second host are killed, or its link is cut; after two thirds it joins the cluster
again, or the link is restored.  Printed are the server's log, how answers ended, and how many ended
in each second.

Needs the extra `distributed`, iproute2, and the right to make namespaces.
"""

import argparse
import http.client
import json
import os
import secrets
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from flyweight.planning.plots import LinePlot, Series  # noqa: E402
from flyweight.planning.svg import draw_lines  # noqa: E402
from host_servers import HostServer, serving  # noqa: E402
from hosts import Host, make_hosts  # noqa: E402

PORT = 6379  # of Ray
CLIENTS = 6
PROMPTS = ("Once upon a time", "The little dog", "One day, Tom and Sue went to the park")
BODY = {"temperature": 0, "max_tokens": 200, "ignore_eos": True, "stream": True}
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
    """Lets a host join the cluster of `head`, or start one; returns once it has."""
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
    return {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


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


def run(
    event: str, seconds: float, folder: Path
) -> tuple[list[Outcome], list[str], dict[str, str]]:
    """Outcomes, the server's log, and its counters at the end."""
    token = secrets.token_hex(32)
    with ExitStack() as stack:
        first, second = stack.enter_context(make_hosts(2))
        start_ray(first, None, token, folder)
        start_ray(second, first, token, folder)
        lose, recover = {
            "kill": (second.kill_all, lambda: start_ray(second, first, token, folder)),
            "cut": (second.cut, second.restore),
        }[event]
        words = ("--ray-address", f"{first.address}:{PORT}", "--replicas", "2", "--threads", "1")
        limits = ("--max-model-len", "512", "--memory-limit", "2GiB", "--no-coalesce-requests")
        server = stack.enter_context(
            serving(first, "stories", *words, *limits, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
        )
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
        lose()
        time.sleep(max(0.0, began + 2 * seconds / 3 - time.monotonic()))
        recover()
        for one in clients:
            one.join()
        lines = server.get("/metrics").body.decode().splitlines()
        counters = dict(
            line.rsplit(" ", 1) for line in lines if line.startswith("flyweight:replica_")
        )
        wrong = [one for one in found if one.kind == WHOLE and one.text != expected[one.prompt]]
        counters["answers that differ"] = str(len(wrong))
        return found, server.said, counters


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
        LinePlot("Two replicas on two hosts, one of which is lost", "seconds", "answers a second",
                 tuple(series))
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--event", choices=("kill", "cut"), default="kill")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("build/host_loss"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    found, said, counters = run(given.event, given.seconds, given.folder)
    print("".join(line for line in said if "method=POST" not in line))
    for (kind, code), count in sorted(Counter((one.kind, one.code) for one in found).items()):
        print(f"{kind} {code}".strip() + f": {count}")
    for name, value in counters.items():
        print(f"{name} {value}")
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found]))
    if given.svg:
        given.svg.write_text(draw(found, given.seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
