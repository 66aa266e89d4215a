"""A server's mapped weights move while it idles and between its steps; no client notices."""

import socket
import threading
import time
from pathlib import Path

import pytest

from flyweight.build import LoadedModel, build
from flyweight.config import Settings
from flyweight.server import pipe
from flyweight.server.worker.loading import ApiServerGone
from flyweight.server.worker.loop import READ, Worker
from flyweight.types import Request, SamplingParams
from flyweight.weights.packed import shelf

SETTINGS = Settings.of(max_num_seqs=2, threads=1, max_model_len=128)
ASKED = Request("it", tuple(range(20, 40)), SamplingParams(temperature=0), max_tokens=6)


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """A second start."""
    monkeypatch.setattr(shelf, "LEAST", 0)
    monkeypatch.setattr(shelf, "RUN", 2 << 20)
    monkeypatch.setenv("FLYWEIGHT_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("FLYWEIGHT_CACHE_SIZE")
    build(SETTINGS)
    loaded = build(SETTINGS)
    if not loaded.moving.wanted:
        pytest.skip("this system grants no huge pages")
    return loaded


def test_an_idle_engine_moves_all_and_says_nothing(mapped: LoadedModel) -> None:
    ours, theirs = socket.socketpair()
    worker = Worker(theirs)
    worker.host(0, mapped, pipe.EngineSetup({}, 0.2))

    def run() -> None:
        with pytest.raises(ApiServerGone):
            worker.run()

    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + 60
    while mapped.moving.wanted and time.monotonic() < end:
        time.sleep(0.02)
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.recv(1)
    ours.close()
    thread.join(60)
    theirs.close()
    assert not mapped.moving.wanted and not thread.is_alive()


def test_a_busy_engine_moves_between_steps(mapped: LoadedModel) -> None:
    ours, theirs = socket.socketpair()
    worker = Worker(theirs).host(0, mapped, pipe.EngineSetup({}, 0.2))
    worker.take(pipe.Submit.of(ASKED))
    left, tokens, frames = [mapped.moving.left], [], pipe.PipeFrames(pipe.ToFront)
    while worker.engine.busy:
        worker.run_step()
        left.append(mapped.moving.left)
        for _, message in frames.push(ours.recv(READ)):
            tokens += [t for news in message.news for t in news.to_event().tokens]
    ours.close()
    theirs.close()
    assert left[0] > left[1] > left[2] and left[-1] == 0
    alone = build(Settings.of(max_num_seqs=2, threads=1, max_model_len=128, packed_cache=False))
    alone.engine.add(ASKED)
    expected = [t for _ in range(6) for event in alone.engine.step() for t in event.tokens]
    assert tokens == expected
