"""The rarer ways to decode, as `LLM`'s callers ask for them, on the story model."""

import math
import pickle

import numpy as np
import pytest

from flyweight import LLM, RequestError, SamplingParams

PROMPT = "Once upon a time there was"
GREEDY = {"temperature": 0.0, "max_tokens": 24}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(threads=2, max_model_len=512)


def text(llm: LLM, prompt: str = PROMPT, **options) -> str:
    return llm.generate(prompt, SamplingParams(**options), use_tqdm=False)[0].outputs[0].text


# --- words and ids ---


def test_bad_words_do_not_come(llm: LLM) -> None:
    usual = text(llm, **GREEDY)
    assert "little girl named" in usual
    words = ["girl", "boy", "named"]
    for draft in (0, 3):
        other = LLM(threads=2, max_model_len=128, draft_tokens=draft) if draft else llm
        found = text(other, bad_words=words, **GREEDY)
        assert "little" in found and not any(word in found for word in words)
    several = text(llm, bad_words=["little girl"], **GREEDY)
    assert "little" in several and "little girl" not in several


def test_allowed_ids_are_the_only_ones(llm: LLM) -> None:
    ids = llm.tokenizer.encode(" little dog ran and a cat sat.", add_special=False)
    params = SamplingParams(allowed_token_ids=ids, seed=1, max_tokens=40, temperature=2.0)
    (out,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert set(out.outputs[0].token_ids) <= set(ids) and len(set(out.outputs[0].token_ids)) > 5
    with pytest.raises(RequestError, match="allowed_token_ids: token id 999999 is out of range"):
        llm.generate(PROMPT, SamplingParams(allowed_token_ids=[999999]))


def test_dry_breaks_loops(llm: LLM) -> None:
    prompt = "a b c d e f g h " * 6
    ids = llm.tokenizer.encode(prompt)
    likely = dict.fromkeys(ids, 6.0)
    loop = llm.generate(prompt, SamplingParams(**GREEDY, logit_bias=likely), use_tqdm=False)[0]
    dry = SamplingParams(**GREEDY, logit_bias=likely, dry_multiplier=4.0)
    free = llm.generate(prompt, dry, use_tqdm=False)[0]

    def longest(out) -> int:
        """How many of the tokens repeat what stands in the text before, at most."""
        text = list(out.prompt_token_ids) + list(out.outputs[0].token_ids)
        first, best = len(out.prompt_token_ids), 0
        for begin in range(first, len(text)):
            for n in range(1, len(text) - begin + 1):
                part = text[begin : begin + n]
                if any(text[i : i + n] == part for i in range(begin - 1)):
                    best = max(best, n)
        return best

    assert longest(free) < longest(loop)


# --- the prompt's log-probabilities ---


def test_prompt_logprobs_are_of_every_token_but_the_first(llm: LLM) -> None:
    params = SamplingParams(prompt_logprobs=2, **GREEDY)
    for _ in range(2):  # the second finds nothing in the cache, by choice
        (out,) = llm.generate(PROMPT, params, use_tqdm=False)
        assert out.num_cached_tokens == 0 and out.prompt_logprobs is not None
        assert len(out.prompt_logprobs) == len(out.prompt_token_ids)
        assert out.prompt_logprobs[0] is None
        for token, found in zip(out.prompt_token_ids[1:], out.prompt_logprobs[1:], strict=True):
            assert found is not None and next(iter(found)) == token and 2 <= len(found) <= 3
            assert found[token].decoded_token == llm.tokenizer.decode([token])
            assert all(x.logprob <= 0 for x in found.values())
            assert sorted(x.rank for x in found.values())[:2] == [1, 2]
    (plain,) = llm.generate(PROMPT, SamplingParams(**GREEDY), use_tqdm=False)
    assert plain.prompt_logprobs is None and plain.outputs == out.outputs
    assert tuple(pickle.loads(pickle.dumps(out)).prompt_logprobs) == tuple(out.prompt_logprobs)


def test_they_are_what_generating_the_same_tokens_gives(llm: LLM) -> None:
    (whole,) = llm.generate(PROMPT, SamplingParams(logprobs=3, **GREEDY), use_tqdm=False)
    ids = [*whole.prompt_token_ids, *whole.outputs[0].token_ids]
    params = SamplingParams(prompt_logprobs=3, max_tokens=0)
    (again,) = llm.generate([ids], params, use_tqdm=False)
    assert again.prompt_logprobs[len(whole.prompt_token_ids) :] == tuple(whole.outputs[0].logprobs)


def test_long_prompts_among_others(llm: LLM) -> None:
    """Equal alone and in company; 256 rows at a time."""
    prompts = [PROMPT * n for n in (1, 40, 25, 3)]
    params = [SamplingParams(prompt_logprobs=n % 3, **GREEDY) for n in range(4)]
    alone = [llm.generate(p, s, use_tqdm=False)[0] for p, s in zip(prompts, params, strict=True)]
    model, widest = llm.loaded.engine.runner.model, [0]
    logits = model.compute_logits

    def watched(x):
        widest.append(len(x))
        return logits(x)

    model.compute_logits = watched
    try:
        together = llm.generate(prompts, params, use_tqdm=False)
    finally:
        del model.compute_logits
    assert 200 < max(widest) <= 256 + 4
    for one, other in zip(alone, together, strict=True):
        assert one.prompt_logprobs == other.prompt_logprobs
        assert one.outputs[0].token_ids == other.outputs[0].token_ids


def test_echo_puts_the_prompt_before_the_text(llm: LLM) -> None:
    plain = text(llm, **GREEDY)
    assert text(llm, echo=True, **GREEDY) == PROMPT + plain
    ids = llm.tokenizer.encode(PROMPT)
    (out,) = llm.generate([ids], SamplingParams(echo=True, logprobs=1, **GREEDY), use_tqdm=False)
    assert out.outputs[0].text == PROMPT + plain
    assert out.prompt_logprobs is not None and len(out.prompt_logprobs) == len(ids)
    parts = [p.outputs[0].delta for p in llm.stream(PROMPT, SamplingParams(echo=True, **GREEDY))]
    assert "".join(parts) == PROMPT + plain and parts[0].startswith(PROMPT)


def test_a_prompt_alone_can_be_scored(llm: LLM) -> None:
    (out,) = llm.generate(
        PROMPT, SamplingParams(echo=True, logprobs=0, max_tokens=0), use_tqdm=False
    )
    choice = out.outputs[0]
    assert (choice.text, choice.token_ids, choice.finish_reason) == (PROMPT, [], "length")
    scores = [next(iter(found.values())).logprob for found in out.prompt_logprobs[1:]]
    assert len(scores) == 6 and math.fsum(scores) < 0
    with pytest.raises(RequestError, match="max_tokens = 0"):
        SamplingParams(max_tokens=0)


def test_an_engine_without_rows_for_them_says_so() -> None:
    small = LLM(threads=1, max_model_len=64, prompt_logprob_rows=0)
    with pytest.raises(RequestError, match="not supported with prompt_logprob_rows = 0"):
        small.generate(PROMPT, SamplingParams(prompt_logprobs=1))
    assert text(small, **GREEDY)


def test_more_log_probabilities_where_memory_is_planned_for_them(llm: LLM) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(RequestError, match=rf"{name} = 21 is out of range; .* valid: 20"):
            llm.generate(PROMPT, SamplingParams(max_tokens=1, **{name: 21}))
    wide = LLM(threads=1, max_model_len=64, max_logprobs=64)
    (out,) = wide.generate(PROMPT, SamplingParams(max_tokens=2, temperature=0, logprobs=64))
    for entry in out.outputs[0].logprobs or ():
        found = [one.logprob for one in entry.values()]
        assert len(found) == 64 and found == sorted(found, reverse=True)
        assert [one.rank for one in entry.values()] == list(range(1, 65))
    assert wide.loaded.memory.sizing.scores == 64


# --- the best of several ---


def test_best_of_returns_the_likeliest(llm: LLM) -> None:
    common = {"temperature": 1.2, "seed": 3, "max_tokens": 12}
    (drawn,) = llm.generate(PROMPT, SamplingParams(n=6, logprobs=1, **common), use_tqdm=False)
    ranked = sorted(drawn.outputs, key=lambda o: -o.cumulative_logprob)
    (best,) = llm.generate(PROMPT, SamplingParams(n=2, best_of=6, **common), use_tqdm=False)
    assert [o.index for o in best.outputs] == [0, 1]
    assert [o.token_ids for o in best.outputs] == [o.token_ids for o in ranked[:2]]
    assert [o.cumulative_logprob for o in best.outputs] == [
        o.cumulative_logprob for o in ranked[:2]
    ]
    assert ranked[0].token_ids != drawn.outputs[0].token_ids, "or it proves nothing"
    assert all(o.logprobs is None for o in best.outputs), "they were not requested"
    shown = SamplingParams(n=2, best_of=6, logprobs=1, **common)
    (with_logprobs,) = llm.generate(PROMPT, shown, use_tqdm=False)
    assert with_logprobs.outputs[0].logprobs == ranked[0].logprobs
    (same,) = llm.generate(PROMPT, SamplingParams(n=2, best_of=2, **common), use_tqdm=False)
    assert [o.token_ids for o in same.outputs] == [o.token_ids for o in drawn.outputs[:2]]


def test_best_of_where_there_is_no_best(llm: LLM) -> None:
    text = r"best_of = 2 is less than n = 3, the number of choices to return; nearest valid: 3"
    with pytest.raises(RequestError, match=text):
        SamplingParams(n=3, best_of=2)
    with pytest.raises(RequestError, match="best_of = 4 is not supported here: the best"):
        llm.stream(PROMPT, SamplingParams(best_of=4))
    assert len(list(llm.stream(PROMPT, SamplingParams(n=2, best_of=2, max_tokens=3)))) >= 3


# --- callers' own functions ---


def test_a_processor_sees_the_tokens_and_says_what_to_draw_from(llm: LLM) -> None:
    ids = llm.tokenizer.encode(PROMPT)
    wanted = llm.tokenizer.encode(" The dog ran.", add_special=False)
    seen = []

    def dictate(generated, row):
        seen.append(list(generated))
        assert row.dtype == np.float32 and row.shape == (llm.loaded.spec.vocab,)
        row[:] = -np.inf
        row[wanted[len(generated)]] = 0.0
        return row

    def last_id(prompt, generated, row):
        assert list(prompt) == list(ids)
        return row + 0.0

    params = SamplingParams(max_tokens=len(wanted), logits_processors=[last_id, dictate])
    (out,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert out.outputs[0].token_ids == list(wanted)
    assert seen == [list(wanted[:n]) for n in range(len(wanted))]


def test_a_processor_is_its_requests_alone(llm: LLM) -> None:
    """next to others, with drafts on and the prompt scored: each text is what it is alone."""

    def no_little(generated, row):
        row[llm.tokenizer.encode(" little", add_special=False)[0]] = -np.inf
        return row

    guessing = LLM(threads=2, max_model_len=256, draft_tokens=3)
    params = [
        SamplingParams(**GREEDY, prompt_logprobs=1),
        SamplingParams(**GREEDY, logits_processors=[no_little], prompt_logprobs=0, logprobs=2),
        SamplingParams(temperature=0.9, seed=4, n=2, logits_processors=[no_little]),
    ]
    for model in (llm, guessing):
        alone = [model.generate(PROMPT, one, use_tqdm=False)[0] for one in params]
        together = model.generate([PROMPT] * 3, params, use_tqdm=False)
        for one, other in zip(alone, together, strict=True):
            assert one.outputs == other.outputs
        assert "little" in alone[0].outputs[0].text
        assert not any("little" in o.text for out in alone[1:] for o in out.outputs)


@pytest.mark.parametrize(
    "processor, words",
    [
        (lambda ids, row: 1 / 0, "logits_processors[1] raised ZeroDivisionError: division by zero"),
        (lambda ids, row: None, "logits_processors[1] raised TypeError: it returned None"),
        (lambda ids, row: row[:5], "of shape (5,); needed: ("),
        (lambda ids, row: "abc", "logits_processors[1] raised ValueError: could not convert"),
        (lambda ids: ids, "logits_processors[1] raised TypeError"),
        (lambda ids, row: row * np.nan, "logits_processors[1] raised ValueError: it left no token"),
    ],
)
def test_what_a_processor_raises_ends_its_request_only(llm: LLM, processor, words: str) -> None:
    def later(generated, row):
        return row if len(generated) < 3 else processor(generated, row)

    plain = text(llm, **GREEDY)
    params = [SamplingParams(**GREEDY)] * 3
    failing = later if processor.__code__.co_argcount == 2 else processor
    params[1] = SamplingParams(**GREEDY, logits_processors=[lambda ids, row: row, failing])
    outs = llm.generate([PROMPT] * 3, params, use_tqdm=False)
    assert [o.outputs[0].finish_reason for o in outs] == ["length", "error", "length"]
    assert words in outs[1].outputs[0].stop_reason and "\n" not in outs[1].outputs[0].stop_reason
    assert len(outs[1].outputs[0].token_ids) == (3 if failing is later else 0)
    assert outs[0].outputs[0].text == outs[2].outputs[0].text == plain
    last = list(llm.stream(PROMPT, params[1]))[-1]
    assert last.outputs[0].finish_reason == "error" and last.finished
    assert not llm.loaded.engine.busy and not llm.loaded.engine.scheduler.by_id


def test_numbers_that_are_none_are_banned(llm: LLM) -> None:
    def holes(generated, row):
        row[::2], row[1] = np.nan, np.inf
        return row

    for options in ({}, {"typical_p": 0.9}, {"temperature": 0.0}):
        params = SamplingParams(max_tokens=3, logits_processors=[holes], **options)
        (out,) = llm.generate(PROMPT, params, use_tqdm=False)
        assert out.outputs[0].token_ids == [1] * len(out.outputs[0].token_ids)


# --- log-probabilities of listed ids ---


def test_listed_ids_replace_the_most_likely_ones(llm: LLM) -> None:
    usual = llm.generate(PROMPT, SamplingParams(**GREEDY, logprobs=20), use_tqdm=False)[0]
    known = usual.outputs[0].logprobs
    assert known is not None
    ids = [*reversed(list(known[0])[:10]), 5]
    params = SamplingParams(**GREEDY, logprobs=2, logprob_token_ids=ids)
    listed = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0]
    assert listed.token_ids == usual.outputs[0].token_ids and listed.logprobs is not None
    for token, entry, best in zip(listed.token_ids, listed.logprobs, known, strict=True):
        assert list(entry) == list(dict.fromkeys([token, *ids]))
        assert entry[token] == best[token]
        for id in set(ids) & set(best):
            assert entry[id].logprob == pytest.approx(best[id].logprob, rel=1e-5)
        assert all(one.rank is None for id, one in entry.items() if id != token)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logprob_token_ids": [9999]}, "token id 9999 is out of range"),
        ({"logprob_token_ids": list(range(21))}, "has 21 ids; allowed: up to 20"),
        (
            {"logprob_token_ids": [5], "echo": True, "max_tokens": 0},
            "cannot be combined with max_tokens = 0",
        ),
    ],
)
def test_bad_lists_of_logprob_ids_are_refused(llm: LLM, options, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        text(llm, **options)
    assert caught.value.path == "logprob_token_ids"
