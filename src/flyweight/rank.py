"""The process of one rank of a model, other than rank 0: `python -m flyweight.rank`.

Reads a `RankSetup` from its standard input, loads its part of the weights, reports that, and
computes steps until rank 0 is gone.

Invariant: ends with its standard input.  Knows no requests and no sampling.
"""

import os
import sys
from pathlib import Path
from threading import Thread
from typing import Never

import msgspec

from flyweight.backends import choose_backend
from flyweight.build import load_weights
from flyweight.config import Limits, Settings
from flyweight.describe import SilentListener, describe
from flyweight.engine.runner import Runner
from flyweight.errors import FlyweightError, RankLost
from flyweight.kv.memory import allocate_kv
from flyweight.parallel.connections import RankConnections
from flyweight.parallel.messages import read_step
from flyweight.parallel.nodes.messages import RankSetup
from flyweight.parallel.numa import stay_on
from flyweight.parallel.rendezvous import KeyValue, RankMessage, RankReport, SharedKeys
from flyweight.parallel.sharding import cut_description


def run(setup: RankSetup, keys: SharedKeys) -> Never:
    """Loads, then computes steps until rank 0 is gone."""
    settings = Settings.of(**setup.settings)
    limits = Limits(**setup.limits)
    found = describe(Path(setup.settings["model"]), settings.quantization)
    found = cut_description(found, setup.place)
    ops = choose_backend(settings, 1, local_rank=setup.local_rank)
    weights, moving, _ = load_weights(settings, found, ops, SilentListener())
    kv = allocate_kv(found.spec, ops, limits, setup.kv_dtype)
    found.checkpoint.close()
    report(RankReport(setup.rank))
    connections = RankConnections(keys, setup.place, setup.address)
    model = connections.make_model(ops, found.spec, weights, limits.max_model_len)
    runner = Runner(model, ops, kv)
    while True:
        step = read_step(connections.everyone.broadcast(None))
        runner.compute(step.batch, step.moves)
        connections.finish_step()
        moving.step()


def report(message: RankMessage) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def read_keys(keys: SharedKeys) -> Never:
    """Takes the keys of other ranks, and ends this process when the one that started it closes its
    pipe.
    """
    for line in sys.stdin.buffer:
        keys.put(msgspec.json.decode(line, type=KeyValue))
    os._exit(0)


def main() -> int:
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=RankSetup)
    keys = SharedKeys(report)
    Thread(target=read_keys, args=(keys,), daemon=True).start()
    try:
        with stay_on(setup.cores):
            run(setup, keys)
    except FlyweightError as error:
        report(RankReport(setup.rank, str(error)))
        return 2
    except RankLost:
        return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a thread waits for the standard input, which the interpreter would wait for
