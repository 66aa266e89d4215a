"""`flyweight bench startup [MODEL]`: how long a new process takes to its first token."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.bench import options as by
from flyweight.config import Settings, find_peer_python, whole

Rounds = Annotated[
    int, typer.Option("-r", "--repetitions", metavar="N", help="Starts to measure after the first.")
]
Longest = Annotated[
    int | None, typer.Option(metavar="TOKENS", help="Longest prompt and answer together.")
]


def startup(
    model: opt.Model = "stories",
    repetitions: Rounds = 5,
    threads: by.Threads = None,
    max_model_len: Longest = 2048,
    memory_limit: Annotated[str, opt.make_option("memory_limit")] = "80%",
    vs: by.Vs = None,
    vs_python: by.VsPython = None,
    as_json: opt.AsJson = False,
) -> None:
    """Time `flyweight run MODEL Once -n 1` up to its first token.

    The first start packs the weights, the later ones load them packed.
    """
    from flyweight.bench.facts import measure_size
    from flyweight.bench.peer import PeerArgument, PeerMethod
    from flyweight.bench.startup import measure_startup as measured
    from flyweight.cli.bench.progress import show_measuring
    from flyweight.describe import find

    whole("repetitions", repetitions, 1, 1000)
    settings = Settings.of(
        model=model, threads=threads, max_model_len=max_model_len, memory_limit=memory_limit
    )
    options = ["--memory-limit", memory_limit]
    options += ["--threads", str(threads)] if threads else []
    options += ["--max-model-len", str(max_model_len)] if max_model_len else []
    peers = [PeerArgument.of(name) for name in vs or ()]
    means = PeerMethod(threads or count_cores(), find_peer_python(vs_python))
    with show_measuring() as listener:
        path = find(settings, listener)
        starts = measured(
            str(path), options, repetitions, peers, means, listener.round, listener.warn
        )
    if as_json:
        print(json.dumps({"model": str(path), "bytes": measure_size(path), **starts.to_document()}))
        return
    cold, warm, peak = starts.cold, starts.middle, max(one.peak for one in starts.warm)
    mib, file = 1 << 20, measure_size(path)
    print(
        f"First start:   {cold.first:.3f} s to the first token, {cold.peak / mib:.0f} MiB at most"
    )
    print(
        f"Later starts:  {warm.median:.3f} [{warm.least:.3f}..{warm.most:.3f}] s, "
        f"{peak / mib:.0f} MiB at most"
    )
    print(f"The file:      {file / mib:.0f} MiB; {file / warm.median / 1e9:.2f} GB/s of it a start")
    for label, times in starts.peers.items():
        ratio = starts.compute_ratio(label)
        print(
            f"{label}: {sorted(times)[len(times) // 2]:.3f} s; "
            f"ours is {ratio.median:.2f} [{ratio.least:.2f}..{ratio.most:.2f}] times as fast"
        )


def count_cores() -> int:
    from flyweight.plan.machine import read_machine

    return read_machine().cores
