"""`LLM` as its callers use it: prompts of every kind, sampling, stops, streams, results."""

import json
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from flyweight import LLM, CheckpointError, ConfigError, RequestError, SamplingParams
from tiny_model import EOS, TEMPLATE, VOCAB, tiny_folder

GREEDY = {"temperature": 0.0, "max_tokens": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, threads=2, block_size=8)


def texts(llm: LLM, prompts, params=None, **more) -> list[str]:
    return [o.text for out in llm.generate(prompts, params, **more) for o in out.outputs]


# --- prompts ---


def test_prompts_of_every_kind_mean_the_same(llm: LLM) -> None:
    params = SamplingParams(**GREEDY)
    ids = llm.tokenizer.encode("hello there")
    prompts = ["hello there", ids, {"prompt": "hello there"}, {"prompt_token_ids": ids}]
    for prompt in [*prompts, np.array(ids), [np.int64(i) for i in ids]]:
        (one,) = llm.generate(prompt, params)
        assert one.prompt_token_ids == list(ids)
    outs = llm.generate([*prompts, {"prompt": "hello there", "prompt_token_ids": ids}], params)
    assert [out.prompt for out in outs] == ["hello there", None, "hello there", None, "hello there"]
    assert len({tuple(out.outputs[0].token_ids) for out in outs}) == 1
    assert all(out.finished and len(out.outputs) == 1 for out in outs)


@pytest.mark.parametrize(
    "prompt, words",
    [
        (5, "allowed: text, token ids"),
        (b"abc", "allowed: text, token ids"),
        ([1, "a", 2], "neither text nor"),
        ([[1.5, 2]], "neither text nor"),
        ([None], "neither text nor"),
        ([True, False], "neither text nor"),
        ({"text": "hello"}, "'text'"),
        ({"prompt": 7}, "required: prompt"),
        ([[]], "prompt is empty"),
        ([VOCAB], f"token id {VOCAB} is out of range; allowed: 0 to {VOCAB - 1}"),
        ([3, -1], "token id -1"),
        ([7] * 256, "256 tokens; allowed: 1 to 255"),
    ],
)
def test_bad_prompts_are_refused_and_nothing_is_left_behind(llm: LLM, prompt, words) -> None:
    with pytest.raises(RequestError, match=words):
        llm.generate(prompt)
    assert not llm.loaded.engine.busy


def test_parameters_are_one_or_one_for_each(llm: LLM) -> None:
    each = [SamplingParams(temperature=0, max_tokens=n) for n in (1, 2, 3)]
    outs = llm.generate(["a", "b", "c"], each)
    assert [len(out.outputs[0].token_ids) for out in outs] == [1, 2, 3]
    for wrong in (each[:2], "greedy", [1, 2, 3], 5):
        with pytest.raises(RequestError, match="sampling_params"):
            llm.generate(["a", "b", "c"], wrong)
    assert llm.generate([]) == []


def test_token_ids_in_options_must_be_in_the_vocabulary(llm: LLM) -> None:
    for option in ({"stop_token_ids": [VOCAB]}, {"logit_bias": {VOCAB: 1.0}}):
        with pytest.raises(RequestError, match=f"token id {VOCAB} is out of range"):
            llm.generate("a", SamplingParams(**option))


def test_what_goes_next_to_a_prompt_is_checked(llm: LLM) -> None:
    for option, words in (({"salt": 5}, "salt = 5"), ({"priority": "high"}, "priority = 'high'")):
        with pytest.raises(RequestError, match=words):
            llm.generate(["a", "b"], **option)
    assert not llm.loaded.engine.busy


# --- sampling ---


def test_seeds(llm: LLM, folder: Path) -> None:
    seeded = SamplingParams(seed=5, max_tokens=16)
    assert texts(llm, ["hello"] * 3, seeded) == texts(llm, ["hello"], seeded) * 3
    free = texts(llm, ["hello"] * 4, SamplingParams(max_tokens=16))
    assert len(set(free)) == 4
    runs = [texts(LLM(folder, seed=7), ["hello"] * 3, SamplingParams(max_tokens=16)) for _ in "ab"]
    assert runs[0] == runs[1] and len(set(runs[0])) == 3


