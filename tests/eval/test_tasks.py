"""What tasks ask of a model: log-likelihoods as a page of NumPy has them, and answers."""

from collections.abc import Iterator

import numpy as np
import pytest
from plain_llama import log_probabilities

from flyweight import LLM, SamplingParams
from flyweight.errors import ConfigError, EngineError, RequestError
from flyweight.eval.tasks import (
    Likelihood,
    generate_answers,
    read_generation,
    score_continuations,
    share_requests,
    spread,
)
from flyweight.eval.windows import Window
from tiny_model import tiny_folder, tiny_tensors

CONTEXT = 64


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tiny_folder(tmp_path_factory.mktemp("tasks") / "model")
    options = {"activations": "f32", "kv_cache_dtype": "f32", "memory_limit": "8GiB"}
    with LLM(str(folder), max_model_len=CONTEXT, max_num_seqs=16, **options) as made:
        yield made


def draw_windows(count: int, seed: int) -> list[Window]:
    """Continuations of four lengths after each of some contexts, in the order of tasks."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        context = rng.integers(0, 480, rng.integers(1, 40)).tolist()
        start = rng.integers(0, 480, 3).tolist()
        for end in ([7], [9], start, [*start[:2], 5], rng.integers(0, 480, 20).tolist()):
            found.append(Window((*context, *end), len(end)))
    return found


def judge(window: Window) -> Likelihood:
    rows = log_probabilities(tiny_tensors(), list(window.tokens[:-1]))[-window.new :]
    new = window.tokens[-window.new :]
    total = sum(row[token] for row, token in zip(rows, new, strict=True))
    return Likelihood(total, rows.argmax(1).tolist() == list(new))


def make_greedy(tokens: list[int], new: int) -> Window:
    """Tokens, and the likeliest ones after them."""
    for _ in range(new):
        tokens = [*tokens, int(log_probabilities(tiny_tensors(), tokens)[-1].argmax())]
    return Window(tuple(tokens), new)


def test_likelihoods_are_those_of_numpy(llm: LLM) -> None:
    greedy = [make_greedy([5, 80, 11], new) for new in (1, 4)]
    almost = Window((*greedy[1].tokens[:-2], 3, greedy[1].tokens[-1]), 4)
    windows = [*draw_windows(40, seed=1), *greedy, almost]
    before = llm.stats()["requests"]
    found = score_continuations(llm, windows, lambda done, total: None)
    # Of each context two pairs differ in their last token only.
    assert llm.stats()["requests"] - before == 40 * 3 + 3
    wanted = [judge(window) for window in windows]
    for mine, theirs in zip(found, wanted, strict=True):
        assert abs(mine.total - theirs.total) < 1e-4
        assert mine.greedy == theirs.greedy
    assert [one.greedy for one in found[-3:]] == [True, True, False]


def test_contexts_are_computed_once(llm: LLM) -> None:
    """A block of a context is found by its second request; its last row is wanted."""
    size = llm.loaded.limits.block_size
    contexts = [np.random.default_rng(i).integers(0, 480, size + 1).tolist() for i in range(16)]
    windows = [Window((*c, *end), 2) for c in contexts for end in ([1, 2], [3, 4], [5, 6])]
    llm.reset_prefix_cache()
    before = llm.get_metrics()
    score_continuations(llm, windows, lambda done, total: None)
    hits = {metric.name: metric.value for metric in llm.get_metrics()}
    hits = {m.name: hits[m.name] - m.value for m in before if m.name.endswith("cache_hits")}
    assert hits == {"vllm:prefix_cache_hits": 16 * 2 * size}


def test_more_last_tokens_than_a_request_lists(llm: LLM) -> None:
    windows = [Window((4, 8, 15, token), 1) for token in range(150)]
    assert sorted(len(part) for group in share_requests(windows) for _, part in group) == [
        22, 64, 64,
    ]  # fmt: skip
    found = score_continuations(llm, windows, lambda done, total: None)
    row = log_probabilities(tiny_tensors(), [4, 8, 15])[-1]
    assert np.abs(np.array([one.total for one in found]) - row[:150]).max() < 1e-4
    assert sum(one.greedy for one in found) <= 1


def test_the_whole_context_is_used(llm: LLM) -> None:
    tokens = tuple(np.random.default_rng(3).integers(0, 480, CONTEXT).tolist())
    told: list[tuple[int, int]] = []
    window = Window(tokens, CONTEXT - 1)
    (found,) = score_continuations(llm, [window], lambda *now: told.append(now))
    assert abs(found.total - judge(window).total) < 1e-4 and told[-1] == (1, 1)
    with pytest.raises(RequestError, match="max_model_len = 64"):
        score_continuations(llm, [Window((*tokens, 1), 1)], lambda done, total: None)


def test_siblings_are_spread() -> None:
    groups = [[f"{name}{i}" for i in range(3)] for name in "abc"]
    groups[1].pop()
    assert list(spread(groups)) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2"]
    many = list(spread([[i, i] for i in range(40)]))
    assert many[:32] == [*range(16), *range(16)] and sorted(many) == sorted([*range(40)] * 2)


def test_answers(llm: LLM) -> None:
    tokens = llm.tokenizer.encode("the cat sat on the mat")
    params = read_generation({"max_gen_toks": 12, "until": []})
    (plain,) = generate_answers(llm, [(tokens, params)], lambda done, total: None)
    (same,) = llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
    assert plain == same.outputs[0].text and len(plain) > 4
    stopping = read_generation({"max_gen_toks": 12, "until": plain[3:5]})
    long = [*range(60), *tokens]
    asked = [(tokens, stopping), (long, params), (long[-CONTEXT + 12 :], params)]
    told: list[tuple[int, int]] = []
    first, *cut = generate_answers(llm, asked, lambda *now: told.append(now))
    assert first == plain[: plain.index(plain[3:5])]
    assert cut[0] == cut[1] and told[0] == (0, 3) and told[-1] == (3, 3)


def test_options_of_tasks() -> None:
    usual = SamplingParams(temperature=0, max_tokens=256)
    assert read_generation({}) == usual
    assert read_generation({"do_sample": False, "temperature": 0.7}) == usual
    found = read_generation(
        {"until": "\n", "max_gen_toks": 9, "do_sample": True, "temperature": 0.5, "top_p": 0.9}
    )
    assert found == SamplingParams(temperature=0.5, max_tokens=9, stop=["\n"], top_p=0.9)
    assert read_generation({"until": ["a", ""], "max_new_tokens": 4}).stop == ("a",)
    with pytest.raises(ConfigError, match=r"generation.top_pp is not an option here.*top_p"):
        read_generation({"top_pp": 1})


def test_an_error_of_the_engine_is_raised(llm: LLM) -> None:
    with pytest.raises(EngineError, match="failed while it computed"):
        score_continuations(llm, [Window((1, 2, 99999), 1)], lambda done, total: None)
