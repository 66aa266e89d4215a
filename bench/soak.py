"""A mixed soak of `flyweight serve` with three models.

    python bench/soak.py [--minutes 120] [--browser] [--results soak.json] [--plot soak.svg]

Eight clients with three API keys send chats, completions, embeddings and structured output, half of
them streamed, and leave some streams early.  An operator loads and unloads models, a reader fetches
the page's data (with --browser, Chromium keeps the page open as well), and the same canary requests
are sent throughout.  The disk with prefix cache and log is full once for a minute, and the engine
is killed once.  Exit code 1: a rule is broken (docs/reliability.md).  A run of less than 30 minutes
is a trial: growth is reported and not judged.  FLYWEIGHT_DATA has two of the models.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests")]

from soak_parts.actors import SoakActors, SoakPace, wait_until_idle  # noqa: E402
from soak_parts.client import ANSWERED, SentRequest, send  # noqa: E402
from soak_parts.plot import draw_soak  # noqa: E402
from soak_parts.record import SoakRecord  # noqa: E402
from soak_parts.rules import judge_run, make_document, make_report  # noqa: E402
from soak_parts.serving import SoakServer, find_models, read_log_end, serving  # noqa: E402
from soak_parts.watch import sum_metric  # noqa: E402

TOTALS = {
    "prompt tokens": "vllm:prompt_tokens_total",
    "generated tokens": "vllm:generation_tokens_total",
    "tokens from the prefix cache": "vllm:prefix_cache_hits_total",
    "tokens from the external prefix cache": "vllm:external_prefix_cache_hits_total",
    "requests that shared a computation": "flyweight:coalesced_requests_total",
    "preemptions": "vllm:num_preemptions_total",
    "model loads": "flyweight:model_loads_total",
}
RESTARTS = "flyweight:engine_restarts_total"


async def soak(server: SoakServer, record: SoakRecord, pace: SoakPace, seed: int) -> None:
    """The run, and what is found at its end."""
    await SoakActors(server, record, pace, seed).run()
    record.facts["idle"] = await wait_until_idle(server, record)
    request = SentRequest("at the end", "GET", "/metrics", None, server.keys[0])
    page = record.add(await send(server.running.port, request, record.now)).body.decode()
    record.facts["totals"] = {name: sum_metric(page, metric) for name, metric in TOTALS.items()}
    record.facts["restarts"] = sum_metric(page, RESTARTS)


def run(server: SoakServer, args: argparse.Namespace) -> SoakRecord:
    record = SoakRecord(60 * args.minutes)
    record.facts["has_disk"] = server.has_disk
    watcher = None
    if args.browser:
        from soak_parts.page_watch import PageWatcher

        watcher = PageWatcher(server.running.port, server.keys[2])
        watcher.start()
    pace = SoakPace.of(args.minutes, args.clients, args.rate)
    asyncio.run(soak(server, record, pace, args.seed))
    if watcher is not None:
        watcher.stop()
        record.facts["page"] = {
            "trouble": watcher.trouble, "chats": watcher.chats, "heap": watcher.heap,
        }  # fmt: skip
    log = read_log_end(server)
    record.facts["exit_code"] = server.running.stop()
    record.facts["log_end"] = log
    return record


def write_results(record: SoakRecord, document: dict[str, Any], args: argparse.Namespace) -> None:
    args.results.write_text(json.dumps(document, indent=1))
    if len(record.samples) > 1:
        args.plot.write_text(draw_soak(record.samples, record.events), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rate", type=float, default=6, help="requests a second of all clients")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--browser", action="store_true", help="keep the page open in Chromium")
    parser.add_argument("--results", type=Path, default=Path("soak.json"))
    parser.add_argument("--plot", type=Path, default=Path("soak.svg"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        models = find_models(folder)
        with serving(models, folder) as server:
            record = run(server, args)
    rules = judge_run(record)
    write_results(record, make_document(record, rules), args)
    print(make_report(record, rules))
    print(f"\n{record.count(ANSWERED)} answered; {args.results}, {args.plot}")
    sys.exit(int(any(rule.kept is False for rule in rules)))


if __name__ == "__main__":
    main()