def test_choices_share_a_prompt_and_differ(llm: LLM) -> None:
    (out,) = llm.generate("hello there you", SamplingParams(n=4, seed=1, max_tokens=12))
    assert [o.index for o in out.outputs] == [0, 1, 2, 3]
    assert len({o.text for o in out.outputs}) == 4
    alone = llm.generate("hello there you", SamplingParams(seed=1, max_tokens=12))[0]
    assert alone.outputs[0].token_ids == out.outputs[0].token_ids


def test_log_probabilities(llm: LLM) -> None:
    params = SamplingParams(logprobs=3, seed=2, max_tokens=6)
    choice = llm.generate("hello", params)[0].outputs[0]
    assert choice.logprobs is not None and len(choice.logprobs) == 6
    assert pickle.loads(pickle.dumps(choice)).logprobs == choice.logprobs[:] == choice.logprobs
    for token, row in zip(choice.token_ids, choice.logprobs, strict=True):
        assert next(iter(row)) == token and 3 <= len(row) <= 4
        ranked = sorted(row.values(), key=lambda x: x.rank)
        assert [x.logprob for x in ranked] == sorted((x.logprob for x in ranked), reverse=True)
        assert row[token].decoded_token == llm.tokenizer.token_bytes(token, True).decode(
            "utf-8", "replace"
        )
    assert choice.cumulative_logprob == pytest.approx(
        sum(row[t].logprob for t, row in zip(choice.token_ids, choice.logprobs, strict=True))
    )
    bare = llm.generate("hello", SamplingParams(seed=2, max_tokens=6))[0].outputs[0]
    assert bare.token_ids == choice.token_ids
    assert bare.logprobs is None and bare.cumulative_logprob is None


# --- ends ---


def test_stop_strings_cut_the_same_with_and_without_drafts(folder: Path) -> None:
    plain, guessing = LLM(folder), LLM(folder, draft_tokens=4)
    few = plain.tokenizer.encode("hello there", add_special=False)  # so that guesses come true
    long = {"temperature": 0, "max_tokens": 120, "ignore_eos": True}
    long["logit_bias"] = dict.fromkeys(few, 100.0)
    whole = plain.generate("ab ab ab", SamplingParams(**long))[0].outputs[0]
    for start in (3, 7, len(whole.text) // 2):
        stop = whole.text[start : start + 3]
        at = whole.text.index(stop)
        for end, kept in ((at, False), (at + 3, True)):
            params = SamplingParams(**long, stop=[stop], include_stop_str_in_output=kept)
            one = plain.generate("ab ab ab", params)[0].outputs[0]
            assert one == guessing.generate("ab ab ab", params)[0].outputs[0]
            assert (one.text, one.finish_reason) == (whole.text[:end], "stop")
            assert one.stop_reason == stop
            assert one.token_ids == whole.token_ids[: len(one.token_ids)]
    assert guessing.stats()["accepted"] > 0
    assert not guessing.loaded.engine.busy


def test_stop_ids_and_the_models_own_end(llm: LLM) -> None:
    whole = llm.generate("hello", SamplingParams(**GREEDY))[0].outputs[0]
    third = whole.token_ids[2]
    at = whole.token_ids.index(third)
    got = llm.generate("hello", SamplingParams(**GREEDY, stop_token_ids=[third]))[0].outputs[0]
    assert got.token_ids == whole.token_ids[: at + 1]
    assert (got.finish_reason, got.stop_reason) == ("stop", third)
    assert got.text == llm.tokenizer.decode(got.token_ids[:-1])
    forced = {"logit_bias": {EOS: 100.0}}
    ended = llm.generate("hello", SamplingParams(**GREEDY, **forced))[0].outputs[0]
    assert (ended.token_ids, ended.text) == ([EOS], "")
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)
    on = llm.generate("hello", SamplingParams(**GREEDY, **forced, ignore_eos=True))[0].outputs[0]
    assert (on.token_ids, on.finish_reason) == ([EOS] * 24, "length")
    late = llm.generate("hello", SamplingParams(**GREEDY, **forced, min_tokens=5))[0].outputs[0]
    assert len(late.token_ids) == 6 and EOS not in late.token_ids[:5]


