"""Prefill and decode on different servers: gaps between tokens of streams, while long prompts come.

    python bench/prefill_decode.py [MODEL] [--rounds 3] [--seconds 20] [--streams 4] [--storm 2]
                                   [--prompt-tokens 352] [--block-size 32] [--cores 0,1]
                                   [--arrangements one,mixed,split] [--json]

Arrangements of servers on the same cores:

- `one`: a server with a thread on each core;
- `mixed`: equal servers, each on one core with one thread; streams and long prompts are sent to
  them in turn;
- `split`: a prefill server, and a decode server that fetches its blocks, each on one core with one
  thread, behind examples/prefill_decode_proxy.py on the prefill server's core.

`--streams` clients each have short prompts answered with `ANSWER` tokens, one after another;
`--storm` clients each send long prompts of random ids and read `LONG_ANSWER` tokens.  Prompts are
up to a block longer than `--prompt-tokens`, at random: a decode server computes what is beyond the
last whole block, and smaller blocks leave it less.  ITL is the time between two events of the
streams only, TTFT that of the long prompts, tokens/s all tokens of answers.

Arrangements run in turn, the last first in every other round, each time on new servers; figures are
medians of the rounds.  The clients run on the same cores as the servers.  `cached` is the share of
long prompts that was in a cache, or was fetched from the prefill server.

Fetching pays where a prompt takes longer to compute than to send: not with the model inside, but
with the 1B shape of bench/make_shapes.py and `--rounds 1 --seconds 40 --prompt-tokens 768
--block-size 16`.
"""

import argparse
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving import REST, answering, free_port, running

PROXY = Path(__file__).parents[1] / "examples" / "prefill_decode_proxy.py"
ARRANGEMENTS = ("one", "mixed", "split")
ANSWER, LONG_ANSWER = 128, 8  # tokens
SHORT = 16  # tokens of a stream's prompt
WAIT = 600  # seconds for an event
IDS = range(300, 1000)  # of random prompts: ordinary tokens of every vocabulary measured here
QUANTILES = 0.5, 0.9, 0.99
FIGURES = ("ITL p50, ms", "ITL p90, ms", "ITL p99, ms", "TTFT p50, ms", "TTFT p90, ms",
           "TTFT p99, ms", "tokens/s", "long prompts", "cached")  # fmt: skip


@dataclass
class Record:
    """What clients of a round saw; `cached` and `prompts` are tokens of long prompts."""

    gaps: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    tokens: int = 0
    cached: int = 0
    prompts: int = 0

    def add(self, other: "Record") -> None:
        self.gaps += other.gaps
        self.first += other.first
        self.tokens += other.tokens
        self.cached += other.cached
        self.prompts += other.prompts

    def summarize(self, seconds: float) -> dict[str, float]:
        figures = [1e3 * find_quantile(times, q) for times in (self.gaps, self.first)
                   for q in QUANTILES]  # fmt: skip
        rest = [self.tokens / seconds, len(self.first), self.cached / max(1, self.prompts)]
        return dict(zip(FIGURES, [*figures, *rest], strict=True))


class Client:
    """Sends requests to `ports` in turn until `end`."""

    def __init__(self, ports: Sequence[int], number: int, end: float) -> None:
        self.ports, self.number, self.end = ports, number, end
        self.record, self.draw = Record(), random.Random(number)

    def stream(self) -> None:
        """Short prompts with long answers."""
        while time.monotonic() < self.end:
            last = 0.0
            for at, event in self.request(SHORT, ANSWER):
                if last and at < self.end and event["choices"]:
                    self.record.gaps.append(at - last)
                last = at

    def storm(self, prompt_tokens: int, block: int) -> None:
        """Long prompts with short answers."""
        while (began := time.monotonic()) < self.end:
            usage: dict[str, Any] = {}
            length = prompt_tokens + self.draw.randrange(block)
            for count, (at, event) in enumerate(self.request(length, LONG_ANSWER)):
                if not count:
                    self.record.first.append(at - began)
                usage = event.get("usage") or usage
            self.record.prompts += usage["prompt_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            self.record.cached += details.get("cached_tokens") or 0

    def request(self, prompt: int, answer: int) -> Iterator[tuple[float, dict[str, Any]]]:
        """The events of one request, of which the last has no choice, and when each came."""
        usage = {"include_usage": True, "continuous_usage_stats": True}
        body = {"prompt": self.draw.choices(IDS, k=prompt), "max_tokens": answer,
                "ignore_eos": True, "stream": True, "stream_options": usage}  # fmt: skip
        port = self.ports[self.number % len(self.ports)]
        self.number += 1
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
        line.request("POST", "/v1/completions", json.dumps(body),
                     {"content-type": "application/json"})  # fmt: skip
        reply = line.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"port {port} answered {reply.status}: {reply.read()!r}")
        tokens = 0
        for raw in reply:
            if not raw.startswith(b"data: ") or raw.startswith(b"data: [DONE]"):
                continue
            now, event = time.monotonic(), json.loads(raw[len(b"data: ") :])
            known = (event.get("usage") or {}).get("completion_tokens", tokens)
            if now < self.end:
                self.record.tokens += known - tokens
            tokens = known
            yield now, event
        line.close()


