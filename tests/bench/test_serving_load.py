"""What a load is made of: prompts of exact lengths, data sets, traces, times of sending."""

import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flyweight.bench.serving.arrivals import ArrivalRate
from flyweight.bench.serving.datasets import (
    Conversations,
    Custom,
    Prefixes,
    Random,
    Sonnet,
    read_json_lines,
    read_json_list,
    read_text_lines,
)
from flyweight.bench.serving.requests import LoadRequest
from flyweight.bench.serving.traces import Trace
from flyweight.bench.serving.vocabulary import IdPrompts, PromptMaker, TextPrompts
from flyweight.config import Settings
from flyweight.describe import find, open_tokenizer
from flyweight.errors import ConfigError
from flyweight.text.tokenizer import Tokenizer

LENGTHS = (1, 2, 3, 17, 100, 512)


def tokenizer_of(model: str | None) -> Tokenizer:
    return open_tokenizer(find(Settings.of(model=model)))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of(None)


@pytest.fixture(scope="module")
def texts(tokenizer: Tokenizer) -> TextPrompts:
    return TextPrompts(tokenizer)


def ids_of(ask: LoadRequest) -> list[int]:
    assert isinstance(ask.prompt, list)
    return ask.prompt


def drawn(data: Any, words: PromptMaker, count: int, seed: int = 0) -> list[LoadRequest]:
    found: list[LoadRequest] = data.make_requests(words, count, random.Random(seed))
    return found


@pytest.mark.parametrize("name", ["", "tokenizer-llama2", "tokenizer-llama3"])
def test_texts_have_the_length_requested(name: str, data: Callable[[str], Path]) -> None:
    tokenizer = tokenizer_of(str(data(name)) if name else None)
    words, rng = TextPrompts(tokenizer), random.Random(3)
    marks = len(tokenizer.encode(""))
    for length in LENGTHS[marks:]:
        prompt = words.make_prompt(words.draw(rng, length))
        assert isinstance(prompt, str) and len(tokenizer.encode(prompt)) == length
    poem = "From fairest creatures we desire increase,\nThat thereby beauty's rose " * 3
    for length in (9, 40, 300):
        assert words.count(str(words.fit(poem, length))) == length


def test_ids_are_ordinary_ones(tokenizer: Tokenizer) -> None:
    words = IdPrompts(tokenizer.vocab_size, tokenizer, tokenizer.special_ids)
    found = words.draw(random.Random(1), 5000)
    assert not tokenizer.special_ids & {*found} and max(found) < tokenizer.vocab_size
    assert len(words.fit("Once upon", 100)) == 100
    with pytest.raises(ConfigError, match="--tokenizer"):
        IdPrompts(2000).count("a text")


def test_random_lengths_vary_as_much_as_requested() -> None:
    asks = drawn(Random(320, 96, (0.6, 1 / 3)), IdPrompts(5000), 3000)
    lengths, outputs = [a.length for a in asks], [a.output for a in asks]
    assert (min(lengths), max(lengths)) == (128, 512)
    assert (min(outputs), max(outputs)) in {(64, 128), (63, 129)}
    assert all(len(ids_of(a)) == a.length for a in asks)
    assert statistics.fmean(lengths) == pytest.approx(320, rel=0.05)


def test_a_prefix_is_the_same_for_all_and_the_rest_is_not() -> None:
    asks = [ids_of(a) for a in drawn(Random(40, 8, (0.5, 0), 3000), IdPrompts(5000), 24)]
    assert len({tuple(ids[:3000]) for ids in asks}) == 1
    assert len({tuple(ids[3000:3010]) for ids in asks}) == 24
    assert all(3020 <= len(ids) <= 3060 for ids in asks)


