"""Shares of step time of two models that are both busy, against their weights.

    python bench/step_shares.py [LIGHT] [HEAVY] [--weights 30 70] [--seconds 30] [--streams 4]

Starts a server with both, keeps so many streams on each, and reads how long each engine computed
(`flyweight:busy_seconds_total`).  Exit code 1: a share is more than five points from its weight's.
"""

import argparse
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from http_server import Running, started  # noqa: E402

NAMES = ("light", "heavy")
BUSY = r'^flyweight:busy_seconds_total{{[^}}]*model_name="{}"[^}}]*}} (\S+)$'
POINTS = 0.05
SETTLING = 2.0  # seconds until both have work


def read_busy(server: Running) -> tuple[float, float]:
    page = server.get("/metrics").body.decode()
    light, heavy = (float(re.findall(BUSY.format(name), page, re.M)[0]) for name in NAMES)
    return light, heavy


def keep_busy(server: Running, name: str, over: threading.Event) -> None:
    body = {"model": name, "prompt": f"Once {threading.get_ident()}", "max_tokens": 200}
    while not over.is_set():
        server.post("/v1/completions", {**body, "ignore_eos": True})


def measure(server: Running, streams: int, seconds: float) -> tuple[float, float]:
    """Seconds that each engine computed in so many seconds."""
    over = threading.Event()
    threads = [
        threading.Thread(target=keep_busy, args=(server, name, over), daemon=True)
        for name in NAMES
        for _ in range(streams)
    ]
    for one in threads:
        one.start()
    time.sleep(SETTLING)
    began = read_busy(server)
    time.sleep(seconds)
    light, heavy = (end - begin for end, begin in zip(read_busy(server), began, strict=True))
    over.set()
    for one in threads:
        one.join()
    return light, heavy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="*", default=["stories", "stories-draft"])
    parser.add_argument("--weights", nargs=2, type=float, default=(30.0, 70.0))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "models.yaml"
        entries = zip(NAMES, given.models, given.weights, strict=True)
        lines = [
            f"  {name}: {{model: {model}, weight: {weight}, preload: true}}"
            for name, model, weight in entries
        ]
        file.write_text("\n".join(["models:", *lines, ""]))
        with started("--models-file", str(file), "--no-coalesce-requests") as server:
            light, heavy = measure(server, given.streams, given.seconds)
    share, wanted = light / (light + heavy), given.weights[0] / sum(given.weights)
    print(f"{light:.2f} s and {heavy:.2f} s of step time: {share:.1%} for the first, by weight "
          f"{wanted:.1%}")  # fmt: skip
    return int(abs(share - wanted) > POINTS)


if __name__ == "__main__":
    sys.exit(main())
