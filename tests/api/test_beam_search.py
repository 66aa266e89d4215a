"""`LLM.beam_search`: the answers of a search as its callers see them."""

from itertools import product
from pathlib import Path

import pytest

from flyweight import LLM, BeamSearchParams, RequestError, SamplingParams
from tiny_model import VOCAB, tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, threads=2, block_size=8, activations="f32")


def scored(llm: LLM, prompt: str, tokens: list[int]) -> float:
    """The log-probability of an answer, one forced token after the other."""
    ids, total = llm.tokenizer.encode(prompt), 0.0
    for token in tokens:
        params = SamplingParams(allowed_token_ids=[token], logprobs=0, max_tokens=1)
        (out,) = llm.generate([ids], params, use_tqdm=False)
        total += out.outputs[0].cumulative_logprob
        ids = [*ids, token]
    return total


def test_beams_are_answers_best_first(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=6, length_penalty=0.5)
    (out,) = llm.beam_search("hello there", params)
    assert out.finished and out.prompt == "hello there" and len(out.outputs) == 4
    assert [choice.index for choice in out.outputs] == [0, 1, 2, 3]
    scores = [choice.score for choice in out.outputs]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 4
    for choice in out.outputs:
        total, length = choice.cumulative_logprob, len(choice.token_ids)
        assert choice.score == pytest.approx(total / length**0.5)
        assert total == pytest.approx(scored(llm, "hello there", choice.token_ids), abs=1e-4)
        assert choice.text == choice.delta == llm.tokenizer.decode(choice.token_ids)
        assert choice.finish_reason == "length"


def test_one_beam_is_greedy(llm: LLM) -> None:
    (out,) = llm.beam_search("hello", BeamSearchParams(1, 12, ignore_eos=True))
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    assert out.outputs[0].token_ids == llm.generate("hello", greedy)[0].outputs[0].token_ids


def test_the_models_end_is_an_answer(folder: Path, tmp_path: Path) -> None:
    (free,) = LLM(folder).beam_search("hello", BeamSearchParams(4, 8, ignore_eos=True))
    end = free.outputs[0].token_ids[3]
    ending = LLM(tiny_folder(tmp_path, {"eos_token_id": [end]}))
    (out,) = ending.beam_search("hello", BeamSearchParams(4, 8, length_penalty=-1.0))
    stopped = [choice for choice in out.outputs if choice.finish_reason == "stop"]
    assert stopped and all(choice.token_ids[-1] == end for choice in stopped)
    assert all(choice.text == ending.tokenizer.decode(choice.token_ids[:-1]) for choice in stopped)


def test_searches_do_not_depend_on_company(folder: Path, llm: LLM) -> None:
    prompts = ["hello", "hello there you", "a b c d e", "so it goes"]
    each = [BeamSearchParams(w, 10, p) for w, p in product((2, 3), (0.5, 2.0))]
    alone = [llm.beam_search(p, b)[0].outputs for p, b in zip(prompts, each, strict=True)]
    assert [out.outputs for out in llm.beam_search(prompts, each)] == alone
    tight = LLM(folder, block_size=4, blocks=64, max_num_batched_tokens=8, max_num_seqs=7,
                activations="f32", threads=1, draft_tokens=3)  # fmt: skip
    assert [out.outputs for out in tight.beam_search(prompts * 3, each * 3)] == alone * 3
    assert tight.stats()["proposed"] == 0  # beams decode without drafts


def test_bad_asks_are_refused(llm: LLM) -> None:
    for option, words in (
        ({"beam_width": 0}, "beam_width = 0 .*nearest valid: 1"),
        ({"beam_width": 33}, "beam_width = 33 .*nearest valid: 32"),
        ({"length_penalty": float("nan")}, "length_penalty = nan"),
        ({"length_penalty": 11}, "length_penalty = 11.0 .*nearest valid: 10"),
        ({"early_stopping": "always"}, "early_stopping = 'always' .*never"),
        ({"max_tokens": 0}, "max_tokens = 0"),
    ):
        with pytest.raises(RequestError, match=words):
            BeamSearchParams(**option)
    with pytest.raises(RequestError, match="params is a list of 2 for 1 prompt;"):
        llm.beam_search("a", [BeamSearchParams()] * 2)
    with pytest.raises(RequestError, match=f"among {VOCAB} tokens"):
        BeamSearchParams(32).check_ends(40, VOCAB)
    assert not llm.loaded.engine.busy
