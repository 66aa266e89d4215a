"""Kept weights that a second start has mapped move while the model is used: the same answers
before, between and after.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from flyweight import LLM, AsyncLLM, SamplingParams
from flyweight.bench.kernels import RunListener
from flyweight.bench.offline import OfflineRequests, OfflineRun
from flyweight.bench.ours import BenchEngineOptions, OwnEngine
from flyweight.bench.workloads import Workload
from flyweight.weights.packed import shelf

STORY = SamplingParams(temperature=0, max_tokens=12)
ONE = SamplingParams(temperature=0, max_tokens=1)
SMALL: dict[str, Any] = {"threads": 1, "max_model_len": 64, "max_num_seqs": 1}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the story model's weights; runs are one huge page."""
    monkeypatch.setattr(shelf, "LEAST", 0)
    monkeypatch.setattr(shelf, "RUN", 2 << 20)
    monkeypatch.setenv("FLYWEIGHT_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("FLYWEIGHT_CACHE_SIZE")
    assert LLM(**SMALL).loaded.moving.left == 0, "just packed"
    if not LLM(**SMALL).loaded.moving.wanted:
        pytest.skip("this system grants no huge pages")
    return tmp_path / "kept"


@pytest.fixture(scope="module")
def story() -> list[int]:
    """What weights packed in memory say."""
    llm = LLM(packed_cache=False, **SMALL)
    assert not llm.loaded.moving.wanted
    return reported(llm, STORY)


def reported(llm: LLM, params: SamplingParams) -> list[int]:
    return list(llm.generate("Once upon", params, use_tqdm=False)[0].outputs[0].token_ids)


def test_an_answer_is_the_same_however_much_has_moved(kept: Path, story: list[int]) -> None:
    """Nothing, a run, a step's share, all; the file has lost its name meanwhile."""
    llm = LLM(**SMALL)
    task, [file] = llm.loaded.moving, kept.iterdir()
    file.unlink()
    left = [task.left]
    for more in (task.run_idle, task.step, task.settle, task.run_idle):
        more()
        left.append(task.left)
        assert reported(llm, ONE) == story[:1]
    assert left[0] > left[1] > left[2] and left[3:] == [0, 0] and not task.wanted
    assert reported(llm, STORY) == story


def test_pages_move_between_steps_and_after_the_first_answer(kept: Path, story: list[int]) -> None:
    llm = LLM(**SMALL)
    left, said = [llm.loaded.moving.left], []
    for out in llm.stream("Once upon", STORY):
        left.append(llm.loaded.moving.left)
        said = list(out.outputs[0].token_ids)
    assert left[0] == left[1] > left[2] and left[-1] == 0
    assert said == story


def test_an_asyncio_engine_moves_the_rest_while_idle(kept: Path, story: list[int]) -> None:
    async def main() -> None:
        async with AsyncLLM(**SMALL) as llm:
            async for _ in llm.generate("Once upon", ONE):
                pass
            task, end = llm.llm.loaded.moving, time.monotonic() + 60
            while task.wanted and time.monotonic() < end:
                await asyncio.sleep(0.01)
            assert not task.wanted
            async for out in llm.generate("Once upon", STORY):
                said = list(out.outputs[0].token_ids)
        assert said == story

    asyncio.run(main())


def test_what_is_measured_has_moved(kept: Path) -> None:
    ours = OwnEngine("stories", [Workload(prompt=8)], BenchEngineOptions(threads=1))
    serving = OfflineRun("stories", OfflineRequests(1, 8, 2, 1), RunListener(), threads=1)
    assert not ours.loaded.moving.wanted and not serving.llm.loaded.moving.wanted
    assert len(list(kept.iterdir())) == 1, "both have mapped it"