def test_a_stop_string_within_min_tokens_does_not_count(llm: LLM) -> None:
    whole = llm.generate("hello", SamplingParams(**GREEDY))[0].outputs[0]
    stop = whole.text[:2]
    params = SamplingParams(**GREEDY, stop=[stop], min_tokens=4)
    got = llm.generate("hello", params)[0].outputs[0]
    assert len(got.token_ids) > 4
    assert whole.text.startswith(got.text)


def test_the_end_of_the_context_is_a_length(folder: Path) -> None:
    llm = LLM(folder, max_model_len=40)
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    (out,) = llm.generate([[5] * 10], params)
    assert len(out.outputs[0].token_ids) == 30
    assert out.outputs[0].finish_reason == "length"
    (long,) = llm.generate([[5] * 39], params)
    assert len(long.outputs[0].token_ids) == 1
    with pytest.raises(RequestError, match="40 tokens; allowed: 1 to 39"):
        llm.generate([[5] * 40], params)


def test_ends_are_united_over_the_files(tmp_path: Path) -> None:
    path = tiny_folder(tmp_path, {"eos_token_id": [3]}, generation={"eos_token_id": [5, 7]})
    assert LLM(path).loaded.stop_ids == {3, 5, 7, EOS}


def test_ends_beyond_the_vocabulary_are_never_met(tmp_path: Path) -> None:
    llm = LLM(tiny_folder(tmp_path, {"eos_token_id": [10**12, VOCAB]}))
    assert llm.loaded.stop_ids == {EOS}
    (out,) = llm.generate("hello", SamplingParams(**GREEDY, min_tokens=2))
    assert len(out.outputs[0].token_ids) >= 2


