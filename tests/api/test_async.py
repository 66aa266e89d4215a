"""`AsyncLLM`: many streams at once, and what happens to them when someone leaves or breaks."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from flyweight import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    BeamSearchParams,
    PoolingParams,
    RequestError,
    SamplingParams,
)
from flyweight.errors import RankLost
from tiny_model import tiny_folder

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
BLOCK = 8  # of whoever is compared: what K/V is multiplied in depends on it
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def run(
    folder: Path, test: Callable[[AsyncLLM], Coroutine[Any, Any, Any]], **settings: Any
) -> None:
    """Within its own loop; afterwards no thread, no block and no request is left."""
    before = set(threading.enumerate())

    async def main() -> AsyncLLM:
        async with AsyncLLM(folder, block_size=BLOCK, threads=1, **settings) as llm:
            await asyncio.wait_for(test(llm), 60)
        return llm

    llm = asyncio.run(main())
    engine = llm.llm.loaded.engine
    assert not engine.busy and not llm._streams
    assert len(engine.scheduler.pool.free) == engine.scheduler.pool.blocks
    named = {t for t in threading.enumerate() if t.name == "flyweight"}
    assert named <= before


async def text(llm: AsyncLLM, prompt: Any, params: SamplingParams = GREEDY) -> str:
    """A stream's deltas put together, checked against its texts."""
    whole = ""
    async for out in llm.generate(prompt, params):
        whole += out.outputs[0].delta
        assert whole == out.outputs[0].text
    assert out.finished
    return whole


PROMPTS = [f"hello number {i}" for i in range(20)]


def test_many_streams_at_once(folder: Path) -> None:
    expected = [o.outputs[0].text for o in LLM(folder, block_size=BLOCK).generate(PROMPTS, GREEDY)]

    async def test(llm: AsyncLLM) -> None:
        assert await asyncio.gather(*(text(llm, p) for p in PROMPTS)) == expected
        assert llm.llm.stats()["steps"] < 16 * len(PROMPTS), "they shared steps"

    run(folder, test)


