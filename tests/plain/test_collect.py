"""From events to results: text, ends, log-probabilities and times, however tokens are grouped."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.requests.collector import Collector
from flyweight.text.tokenizer import load_tokenizer
from flyweight.types import Event, Finish, Request, SamplingParams, Timings, TokenLogprobs

FILE = Path(__file__).parents[1] / "data" / "text" / "tiny-spm.json"
TOKENIZER = load_tokenizer(json.loads(FILE.read_text(encoding="utf-8")))
TEXT = " there was a little girl named Lily. She said: héllo ☃!"
IDS = TOKENIZER.encode(TEXT, add_special=False)


def collector(clock=lambda: 0.0, **params) -> Collector:
    request = Request("r", tuple(TOKENIZER.encode("Once")), SamplingParams(**params), arrival=10.0)
    return Collector(request, TOKENIZER, "Once", clock)


def event(tokens, finish=None, stop=None, index=0, **more) -> Event:
    return Event("r", index, tuple(tokens), finish=finish, stop_token=stop, **more)


@given(
    st.lists(st.integers(0, len(IDS)), max_size=8),
    st.sampled_from([(), ("Lily",), ("☃",)]),
    st.lists(st.booleans(), min_size=9, max_size=9),
)
def test_neither_grouping_nor_when_it_is_read_changes_anything(cuts, stop, requested) -> None:
    edges = sorted({0, len(IDS), *cuts})
    gathered = collector(stop=stop)
    deltas = ""
    for (begin, end), now in zip(pairwise(edges), requested, strict=False):
        last = end == len(IDS)
        gathered.feed(event(IDS[begin:end], Finish.LENGTH if last else None))
        if now:
            deltas += gathered.output().outputs[0].delta
    deltas += gathered.output().outputs[0].delta
    choice = gathered.output().outputs[0]
    text = TOKENIZER.decode(IDS)
    wanted = text[: text.index(stop[0])] if stop else text
    assert choice.text.strip() == deltas.strip() == wanted.strip()
    assert choice.finish_reason == ("stop" if stop else "length")
    assert choice.stop_reason == (stop[0] if stop else None)
    assert choice.delta == ""


def test_feed_reports_when_the_engine_must_stop() -> None:
    early = collector(stop="Lily")
    reported = [early.feed(event([i])) for i in IDS]
    assert reported.count(True) == 1
    count = reported.index(True) + 1
    assert len(early.output().outputs[0].token_ids) == count, "later events change nothing"
    at_the_end = collector(stop="Lily")
    assert not at_the_end.feed(event(IDS[:count], Finish.LENGTH)), "it has stopped by itself"
    assert at_the_end.output().outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("ids, reason", [((), None), ((IDS[-1],), IDS[-1])])
def test_a_stop_token_is_counted_and_not_shown(ids, reason) -> None:
    got = collector(stop_token_ids=ids)
    got.feed(event(IDS, Finish.STOP, IDS[-1]))
    choice = got.output().outputs[0]
    assert choice.token_ids == list(IDS) and not choice.text.endswith("!")
    assert (choice.finish_reason, choice.stop_reason) == ("stop", reason)
    shown = collector(stop_token_ids=ids, include_stop_str_in_output=True)
    shown.feed(event(IDS, Finish.STOP, IDS[-1]))
    assert shown.output().outputs[0].text.endswith("!")


def test_log_probabilities_list_the_chosen_first() -> None:
    got = collector(logprobs=2)
    got.feed(event(IDS[:1], logprobs=(TokenLogprobs(-3.0, 7, (5, 6), (-0.5, -1.0)),)))
    got.feed(event([5], logprobs=(TokenLogprobs(-0.5, 1, (5, -1), (-0.5, float("nan"))),)))
    first, second = got.output().outputs[0].logprobs
    assert list(first) == [IDS[0], 5, 6]
    assert [first[i].rank for i in (IDS[0], 5, 6)] == [7, 1, 2]
    assert list(second) == [5]
    assert got.output().outputs[0].cumulative_logprob == -3.5


def test_times() -> None:
    now = iter([12.0, 13.0, 14.0])
    got = collector(lambda: next(now), n=2)
    assert got.output().metrics.total == 0.0
    got.feed(event(IDS[:1], timings=Timings(10.0, 11.0, 12.0, 12.0)))
    got.feed(event(IDS[:1], index=1, timings=Timings(10.0, 11.0, 12.5, 12.5)))
    got.feed(event(IDS[1:4], index=1))
    m = got.output().metrics
    assert (m.queued, m.ttft, m.total, m.decode_rate) == (1.0, 2.0, 4.0, 1.5)


def test_choices_are_apart_and_cached_tokens_are_the_most() -> None:
    got = collector(n=2)
    got.feed(event(IDS[:2], cached=1))
    got.feed(event(IDS[:3], Finish.LENGTH, index=1, cached=4))
    out = got.output()
    assert [len(o.token_ids) for o in out.outputs] == [2, 3]
    assert [o.finish_reason for o in out.outputs] == [None, "length"]
    assert out.num_cached_tokens == 4 and not out.finished and out.prompt == "Once"


def test_pieces_wait_for_an_interval_from_the_second_on() -> None:
    gathered = collector()
    gathered.interval = 3
    sizes = []
    for i, token in enumerate(IDS[:9]):
        finish = Finish.LENGTH if i == 8 else None
        gathered.feed(Event("r", 0, (token,), finish=finish))
        sizes.append([len(piece.tokens) for piece in gathered.take_pieces()])
    assert sizes == [[1], [], [], [3], [], [], [3], [], [2]]


def test_a_prompt_that_could_not_be_scored_is_no_answer() -> None:
    failed = collector(max_tokens=0, echo=True, prompt_logprobs=0)
    failed.feed(event([], Finish.ERROR, error="it broke"))
    (choice,) = failed.output().outputs
    assert (choice.finish_reason, choice.stop_reason) == ("error", "it broke")
