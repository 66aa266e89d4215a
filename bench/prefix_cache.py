"""Time to the first token of a repeated prompt, before and after a restart of the server.

    python bench/prefix_cache.py [MODEL] [--tokens 3000] [--rounds 5] [--threads 2]

Without a model, the one in the package; `06b` writes a file of Qwen3-0.6B's shape with random
weights, and removes it.  Each round has a prompt of its own: a server with an empty directory
answers it (cold), then again from its own K/V memory (here), and a server that is started after it
answers it once (restarted).  Figures are medians; times are of whole requests for one token.
The file of blocks is in the page cache, as it is after a restart of the server alone.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

LONGEST = 120.0  # seconds for a start, or an answer


@contextmanager
def serve(model: str, folder: str, options: argparse.Namespace) -> Iterator[str]:
    """The address of a server that is ready."""
    words = ["serve", *([model] if model else []), "--port", "0", "--threads", str(options.threads)]
    words += ["--max-model-len", str(options.tokens + 64), "--prefix-cache-dir", folder]
    command = [sys.executable, "-m", "flyweight", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "http://127.0.0.1:" in line:
                break
        try:
            yield line.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


def time_request(address: str, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens were cached."""
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()
    headers = {"Content-Type": "application/json"}
    began = time.perf_counter()
    with urlopen(Request(f"{address}/v1/completions", body, headers), timeout=LONGEST) as reply:
        usage = json.load(reply)["usage"]
    return time.perf_counter() - began, usage["prompt_tokens_details"]["cached_tokens"]


def measure(model: str, options: argparse.Namespace) -> None:
    rng = random.Random(0)

    def draw() -> list[int]:
        return [rng.randrange(300, 1500) for _ in range(options.tokens)]

    prompts = [draw() for _ in range(options.rounds)]
    with tempfile.TemporaryDirectory() as folder:
        with serve(model, folder, options) as address:
            time_request(address, draw())  # finds the server cold
            cold = [time_request(address, prompt) for prompt in prompts]
            here = [time_request(address, prompt) for prompt in prompts]
        size = sum(os.path.getsize(path) for path in Path(folder).glob("*.blocks"))
        with serve(model, folder, options) as address:
            time_request(address, draw())
            restarted = [time_request(address, prompt) for prompt in prompts]
    print(f"{options.tokens} tokens, {size / 2**20:.0f} MiB of blocks, {options.rounds} prompts")
    first = median(seconds for seconds, _ in cold)
    for name, times in (("cold", cold), ("here", here), ("restarted", restarted)):
        seconds = median(seconds for seconds, _ in times)
        cached = min(count for _, count in times)
        print(f"{name:10} {seconds * 1e3:8.1f} ms  {seconds / first:6.1%}  {cached} tokens cached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.model != "06b":
        measure(options.model, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        tests = Path(__file__).parents[1] / "tests"
        sys.path.insert(0, str(tests))
        from big_model import write_06b

        measure(str(write_06b(Path(folder) / "06b.gguf")), options)


if __name__ == "__main__":
    main()