def test_no_more_than_so_many_are_in_the_engine(folder: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        most = 0
        step = llm.llm.loaded.engine.step

        def watched(*given):
            nonlocal most
            most = max(most, len(llm.llm.loaded.engine.scheduler.by_id))
            return step(*given)

        llm.llm.loaded.engine.step = watched  # type: ignore[method-assign]
        await asyncio.gather(*(text(llm, p) for p in PROMPTS))
        assert most <= 3

    run(folder, test, max_requests=3)


def test_a_slow_reader_loses_nothing_and_delays_no_other(folder: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        parts = 0
        whole = ""
        async with aclosing(llm.generate("hello", LONG)) as stream:
            async for out in stream:
                parts, whole = parts + 1, whole + out.outputs[0].delta
                if parts == 1:
                    await text(llm, "another")
                    while llm.llm.loaded.engine.busy:
                        await asyncio.sleep(0.01)
        assert parts == 2 and whole == out.outputs[0].text
        assert len(out.outputs[0].token_ids) == 200

    run(folder, test)


def test_a_client_that_leaves_ends_its_request(folder: Path) -> None:
    async def idle(llm: AsyncLLM) -> None:
        while llm.llm.loaded.engine.busy or llm._streams:
            await asyncio.sleep(0.005)

    async def test(llm: AsyncLLM) -> None:
        driver = llm.llm.loop.driver
        compute, left = driver.step, iter(range(2))
        # Two steps and no more: no request ends before its client leaves, however slow that is.
        driver.step = lambda: compute() if next(left, None) is not None else []
        async with aclosing(llm.generate("hello", LONG)) as stream:
            await anext(stream)
        await idle(llm)
        task = asyncio.create_task(text(llm, "hello", LONG))
        while not llm._streams:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(llm)
        driver.step = compute
        assert llm.llm.stats()["aborted"] == 2
        assert (
            await text(llm, "hello")
            == LLM(folder, block_size=BLOCK).generate("hello", GREEDY)[0].outputs[0].text
        )

    run(folder, test)


def test_what_breaks_in_the_engine_reaches_every_reader(folder: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        engine = llm.llm.loaded.engine
        submit = engine.runner.submit

        def broken(*args):
            if len(llm._streams) == 4:  # all are there
                engine.runner.submit = submit  # type: ignore[method-assign]
                raise MemoryError("out of it")
            return submit(*args)

        engine.runner.submit = broken  # type: ignore[method-assign]
        results = await asyncio.gather(
            *(text(llm, p, LONG) for p in PROMPTS[:4]), return_exceptions=True
        )
        assert [type(r) for r in results] == [MemoryError] * 4
        assert (
            await text(llm, "hello")
            == LLM(folder, block_size=BLOCK).generate("hello", GREEDY)[0].outputs[0].text
        )

    run(folder, test)


def test_what_breaks_at_the_door_reaches_its_reader(folder: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        engine = llm.llm.loaded.engine
        add = engine.add

        def broken(request):
            engine.add = add  # type: ignore[method-assign]
            raise ValueError("a bug of ours")

        engine.add = broken  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="a bug of ours"):
            await text(llm, "hello")
        assert await text(llm, "hello")

    run(folder, test)


def test_refusals_are_the_askers_own(folder: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        with pytest.raises(RequestError, match="token id -1"):
            await text(llm, [-1])
        wide = BeamSearchParams(beam_width=9, max_tokens=4)
        with pytest.raises(RequestError, match="beam_width = 9 is above max_num_seqs = 4"):
            async for _ in llm.generate("hello", wide):
                pass
        assert await text(llm, "hello")

    run(folder, test, max_num_seqs=4)


def test_closing_ends_waiting_requests(folder: Path) -> None:
    async def test(llm: AsyncLLM) -> None:
        task = asyncio.create_task(text(llm, "hello", LONG))
        while not llm._streams:
            await asyncio.sleep(0)
        await llm.close()
        with pytest.raises(RequestError, match="closed"):
            await task
        with pytest.raises(RequestError, match="closed"):
            await text(llm, "hello")

    run(folder, test)


def test_searches_and_vectors(folder: Path) -> None:
    plain, beam = LLM(folder, block_size=BLOCK), BeamSearchParams(3, 6)
    expected = plain.beam_search("hello", beam)[0].outputs

    async def test(llm: AsyncLLM) -> None:
        found = [out async for out in llm.generate("hello", beam)]
        assert [out.outputs for out in found] == [expected]
        vectors = await asyncio.gather(*(llm.embed(p, PoolingParams("mean")) for p in PROMPTS[:3]))
        alone = plain.embed(PROMPTS[:3], PoolingParams("mean"))
        assert [v.outputs for v in vectors] == [a.outputs for a in alone]

    run(folder, test)


def test_room_for_no_request_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match=r"max_requests = 0 is out of range.*nearest valid: 1"):
        AsyncLLM(folder, max_requests=0)


def test_vllms_async_engine(folder: Path) -> None:
    """from_engine_args, requests with ids of their own, abort, shutdown."""
    arguments = AsyncEngineArgs(model=str(folder), block_size=BLOCK, threads=1)
    engine = AsyncLLMEngine.from_engine_args(arguments)

    async def test() -> None:
        whole = [out async for out in engine.generate("hello", GREEDY, "mine")]
        assert whole[-1].finished and whole[-1].request_id == "mine"
        assert (await engine.get_tokenizer()).encode("hello") == whole[-1].prompt_token_ids
        streams = [engine.generate("hello", sampling_params=LONG, request_id="o") for _ in "ab"]
        with engine._ring:  # the engine's thread finds all three at once
            first, second = (asyncio.ensure_future(anext(stream)) for stream in streams)
            await asyncio.sleep(0)
            await engine.abort("o")
        assert (await first).outputs[0].finish_reason == "abort"
        with pytest.raises(RequestError, match="'o' is in use by an unfinished request"):
            await second
        await engine.abort("unknown")

    asyncio.run(asyncio.wait_for(test(), 60))
    engine.shutdown()
    assert repr(engine.llm).endswith("closed)")


def test_a_lost_rank_ends_every_reader(folder: Path) -> None:
    """And those that come later."""

    def lose(*_: object) -> None:
        raise RankLost("a rank of the model has ended")

    async def main() -> None:
        async with AsyncLLM(folder, block_size=BLOCK, threads=1) as llm:
            llm.llm.loaded.engine.runner.submit = lose  # type: ignore[method-assign,assignment]
            with pytest.raises(RankLost, match="has ended"):
                await asyncio.wait_for(text(llm, "abc"), 60)
            with pytest.raises(RequestError, match="closed"):
                await asyncio.wait_for(text(llm, "abc"), 60)

    asyncio.run(main())