def test_the_seed_decides(texts: TextPrompts) -> None:
    first, again, other = (drawn(Random(20, 4), texts, 5, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_repeated_prefixes() -> None:
    asks = drawn(Prefixes(5, 64, 16, 9), IdPrompts(5000), 20)
    heads = Counter(tuple(ids_of(a)[:64]) for a in asks)
    assert [*heads.values()] == [4] * 5 and {a.length for a in asks} == {80}
    assert len({tuple(ids_of(a)[64:]) for a in asks}) == 20


def test_sonnets(texts: TextPrompts, data: Callable[[str], Path]) -> None:
    lines = read_text_lines(data("prompts-sonnet/sonnet.txt"))
    asks = drawn(Sonnet(lines, 200, 10, 80), texts, 4)
    assert [texts.count(str(a.prompt)) for a in asks] == [200] * 4
    heads = {str(a.prompt)[:150] for a in asks}
    assert len(heads) == 1 and len({str(a.prompt) for a in asks}) == 4
    assert lines[0] in heads.pop()


def talk(*turns: str) -> dict[str, Any]:
    return {"conversations": [{"from": "x", "value": turn} for turn in turns]}


def test_conversations(texts: TextPrompts, tmp_path: Path) -> None:
    long = "dog " * 1500
    talks = [
        talk("Tell me about a cat and a dog", "They were friends and went home"),
        talk("Once upon a time there was", "a little girl named Lily"),
        talk("alone"), talk("hi", "ho"), talk(long, "a b c d e f"), {"other": 1},
    ]  # fmt: skip
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(talks))
    found = read_json_list(path)
    asks = drawn(Conversations(found), texts, 5)
    assert len(asks) == 5 and len({a.prompt for a in asks}) == 2
    for ask in asks:
        answer = next(t["conversations"][1]["value"] for t in talks[:2]
                      if t["conversations"][0]["value"] == ask.prompt)  # fmt: skip
        assert (ask.length, ask.output) == (texts.count(str(ask.prompt)), texts.count(answer))
    assert {a.output for a in drawn(Conversations(found, 33), texts, 2)} == {33}
    assert len(drawn(Conversations(found, again=False), texts, 5)) == 2
    with pytest.raises(ConfigError, match="no prompt of a usable length"):
        drawn(Conversations([talk("alone")]), texts, 1)


def test_half_characters_are_question_marks(texts: TextPrompts, tmp_path: Path) -> None:
    """A file's JSON may have them, cut out of a pair; no request can."""
    half = "Tell me of a cat \ud83d"
    (tmp_path / "talks.json").write_text(json.dumps([talk(half, "They were \ud83d friends")]))
    (tmp_path / "own.jsonl").write_text(json.dumps({"prompt": half}))
    for data in (
        Conversations(read_json_list(tmp_path / "talks.json")),
        Custom([*read_json_lines(tmp_path / "own.jsonl")]),
    ):
        (ask,) = drawn(data, texts, 1)
        assert ask.prompt == "Tell me of a cat ?" and ask.length == texts.count(ask.prompt)


def test_a_file_of_ones_own(texts: TextPrompts, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "One day", "output_tokens": 5}\n\n{"prompt": "A cat"}\n')
    records = [*read_json_lines(path)]
    asks = drawn(Custom(records, 7, shuffled=False), texts, 3)
    assert [(a.prompt, a.output) for a in asks] == [("One day", 7), ("A cat", 7), ("One day", 7)]
    assert drawn(Custom(records[:1], None), texts, 1)[0].output == 5
    with pytest.raises(ConfigError, match="output_tokens = None"):
        drawn(Custom(records, None), texts, 2)
    with pytest.raises(ConfigError, match="has no prompt"):
        drawn(Custom([{"text": "x"}], 7), texts, 1)
    path.write_text('{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(ConfigError, match="line 2: not valid JSON"):
        [*read_json_lines(path)]


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n" \
    "2023-11-16 18:15:50.6805900,9000,109\n2023-11-16 18:15:51.1805900,91,16\n"  # fmt: skip


def test_azures_traces(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    asks = drawn(Trace(path, speed=2), IdPrompts(5000), 9)
    assert [(a.length, a.output) for a in asks] == [(374, 44), (9000, 109), (91, 16)]
    assert [a.at for a in asks] == pytest.approx([0, 2, 2.25])
    assert [a.length for a in drawn(Trace(path, longest=1000), IdPrompts(5000), 9)] == [374, 91]
    path.write_text(AZURE + "never,1,1\n")
    with pytest.raises(ConfigError, match="line 5: this is not a request"):
        drawn(Trace(path), IdPrompts(5000), 9)


def test_mooncakes_traces_share_what_their_hashes_share(tmp_path: Path, texts: TextPrompts) -> None:
    path = tmp_path / "moon.jsonl"
    rows = [(0, 1100, [7, 8, 9]), (3000, 1030, [7, 8, 10]), (3000, 600, [11, 8])]
    path.write_text("\n".join(
        json.dumps({"timestamp": t, "input_length": n, "output_length": 5, "hash_ids": h})
        for t, n, h in rows
    ))  # fmt: skip
    a, b, c = (ids_of(ask) for ask in drawn(Trace(path), IdPrompts(5000), 3))
    assert (len(a), len(b), len(c)) == (1100, 1030, 600)
    assert a[:1024] == b[:1024] and a[1024:1030] != b[1024:] and c[:512] != a[:512]
    assert c[512:] == a[512:600]
    asks = drawn(Trace(path, speed=3), texts, 3)
    assert [ask.at for ask in asks] == [0, 1, 1]
    assert [texts.count(str(ask.prompt)) for ask in asks] == [1100, 1030, 600]
    common = len(str(asks[0].prompt)) // 2
    assert str(asks[0].prompt)[:common] == str(asks[1].prompt)[:common]


@pytest.mark.parametrize(
    "file, count",
    [
        ("traces-azure-llm-2023/AzureLLMInferenceTrace_code.csv", 8819),
        ("traces-mooncake/conversation_trace.jsonl", 12031),
    ],
)
def test_published_traces_are_read_whole(
    file: str, count: int, data: Callable[[str], Path]
) -> None:
    from flyweight.bench.serving.traces import read_trace

    found = [*read_trace(data(file))]
    assert len(found) == count
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert all(len(one.blocks) * 512 >= one.input for one in found if one.blocks)


def test_times_with_a_zone_and_without_a_fraction(tmp_path: Path) -> None:
    """As Azure's traces of 2024 have them: a whole second has no point."""
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00.500000+00:00,5,3\n"
    rows += "2024-05-12 00:00:01+00:00,5,3\n2024-05-12 00:00:02.2500000,5,3\n"
    (tmp_path / "a.csv").write_text(rows)
    asks = Trace(tmp_path / "a.csv").make_requests(IdPrompts(1000), 3, random.Random(0))
    assert [ask.at for ask in asks] == [0.0, 0.5, 1.75]


def test_traces_that_are_none(tmp_path: Path) -> None:
    for name, text, said in (
        ("a.txt", "", "a trace is a .csv"),
        ("a.jsonl", '{"timestamp": 0, "input_length": 0, "output_length": 1}', "is not a request"),
        ("b.jsonl", '{"timestamp": "x"}', "line 1: this is not a request"),
        ("c.csv", "A,B\n1,2\n", "line 2: this is not a request"),
        ("d.jsonl", '{"timestamp": NaN, "input_length": 1, "output_length": 1}', "line 1: this is"),
        (
            "g.jsonl",
            '{"timestamp": 0, "input_length": 1e999, "output_length": 1}',
            "not a request",
        ),
        ("h.jsonl", "", "there is no request in this file"),
        ("i.csv", AZURE + "2023-11-16 18:15:59\udcff,1,1\n", "this is not text"),
        ("e.csv", AZURE + "2023-11-16 18:15:49.0,1,1\n", "line 5: the request is earlier than"),
        (
            "f.jsonl",
            "\n".join(
                f'{{"timestamp": {at}, "input_length": 1, "output_length": 1}}' for at in (9, 5)
            ),
            "line 2: the request is earlier than",
        ),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(ConfigError, match=said):
            drawn(Trace(tmp_path / name), IdPrompts(5000), 9)
    with pytest.raises(ConfigError, match="speed = 0 is out of range"):
        Trace(tmp_path, 0)


def test_all_at_once_and_the_rate_requested() -> None:
    rng = random.Random(0)
    assert ArrivalRate().draw_times(3, rng) == [0.0] * 3
    times = ArrivalRate(4.0).draw_times(1000, rng)
    assert times == sorted(times) and times[-1] == pytest.approx(250)
    even = ArrivalRate(4.0, math.inf).draw_times(8, rng)
    assert even == pytest.approx([0.25 * i for i in range(1, 9)])


def spread(burstiness: float) -> float:
    times = [0.0, *ArrivalRate(10.0, burstiness).draw_times(4000, random.Random(1))]
    gaps = [b - a for a, b in pairwise(times)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


def test_burstiness_is_the_gamma_distributions_shape() -> None:
    """Gaps vary by one over the shape's root."""
    assert spread(1.0) == pytest.approx(1.0, rel=0.1)
    assert spread(0.25) == pytest.approx(2.0, rel=0.15)
    assert spread(100.0) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("kind, middle", [("linear", 5.5), ("exponential", 10**0.5)])
def test_ramps_grow_from_rate_to_rate(kind: str, middle: float) -> None:
    pace = ArrivalRate(burstiness=math.inf, ramp=kind, ramp_start=1.0, ramp_end=10.0)
    times = pace.draw_times(101, random.Random(0))
    rates = [1 / (b - a) for a, b in zip([0.0, *times], times, strict=False)]
    assert [rates[0], rates[50], rates[100]] == pytest.approx([1, middle, 10])


@pytest.mark.parametrize(
    "given, said",
    [
        ({"rate": 0.0}, "request_rate = 0 is out of range"),
        ({"rate": math.nan}, "request_rate = nan"),
        ({"burstiness": -1.0}, "burstiness = -1 is out of range"),
        ({"ramp": "linaer"}, "did you mean 'linear'"),
        ({"ramp": "linear"}, "needs ramp_up_start_rps"),
        ({"ramp_end": 3.0}, "need ramp_up_strategy"),
        ({"ramp": "linear", "ramp_start": 1.0, "ramp_end": 2.0, "rate": 3.0}, "give one of them"),
    ],
)
def test_paces_that_are_none(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ArrivalRate(**given)
