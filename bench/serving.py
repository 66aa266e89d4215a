"""Serving compared with llama.cpp: the same loads on both servers, in turn, on one model file.

    python bench/serving.py MODEL.gguf [--loads mixed16,mixed64,document8] [--rounds 3] [--scale 1]
                            [--threads N] [--llama-flags '-fa off'] [--results FILE]

`mixed16` and `mixed64` are 24 and 64 prompts of 128 to 512 tokens and answers of 64 to 128 at 16
and 64 streams, drawn at temperature 1; `document8` is 24 questions on one document of 3,000 tokens,
8 at once.  LLAMA_SERVER names llama.cpp's llama-server; without it FLYWEIGHT_PEER_PYTHON's
`llama_cpp.server` is measured, which answers one request at a time.  A server is started for each
load and ended after it; when it is ready it has some seconds' rest.  Prompts are token ids, answers
have their whole length.  Rounds go ours, theirs, ours, ...; figures are medians of the rounds,
`better` the median of each round's ratio.
"""

import argparse
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

READY = 180  # seconds for a server to load
REST = 5  # seconds between ready and loaded: what a server does once it is ready is not its load
STOP = 60  # seconds for one to end
OURS, THEIRS = "flyweight", "llama.cpp"


@dataclass(frozen=True)
class Load:
    """Requests, how many at once, tokens each may need, and options of `bench serve`."""

    requests: int
    streams: int
    context: int
    options: tuple[str, ...]


VARIED = (
    "--random-input-len", "320", "--random-output-len", "96",
    "--random-range-ratio", '{"input": 0.6, "output": 0.333}', "--temperature", "1",
)  # fmt: skip
LOADS = {
    "mixed16": Load(24, 16, 1024, VARIED),
    "mixed64": Load(64, 64, 1024, VARIED),
    "document8": Load(
        24, 8, 4096,
        ("--random-prefix-len", "3000", "--random-input-len", "40", "--random-output-len", "32",
         "--random-range-ratio", '{"input": 0.5}'),
    ),
}  # fmt: skip
FIGURES = {
    "output tokens/s": ("output_throughput", True),
    "TTFT median, ms": ("median_ttft_ms", False),
    "TTFT p99, ms": ("p99_ttft_ms", False),
    "ITL median, ms": ("median_itl_ms", False),
    "ITL p99, ms": ("p99_itl_ms", False),
    "seconds": ("duration", False),
}


def ours(model: Path, load: Load, args: argparse.Namespace, port: int) -> list[str]:
    words = [sys.executable, "-m", "flyweight.cli.main", "serve", str(model), "--port", str(port)]
    words += ["--max-model-len", str(load.context), "--max-num-seqs", str(load.streams)]
    words += ["--threads", str(args.threads)]
    return [*words, *shlex.split(args.our_flags)]


def theirs(model: Path, load: Load, args: argparse.Namespace, port: int) -> list[str]:
    """llama-server with a slot a stream; its contexts lie side by side in one."""
    binary = os.environ.get("LLAMA_SERVER")
    if binary is None:
        python = os.environ.get("FLYWEIGHT_PEER_PYTHON") or sys.executable
        words = [python, "-m", "llama_cpp.server", "--model", str(model), "--port", str(port)]
        words += ["--n_ctx", str(load.context), "--n_threads", str(args.threads)]
        return [*words, "--n_threads_batch", str(args.threads), *shlex.split(args.llama_flags)]
    words = [binary, "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    words += ["-np", str(load.streams), "-c", str(load.context * load.streams)]
    words += ["-t", str(args.threads), "-tb", str(args.threads)]
    return [*words, *shlex.split(args.llama_flags)]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def running(words: list[str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process; what it says is in `log`."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rested(port: int, server: subprocess.Popen[bytes]) -> None:
    """Waits until a server answers, and a while longer; the client reports one that does not."""
    answering(port, server)
    time.sleep(REST)


def answering(port: int, server: subprocess.Popen[bytes]) -> None:
    """Waits until a server answers."""
    late = time.monotonic() + READY
    while server.poll() is None and time.monotonic() < late:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
                break
        except OSError:
            time.sleep(0.2)


def measured(engine: str, name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One load on a server of its own."""
    load, port = LOADS[name], free_port()
    start = (ours if engine == OURS else theirs)(args.model, load, args, port)
    count = max(1, round(load.requests * args.scale))
    words = [sys.executable, "-m", "flyweight.cli.main", "bench", "serve", "--json"]
    words += ["--port", str(port), "--ready-check-timeout-sec", str(READY), "--seed", str(seed)]
    words += ["--num-prompts", str(count), "--max-concurrency", str(load.streams)]
    words += ["--prompt-form", "ids", "--ignore-eos", *load.options]
    with tempfile.TemporaryFile() as log:
        with running(start, log) as server:
            rested(port, server)
            client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            while client.poll() is None and server.poll() is None:
                time.sleep(0.1)
            if client.poll() is None:
                client.terminate()  # the server is gone
            said, _ = client.communicate()
        if client.returncode:
            log.seek(0)
            last = log.read().decode("utf-8", "replace").splitlines()[-5:]
            print(f"{engine}, {name}: failed; its last words:", *last, sep="\n", file=sys.stderr)
            sys.exit(1)
    found: dict[str, Any] = json.loads(said)
    if found["failed"]:
        print(f"{engine}, {name}: {found['failures']}", file=sys.stderr)
    return {"engine": engine, "load": name, "seed": seed, "command": shlex.join(start), **found}


def table(name: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """Medians of the rounds, and how many times better ours are where both were measured."""
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    columns = [[row for row in rows if row["engine"] == engine] for engine in engines]
    count, both = columns[0][0]["num_prompts"], len(engines) == 2
    yield f"{name}: {count} requests, {LOADS[name].streams} at once; {len(columns[0])} rounds"
    heads = "".join(f" {engine:>12}" for engine in engines)
    yield f"  {'':18}{heads}{'   better' if both else ''}"
    for label, (key, more) in FIGURES.items():
        values = [[row[key] for row in column] for column in columns]
        line = "".join(f" {statistics.median(column):>12.1f}" for column in values)
        if both:
            rounds = [(a, b) if more else (b, a) for a, b in zip(*values, strict=True)]
            if all(below > 0 for _, below in rounds):  # chunks of one read have no time between
                ratio = statistics.median(above / below for above, below in rounds)
                line += f" {f'x{ratio:.2f}':>8}"
        yield f"  {label:18}{line}"
    busy = statistics.median(row["client_us_per_chunk"] for row in rows)
    yield f"  the client took {busy:.0f} us of processor time a chunk"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1, help="of the number of requests")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--our-flags", default="")
    parser.add_argument("--llama-flags", default="")
    parser.add_argument("--only", choices=(OURS, THEIRS))
    parser.add_argument("--results", type=Path, help="every round is added here as a line of JSON")
    args = parser.parse_args()
    engines = [args.only] if args.only else [OURS, THEIRS]
    for name in args.loads.split(","):
        rows = []
        for seed in range(args.rounds):
            for engine in engines:
                rows.append(measured(engine, name, seed, args))
                rate = f"{rows[-1]['output_throughput']:.1f} tokens/s"
                print(f"{name}, round {seed + 1}, {engine}: {rate}", file=sys.stderr)
                if args.results:
                    with args.results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
        print(*table(name, rows), sep="\n", flush=True)


if __name__ == "__main__":
    main()
