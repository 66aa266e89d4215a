"""The engine process: builds the engine that the first message describes, then runs its loop.

Invariant: an error while loading is sent over the pipe and ends this process only.  Knows no HTTP
and no text.
"""

import gc
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from flyweight.build import LoadedModel, build
from flyweight.config import Settings
from flyweight.errors import FlyweightError
from flyweight.server import pipe
from flyweight.server.worker.loop import READ, ClientGoneWhileLoading, LoadingReporter, Worker


def describe_engine(loaded: LoadedModel, settings: Settings) -> dict[str, Any]:
    """The facts of a built engine that the API server needs."""
    limits, plan = loaded.limits, loaded.memory
    return {
        "vocab": loaded.spec.vocab,
        "width": loaded.spec.hidden,
        "max_model_len": limits.max_model_len,
        "scored": limits.scored,
        "adapters": list(settings.adapters),
        "blocks": limits.blocks,
        "block_size": limits.block_size,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "prefix_caching": limits.prefix_caching,
        "kv_sample": settings.kv_cache_metrics_sample if settings.kv_cache_metrics else 0.0,
        "threads": plan.sizing.threads,
        "isa": loaded.isa,
        "kv_dtype": plan.sizing.kv_dtype,
        "memory": {
            "weights": plan.weights,
            "kv": plan.kv,
            "grammars": plan.sizing.grammars,
            "need": plan.need,
            "limit": plan.limit,
        },
    }


def serve(line: socket.socket) -> int:
    """Builds the engine that the first message describes, and runs it."""
    frames = pipe.PipeFrames(pipe.ToEngine)
    begun: list[Any] = []
    while not begun:
        data = line.recv(READ)
        if not data:
            return 0
        begun = frames.push(data)
    begin = begun[0]
    gc.disable()  # nothing that loading makes is garbage
    try:
        settings = Settings.of(**begin.settings)
        loaded = build(settings, LoadingReporter(line), served=True)
        worker = Worker(line, loaded, begin)
    except FlyweightError as error:
        with suppress(OSError):  # the front end may have refused it first, and be gone
            line.sendall(pipe.encode_frame(pipe.Failed(str(error))))
        return 2
    except ClientGoneWhileLoading:
        return 0
    gc.freeze()  # what lives as long as the process is not looked at again
    gc.enable()
    try:
        line.sendall(pipe.encode_frame(pipe.Ready(describe_engine(loaded, settings))))
        for message in begun[1:]:
            worker.take(message)
        worker.run()
    except (ClientGoneWhileLoading, OSError):
        return 0
    return 1


if __name__ == "__main__":
    # Ctrl-C, `timeout` and systemd reach the whole group; when the engine ends is the front end's
    # to say, by closing the pipe.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