def test_defaults_of_generation_config(tmp_path: Path) -> None:
    generation = {
        "temperature": 0.6, "top_k": 20, "top_p": 0.9, "max_new_tokens": 9, "do_sample": True,
        "repetition_penalty": None, "transformers_version": "4.51.0",
    }  # fmt: skip
    llm = LLM(tiny_folder(tmp_path / "a", generation=generation))
    wanted = SamplingParams(temperature=0.6, top_k=20, top_p=0.9, max_tokens=9)
    assert llm.get_default_sampling_params() == wanted
    assert len(llm.generate("hello")[0].outputs[0].token_ids) <= 9
    explicit = llm.generate("hello", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    assert len(explicit[0].outputs[0].token_ids) == 20, "given parameters are taken as they are"
    with pytest.raises(CheckpointError, match=r"generation_config.json: temperature = -1"):
        LLM(tiny_folder(tmp_path / "b", generation={"temperature": -1}))


# --- streams and results ---


def test_a_stream_adds_up(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=4, max_tokens=20)
    parts = ["", "", ""]
    for out in llm.stream("hello", params):
        for choice in out.outputs:
            parts[choice.index] += choice.delta
            assert parts[choice.index] == choice.text
    assert out.finished
    assert parts == texts(llm, "hello", params)


def test_streams_may_be_read_in_turns(llm: LLM) -> None:
    params = SamplingParams(**GREEDY)
    alone = texts(llm, ["hello", "goodbye"], params)
    streams = [llm.stream("hello", params), llm.stream("goodbye", params)]
    last = [None, None]
    live = [0, 1]
    while live:
        for i in list(live):
            out = next(streams[i], None)
            if out is None:
                live.remove(i)
            else:
                last[i] = out.outputs[0].text
        if live:
            texts(llm, "in between", SamplingParams(max_tokens=2))
    assert last == alone


def test_a_stream_left_early_ends_its_request(llm: LLM) -> None:
    stream = llm.stream("hello", SamplingParams(max_tokens=100, ignore_eos=True))
    next(stream)
    assert llm.loaded.engine.busy
    stream.close()
    assert not llm.loaded.engine.busy


def test_results_carry_times_and_cached_tokens(folder: Path) -> None:
    llm = LLM(folder, block_size=8)
    prompt = list(range(3, 43))
    first, again = (llm.generate([prompt], SamplingParams(**GREEDY))[0] for _ in "ab")
    assert first.num_cached_tokens == 0
    assert again.num_cached_tokens == 32, "whole blocks, one token left to compute"
    m = first.metrics
    assert 0 <= m.queued <= m.ttft <= m.total
    assert m.decode_rate == pytest.approx(23 / (m.total - m.ttft), rel=1e-6)
    apart = llm.generate([prompt], SamplingParams(**GREEDY), salt="another tenant")[0]
    assert apart.num_cached_tokens == 0
    assert llm.stats()["cached"] == 32


def test_counters_distinguish_ends_from_aborts(llm: LLM) -> None:
    before = llm.stats()
    text = texts(llm, "hello", SamplingParams(**GREEDY))[0]
    for n in (1, 2):
        llm.generate("hello", SamplingParams(**GREEDY, n=n, stop=[text[3:6]]))
    now = llm.stats()
    assert now["finished"] - before["finished"] == 4 and now["aborted"] == before["aborted"]


def test_prompts_wait_their_turn_outside_the_engine(folder: Path, monkeypatch) -> None:
    """Many prompts cost the engine no more than it has room to choose from."""
    llm = LLM(folder, max_num_seqs=4, block_size=8)
    engine, most = llm.loaded.engine, 0
    step = engine.step

    def watched(*given):
        nonlocal most
        most = max(most, len(engine.scheduler.by_id))
        return step(*given)

    monkeypatch.setattr(engine, "step", watched)
    prompts = [[3 + i % 40, 5, 6] for i in range(60)]
    results = llm.generate(prompts, SamplingParams(**GREEDY))
    assert most <= 8
    assert [r.prompt_token_ids for r in results] == prompts


def test_a_streams_clock_starts_when_it_is_read(llm: LLM) -> None:
    stream = llm.stream("hello", SamplingParams(**GREEDY))
    time.sleep(0.3)
    assert next(stream).metrics.queued < 0.3


def test_tenants_are_apart_in_streams_too(folder: Path) -> None:
    llm = LLM(folder, block_size=8)
    prompt = list(range(3, 43))
    params = SamplingParams(**GREEDY)
    counts = [list(llm.stream(prompt, params, salt=s))[-1].num_cached_tokens for s in "aab"]
    assert counts == [0, 32, 0]


# --- conversations ---


def test_chat_goes_through_the_template(tmp_path: Path, llm: LLM) -> None:
    speaking = LLM(tiny_folder(tmp_path, chat_template=TEMPLATE))
    talk = [{"role": "user", "content": "hi"}]
    (out,) = speaking.chat(talk, SamplingParams(**GREEDY))
    assert out.prompt == "<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    assert out.prompt_token_ids.count(480) == 2, "the template writes BOS, the tokenizer does not"
    assert len(speaking.chat([talk, talk], SamplingParams(**GREEDY))) == 2
    for wrong in ([], ["hi"], [{"content": "x"}], "hi"):
        with pytest.raises(RequestError, match="messages"):
            speaking.chat(wrong)


# --- settings ---


def test_unknown_settings_name_the_nearest(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'max_model_length' \(did you mean"):
        LLM(folder, max_model_length=5)
    with pytest.raises(ConfigError, match="model = 5"):
        LLM(5)


def test_a_length_above_the_models_is_allowed_with_a_warning(folder: Path) -> None:
    heard: list[str] = []

    class Told:
        def show_plan(self, plan, found) -> None:
            heard.append(json.dumps(plan.list_rows()))

        def report_progress(self, done, total) -> None: ...

        def note(self, message) -> None: ...

        def warn(self, message) -> None:
            heard.append(message)

    llm = LLM(folder, max_model_len=300, notify=Told())
    assert llm.loaded.limits.max_model_len == 300
    assert "max_model_len = 300 is above the 256 tokens" in heard[0]
    assert len(heard) == 2
