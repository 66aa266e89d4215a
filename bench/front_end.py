"""What a streamed token costs the server's front end, in processor time.

    python bench/front_end.py [--streams 64] [--tokens 256] [--rounds 5] [--chat] [--json]
                              [--profile LINES] [-- OPTIONS OF flyweight serve]

Serves the model inside (or the one OPTIONS name), streams completions over that many connections at
once, and divides the processor time of the front end's process, all threads, user and system, by
the tokens it streamed: the lower quartile of the rounds.  Requests, their prompts and connections
are in it.  The engine's process and this one are not.  With --profile the front end runs under
cProfile, and what took longest in it is shown instead: those times are dearer than real ones.
"""

import argparse
import asyncio
import json
import pstats
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WARM = 2  # rounds that are not counted
USAGE = re.compile(rb'"completion_tokens":(\d+)')
TALK = "{% for m in messages %}{{ m.content }}{% endfor %}"


def processor_seconds(pid: int) -> float:
    """Of all threads a process has and had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    coarse = (int(fields[11]) + int(fields[12])) / 100
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    fine = sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
    return fine or coarse


def request(args: argparse.Namespace, number: int) -> bytes:
    text = f"Once upon a time there were {number} little dogs"
    body = {
        "stream": True, "stream_options": {"include_usage": True}, "max_tokens": args.tokens,
        "ignore_eos": True, "temperature": 0,
    }  # fmt: skip
    ask = {"messages": [{"role": "user", "content": text}]} if args.chat else {"prompt": text}
    raw = json.dumps({**body, **ask}).encode()
    path = "/v1/chat/completions" if args.chat else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


async def stream(port: int, raw: bytes) -> int:
    """One stream, read to its end; the tokens it brought."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    last = b""
    while b"0\r\n\r\n" not in last:
        part = await reader.read(1 << 16)
        if not part:
            break
        last = (last + part)[-2048:]
    writer.close()
    found = USAGE.findall(last)
    if not found:
        raise SystemExit(f"a stream failed: {last[-500:]!r}")
    return int(found[-1])


async def load(args: argparse.Namespace, port: int, pid: int) -> list[tuple[float, int, float]]:
    """Rounds: processor seconds, tokens, wall seconds."""
    rounds = []
    loop = asyncio.get_running_loop()
    for _ in range(WARM + args.rounds):
        before, began = processor_seconds(pid), loop.time()
        streams = [stream(port, request(args, i)) for i in range(args.streams)]
        tokens = sum(await asyncio.gather(*streams))
        rounds.append((processor_seconds(pid) - before, tokens, loop.time() - began))
    return rounds[WARM:]


def serve(args: argparse.Namespace, profile: str) -> subprocess.Popen[str]:
    under = ["-m", "cProfile", "-o", profile] if args.profile else []
    more = ["--chat-template", TALK] if args.chat else []
    command = [sys.executable, *under, "-m", "flyweight.cli.main", "serve", "--port", "0"]
    command += [*more, *args.options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=sys.stderr, text=True)


def port_of(server: subprocess.Popen[str]) -> int:
    assert server.stderr is not None
    for line in server.stderr:
        found = re.search(r"http://\S+:(\d+)", line)
        if found:
            return int(found[1])
    raise SystemExit("the server did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", type=int, default=0, metavar="LINES")
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profile = f"{folder}/front.prof"
        server = serve(args, profile)
        try:
            port = port_of(server)
            rounds = asyncio.run(load(args, port, server.pid))
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate()
        if args.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(args.profile)
            return
    each = sorted(1e6 * seconds / tokens for seconds, tokens, _ in rounds)
    rate = statistics.median(tokens / wall for _, tokens, wall in rounds)
    figures = {
        "front_end_us_per_token": round(each[len(each) // 4], 2),
        "median_us": round(statistics.median(each), 2),
        "tokens_per_second": round(rate, 1),
        "streams": args.streams,
    }
    if args.json:
        print(json.dumps(figures))
        return
    print(
        f"{figures['front_end_us_per_token']} us of front end a streamed token "
        f"(median {figures['median_us']}), {args.streams} streams, {rate:.0f} tokens/s"
    )


if __name__ == "__main__":
    main()
