"""What a server does for grammars before anybody asks for one: their memory is in its plan, and the
vocabulary is read for them while nothing runs.
"""

import socket
import threading
import time

import pytest

from flyweight.build import build
from flyweight.config import Settings
from flyweight.engine.grammars import LIVE_BYTES
from flyweight.model_memory import count_server_bytes
from flyweight.sampling.grammar import compiler_nbytes
from flyweight.server import pipe
from flyweight.server.worker.loading import ApiServerGone, describe_engine
from flyweight.server.worker.loop import Worker

SETTINGS = Settings.of(max_num_seqs=2, threads=1, max_model_len=128)


def test_the_plan_of_a_server_counts_grammars_and_its_other_processes() -> None:
    served, alone = build(SETTINGS, served=True), build(SETTINGS)
    room = LIVE_BYTES + compiler_nbytes(served.spec.vocab)
    assert describe_engine(served, SETTINGS)["memory"]["grammars"] == room
    more = room + count_server_bytes(served.spec.vocab)
    assert served.memory.need == served.memory.base + alone.memory.need - alone.memory.base + more
    assert alone.memory.sizing.grammars == 0


def test_an_idle_engine_reads_the_vocabulary_for_grammars() -> None:
    loaded = build(SETTINGS, served=True)
    ours, theirs = socket.socketpair()
    worker = Worker(theirs)
    worker.host(0, loaded, pipe.EngineSetup({}, 0.2))
    grammars = loaded.engine.grammars
    assert not grammars.prepared

    def run() -> None:
        with pytest.raises(ApiServerGone):
            worker.run()

    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + 60
    while not grammars.prepared and time.monotonic() < end:
        time.sleep(0.02)
    ours.close()
    thread.join(60)
    theirs.close()
    assert grammars.prepared and not grammars.busy and not thread.is_alive()