@contextmanager
def serving(name: str, args: argparse.Namespace, folder: Path) -> Iterator[list[int]]:
    """The ports that clients use of an arrangement's servers."""
    cores = [args.cores] if name == "one" else [[core] for core in args.cores]
    ports = [free_port() for _ in cores]
    options: list[list[str]] = [[] for _ in cores]
    if name == "split":
        blocks = f"127.0.0.1:{free_port()}"
        shared = ["--prefix-cache-secret-file", str(write_secret(folder)), "--prefix-cache-dir"]
        options[0] = [*shared, str(folder / "prefill"), "--prefix-cache-listen", blocks]
        options[1] = [*shared, str(folder / "decode"), "--prefix-cache-peers", blocks]
    with ExitStack() as stack:
        log = stack.enter_context(open(folder / "log", "wb"))
        servers = [
            stack.enter_context(running([*make_command(own, port, args), *more], log))
            for own, port, more in zip(cores, ports, options, strict=True)
        ]
        for port, server in zip(ports, servers, strict=True):
            answering(port, server)
        if name == "split":
            ports = [stack.enter_context(proxying(ports, args, log))]
        time.sleep(REST)
        try:
            yield ports
        finally:
            show_failures(folder / "log")


def make_command(cores: Sequence[int], port: int, args: argparse.Namespace) -> list[str]:
    """A server with a thread on each of these cores."""
    model = [] if args.model is None else [str(args.model), "--no-packed-cache"]
    words = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m", "flyweight.cli.main"]
    words += ["serve", *model, "--threads", str(len(cores)), "--port", str(port)]
    words += ["--block-size", str(args.block_size)]
    return [*words, "--max-model-len", str(args.prompt_tokens + args.block_size + ANSWER)]


def show_failures(log: Path) -> None:
    """The last that servers and proxy said of errors, and of hand-offs that were given up."""
    lines = log.read_text("utf-8", "replace").splitlines()
    said = [line for line in lines if "error" in line or "given up" in line]
    print(*said[-10:], sep="\n", end="\n" if said else "", file=sys.stderr)


@contextmanager
def proxying(ports: Sequence[int], args: argparse.Namespace, log: Any) -> Iterator[int]:
    """The port of a proxy."""
    port = free_port()
    words = ["taskset", "-c", str(args.cores[0]), sys.executable, str(PROXY)]
    words += ["--prefill", f"127.0.0.1:{ports[0]}", "--decode", f"127.0.0.1:{ports[1]}"]
    words += ["--port", str(port), "--threshold", str(max(1, args.prompt_tokens // 2))]
    words += ["--block-size", str(args.block_size)]
    with running(words, log) as process:
        answering(port, process)
        yield port


def write_secret(folder: Path) -> Path:
    path = folder / "secret"
    path.touch(mode=0o600)
    path.write_bytes(os.urandom(32))
    return path


def measure(name: str, number: int, args: argparse.Namespace) -> dict[str, float]:
    """A round of one arrangement."""
    with tempfile.TemporaryDirectory() as folder, serving(name, args, Path(folder)) as ports:
        end = time.monotonic() + args.seconds
        seeds = [1000 * number + one for one in range(args.streams + args.storm)]
        clients = [Client(ports, seed, end) for seed in seeds]
        with ThreadPoolExecutor(len(clients)) as pool:
            work = [pool.submit(one.stream) for one in clients[: args.streams]]
            storm = clients[args.streams :]
            work += [pool.submit(one.storm, args.prompt_tokens, args.block_size) for one in storm]
            for one in work:
                one.result()
        record = Record()
        for client in clients:
            record.add(client.record)
        return record.summarize(args.seconds)


def find_quantile(times: Sequence[float], q: float) -> float:
    """Of measured times; not a number where there are none."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--storm", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=352)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--cores", default="0,1", help="of the two servers")
    parser.add_argument("--arrangements", default=",".join(ARRANGEMENTS))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.cores = [int(core) for core in args.cores.split(",")]
    names = args.arrangements.split(",")
    if unknown := set(names) - set(ARRANGEMENTS):
        parser.error(f"--arrangements: {', '.join(sorted(unknown))}: not of {ARRANGEMENTS}")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names[:: -1 if number % 2 else 1]:
            rounds[name].append(found := measure(name, number, args))
            seen = ", ".join(f"{figure} {value:.2f}" for figure, value in found.items())
            print(f"round {number + 1}, {name}: {seen}", file=sys.stderr, flush=True)
    medians = {
        name: {figure: statistics.median(one[figure] for one in own) for figure in FIGURES}
        for name, own in rounds.items()
    }
    if args.json:
        print(json.dumps({"rounds": rounds, "medians": medians}))
        return
    print(f"{'':14}", *(f"{name:>10}" for name in names))
    for figure in FIGURES:
        print(f"{figure:14}", *(f"{medians[name][figure]:10.2f}" for name in names))


if __name__ == "__main__":
    main()
