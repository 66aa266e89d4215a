"""`bench stages`: shares that add up, from timers that see what they name."""

from dataclasses import astuple

import pytest

from flyweight import LLM, SamplingParams
from flyweight.bench.stages import STAGES, StageMeter, StageTimes, StreamReader, time_embedding
from flyweight.engine.runner import Runner
from flyweight.planning.stages import report_stages
from flyweight.text.detokenizer import Detokenizer
from flyweight.types import Request

TEXT = "Once upon a time, there was a little girl"


@pytest.fixture(scope="module")
def llm():
    with LLM(max_num_seqs=1, max_num_batched_tokens=8, enable_prefix_caching=False) as made:
        yield made


def test_stages_are_times_and_everything_else_is_other(llm: LLM) -> None:
    runner = llm.loaded.engine.runner
    assert isinstance(runner, Runner)
    plain = runner.model
    total = StageMeter(llm.loaded, TEXT, 6).measure(2)
    assert all(seconds > 0 for seconds in astuple(total))
    assert total.whole == pytest.approx(sum(astuple(total)))
    assert runner.model is plain and llm.loaded.engine.runner is runner


def test_the_embedding_is_one_call_a_step(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    (plain,) = llm.generate(TEXT, params, use_tqdm=False)
    calls: list[int] = []
    with time_embedding(llm.loaded) as clock:
        inner = clock.inner.embed

        class Counted:
            def __getattr__(self, name: str):
                return getattr(clock_inner, name)

            def embed(self, weight, ids):
                calls.append(len(ids))
                return inner(weight, ids)

        clock_inner, clock.inner = clock.inner, Counted()
        steps = llm.stats()["steps"]
        (timed,) = llm.generate(TEXT, params, use_tqdm=False)
        assert len(calls) == llm.stats()["steps"] - steps and clock.seconds > 0
    assert sum(calls) == len(plain.prompt_token_ids) + 4
    assert timed.outputs[0].text == plain.outputs[0].text


def test_the_text_is_the_answers(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    (plain,) = llm.generate(TEXT, params, use_tqdm=False)
    ids = llm.tokenizer.encode(TEXT)
    llm.loaded.engine.add(Request("0", tuple(ids), params, max_tokens=9))
    reader = StreamReader(llm.loaded.engine, Detokenizer(llm.tokenizer, ids))
    timings = reader.read_first()
    reader.read_rest()
    assert reader.text == plain.outputs[0].text
    assert timings.scheduled <= timings.first and reader.seconds > 0


def test_shares_add_up_to_the_whole() -> None:
    total = StageTimes(1, 1, 2, 4, 8, 2, 2)
    (table,) = report_stages(total, 2, 100).tables
    rows = {row["stage"]: row for row in table.list_records()}
    assert [*rows] == [*STAGES, "whole"]
    assert sum(rows[stage]["share"] for stage in STAGES) == pytest.approx(1)
    assert (rows["decode"]["seconds"], rows["decode"]["share"]) == (4, 0.4)
    seed = [rows[stage]["seed_share"] for stage in ("tokenize", "embed", "detokenize", "other")]
    assert sum(seed) + 480 / 550 == pytest.approx(1)
    assert rows["whole"]["seconds"] == 10
