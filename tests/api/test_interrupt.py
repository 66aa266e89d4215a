"""Ctrl-C: what was requested is aborted, the pool is whole, the next request is answered."""

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight import LLM, SamplingParams
from flyweight.driver.progress import hold_interrupts
from flyweight.ops.stack import SteppedStack
from tiny_model import tiny_folder

PARAMS = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
PROMPTS = ["hello there", "one two three", "and so on"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tiny_folder(tmp_path_factory.mktemp("tiny") / "model")
    return LLM(folder, block_size=4, max_num_batched_tokens=8, max_num_seqs=4, draft_tokens=2)


def idle(llm: LLM) -> None:
    engine = llm.loaded.engine
    assert not engine.busy and not engine.scheduler.by_id and not llm.loop.live
    pool = engine.scheduler.pool
    pool.check_integrity([])
    assert len(pool.free) == pool.blocks


class Broken:
    """Raises at the n-th call of one of an object's methods, before or after its work."""

    def __init__(
        self, of: object, name: str, at: int, error: type[BaseException], after: bool
    ) -> None:
        self.of, self.name, self.at, self.error, self.after = of, name, at, error, after
        self.real = getattr(of, name)

    def __call__(self, *args, **more):
        self.at -= 1
        if self.at == 0 and not self.after:
            raise self.error
        result = self.real(*args, **more)
        if self.at == 0:
            raise self.error
        return result


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 7])
@pytest.mark.parametrize("where", ["linear", "attend", "rope_store", "sample", "stack"])
def test_an_exception_inside_a_step(llm: LLM, where, at, after, error, monkeypatch) -> None:
    wanted = llm.generate(PROMPTS, PARAMS)
    runner: Any = llm.loaded.engine.runner
    model, ops = runner.model, runner.ops
    with monkeypatch.context() as patch:
        if where in ("attend", "rope_store"):  # between a layer's writes
            patch.setattr(model, "stack", SteppedStack(model.stack.layers))
        of = model if where == "stack" else ops
        patch.setattr(of, where, Broken(of, where, at, error, after), raising=True)
        with pytest.raises(error):
            llm.generate(PROMPTS, PARAMS)
    idle(llm)
    assert [o.outputs[0].text for o in llm.generate(PROMPTS, PARAMS)] == [
        o.outputs[0].text for o in wanted
    ]
    idle(llm)


def test_a_signal_waits_for_the_end_of_the_step(llm: LLM, monkeypatch) -> None:
    engine, steps = llm.loaded.engine, []
    real = engine.step

    def step(*given):
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        events = real(*given)
        steps.append(len(events))
        return events

    with monkeypatch.context() as patch:
        patch.setattr(engine, "step", step)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, PARAMS)
    assert len(steps) == 4, "the step in progress was finished, and none begun after it"
    idle(llm)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("computing", [True, False])
def test_a_second_signal_waits_for_bookkeeping_only(computing) -> None:
    done = []
    engine = SimpleNamespace(computing=computing)
    with pytest.raises(KeyboardInterrupt), hold_interrupts(engine):
        os.kill(os.getpid(), signal.SIGINT)
        done.append(1)
        os.kill(os.getpid(), signal.SIGINT)
        done.append(2)
    assert done == ([1] if computing else [1, 2])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_programs_own_handler_is_left_alone() -> None:
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        with hold_interrupts(SimpleNamespace(computing=True)):
            os.kill(os.getpid(), signal.SIGINT)
            assert heard == [1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_progress_bar_shows_at_a_terminal(llm: LLM, monkeypatch, capsys) -> None:
    monkeypatch.setattr("flyweight.driver.progress.BAR_AFTER", 0.0)
    llm.generate(PROMPTS, PARAMS)
    assert capsys.readouterr().err == "", "no terminal, no bar"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    llm.generate(PROMPTS, PARAMS)
    shown = capsys.readouterr().err
    assert "3/3" in shown and "tokens/s" in shown
    monkeypatch.setattr("flyweight.driver.progress.BAR_EVERY", 0.0)
    llm.generate(PROMPTS[0], PARAMS)
    moving = capsys.readouterr().err.split("\r")
    assert len([part for part in moving if "0/1" in part and "tokens/s" in part]) > 3
    llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert capsys.readouterr().err == ""
