"""One engine process behind frames: its streams, and what they are when it is killed."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flyweight import __version__
from flyweight.config import Settings
from flyweight.describe import ASSETS, describe
from flyweight.errors import ConfigError
from flyweight.external_cache import read_code
from flyweight.parallel.cluster import END, ReplicaPlan
from flyweight.server import pipe
from flyweight.server.engine_client import EngineClient
from flyweight.server.engine_host import EngineHost
from flyweight.server.lifecycle.replacing import describe_files
from flyweight.server.replicas.builds import fingerprint_adapters
from flyweight.server.replicas.clocks import ClockedSubmit, measure_epoch
from flyweight.server.replicas.engine_replica import EngineReplica, decode
from flyweight.server.replicas.reports import (
    ALIKE,
    FILES,
    ReplicaReport,
    ReplicaSetup,
    decode_report,
)
from flyweight.types import Request, SamplingParams
from http_server import WAIT
from tiny_model import tiny_adapter, tiny_folder


def make_setup(**more: Any) -> bytes:
    settings = Settings.of(**{"threads": 1, "memory_limit": "300MiB", **more})
    given = pipe.to_portable({slot: getattr(settings, slot) for slot in settings.__slots__})
    return msgspec.msgpack.encode(ReplicaSetup(3, pipe.EngineSetup(given, 0.2)))


def make_frame(id: str, max_tokens: int = 5, shift: float = 0.0, **more: Any) -> bytes:
    """A request of a machine whose monotonic clock is ahead by `shift` seconds."""
    params = SamplingParams(temperature=0, **more)
    arrival = time.monotonic() + shift
    request = Request(id, (1, 2, 3), params, max_tokens=max_tokens, arrival=arrival)
    return msgspec.msgpack.encode(ClockedSubmit(measure_epoch() - shift, pipe.Submit.of(request)))


@asynccontextmanager
async def running(**more: Any) -> AsyncIterator[EngineReplica]:
    replica = EngineReplica(make_setup(), **more)
    await replica.start()
    try:
        yield replica
    finally:
        await replica.close()


def run(work: Callable[[EngineReplica], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running() as replica:
            await work(replica)

    asyncio.run(main())


async def read(replica: EngineReplica, frame: bytes) -> tuple[list[pipe.StepReport], bool]:
    """The reports of a stream, and whether it ended with `END`."""
    found, ended = [], False
    async for data in replica.compute(frame):
        ended = data == END
        found += [message for _, message in pipe.PipeFrames(pipe.ToFront).push(data)]
    return found, ended


def count_tokens(reports: list[pipe.StepReport]) -> int:
    return sum(len(news.tokens) for one in reports for news in one.news)


def test_each_request_has_a_stream_and_each_step_is_counted_once() -> None:
    async def work(replica: EngineReplica) -> None:
        frames = [make_frame("x"), make_frame("y", 9), make_frame("z", 7, n=2)]
        found = await asyncio.gather(*(read(replica, one) for one in frames))
        assert [count_tokens(reports) for reports, _ in found] == [5, 9, 14]
        assert all(ended for _, ended in found)
        ids = [{news.id for one in reports for news in one.news} for reports, _ in found]
        assert ids == [{"x"}, {"y"}, {"z"}]
        steps = [one for reports, _ in found for one in reports if one.gauges.tokens]
        assert len({one.gauges.totals.steps for one in steps}) == len(steps)
        state = msgspec.msgpack.decode(replica.report(), type=ReplicaReport)
        assert state.facts is not None and not state.failed and state.gauges is not None
        answer = decode(
            await replica.tell(pipe.encode_frame(pipe.EngineQuestion(4, "kv"))), pipe.ToFront
        )
        assert answer.value["sequences"] == []

    run(work)


def test_an_engine_reports_what_the_server_reads_of_the_files() -> None:
    async def work(replica: EngineReplica) -> None:
        found = describe(ASSETS / "stories.gguf")
        files = describe_files(found)
        found.checkpoint.close()
        state = msgspec.msgpack.decode(replica.report(), type=ReplicaReport)
        assert state.facts is not None and state.facts.items() >= files.items()
        assert set(ALIKE) <= state.facts.keys() and files.keys() == {*FILES, "fingerprint"}

    run(work)


def test_times_are_of_the_clock_of_the_sender() -> None:
    async def work(replica: EngineReplica) -> None:
        reports, _ = await read(replica, make_frame("x", shift=1000.0))
        timings = reports[0].news[0].timings
        assert timings is not None
        now = time.monotonic() + 1000.0
        assert all(now - 60 < at <= now for at in timings[:4])
        assert timings[0] <= timings[1] + 0.01, "it was scheduled after it arrived"

    run(work)


def test_an_abort_ends_a_stream() -> None:
    async def work(replica: EngineReplica) -> None:
        stream = replica.compute(make_frame("x", 400, ignore_eos=True))
        assert await anext(stream)
        assert await replica.tell(pipe.encode_frame(pipe.Abort("x"))) == b""
        rest = [data async for data in stream]
        assert rest[-1] == END

    run(work)


def test_a_stream_of_a_killed_engine_has_no_end() -> None:
    async def work(replica: EngineReplica) -> None:
        stream = replica.compute(make_frame("x", 400, ignore_eos=True))
        assert await anext(stream)
        assert replica.healthy
        replica.host.kill()
        assert END not in [data async for data in stream]
        assert not replica.healthy and replica.state.failed == "the engine process ended"
        assert [data async for data in replica.compute(make_frame("y"))] == []

    run(work)


def test_an_engine_that_answers_nothing_is_killed_by_its_replica() -> None:
    async def main() -> None:
        async with running(patience=0.5) as replica:
            assert replica.host._process is not None
            os.kill(replica.host._process.pid, signal.SIGSTOP)
            end = time.monotonic() + WAIT
            while replica.healthy and time.monotonic() < end:
                replica.report()
                await asyncio.sleep(0.05)
            assert replica.state.failed == "the engine process ended"

    asyncio.run(main())


def test_a_replica_kills_a_silent_engine_before_the_server_drops_the_replica() -> None:
    plan = ReplicaPlan(1, 1, patience=1000.0)

    async def main() -> None:
        client = EngineClient(EngineHost(print), pipe.EngineSetup({}, 0.2), patience=plan.patience)
        client._expect()
        assert client._watching is not None
        left = client._watching.when() - asyncio.get_running_loop().time()
        assert plan.patience < plan.engine_patience < 0.8 * left

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_says_why() -> None:
    async def main() -> None:
        replica = EngineReplica(make_setup(model="/nowhere.gguf"))
        with pytest.raises(ConfigError, match="nowhere"):
            await replica.start()
        assert "nowhere" in replica.state.failed
        await replica.close()

    asyncio.run(main())


def test_a_setup_that_cannot_be_decoded_is_reported() -> None:
    async def main() -> None:
        replica = EngineReplica(b"\x93\x01\x02\x03")
        with pytest.raises(ConfigError, match="setup cannot be decoded"):
            await replica.start()
        report = decode_report(replica.report())
        assert report.version == __version__ and "cannot be decoded" in report.failed
        await replica.close()

    asyncio.run(main())


def test_a_replica_says_what_computes_and_which_adapters_it_has(tmp_path: Path) -> None:
    """Copies of an adapter are equal; one with other weights under the same name is not."""
    same = tiny_adapter(tmp_path / "one"), shutil.copytree(tmp_path / "one", tmp_path / "copy")
    found = [fingerprint_adapters({"a": path}) for path in (*same, tiny_adapter(tmp_path / "b", 2))]
    assert found[0] == found[1] != found[2]

    async def main() -> None:
        model = str(tiny_folder(tmp_path / "tiny"))
        replica = EngineReplica(make_setup(model=model, adapters={"a": str(same[0])}))
        await replica.start()
        facts = replica.state.facts
        await replica.close()
        assert facts is not None and facts["adapters"] == ["a"]
        assert facts["adapter_weights"] == found[0] and facts["code"] == read_code("cpu").hex()

    asyncio.run(main())
