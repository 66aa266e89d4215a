"""Rejection sampling in an engine: texts of models and of grammars have the target's distribution,
also where drafts end early.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import erfc, sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from random_models import answers, engine, random_model, request

from flyweight.draft.handover import WRITE_ON, HandOver
from flyweight.draft.latetokens import LateTokens
from flyweight.draft.model import ModelDrafter
from flyweight.draft.suffix import SuffixDrafter
from flyweight.draft.vocabulary import IdMap
from flyweight.engine.engine import Engine
from flyweight.kv.memory import allocate_kv
from flyweight.llm import LLM
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.params.structured import StructuredOutputs
from flyweight.types import Request, SamplingParams

LEAST = 1e-4  # of a p-value

FEW = {"allowed_token_ids": (3, 4, 5, 6, 7)}
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, **FEW},
    {"temperature": 0.9, "top_k": 4, "top_p": 0.9, "frequency_penalty": 0.5, **FEW},
)


@pytest.fixture(scope="module")
def target() -> Decoder:
    return random_model(CpuOps(2), "q8_0")


def rejecting(
    target: Decoder,
    draft: Decoder,
    ids: IdMap | None = None,
    hand_over: HandOver = WRITE_ON,
    **limits: Any,
) -> Engine:
    roomy = {"max_num_batched_tokens": 512, **limits}  # drafts have what prompts leave
    made = engine(target, "f16", draft_tokens=3, vocab=target.spec.vocab, **roomy)
    layers = allocate_kv(draft.spec, draft.ops, made.scheduler.limits, "f16")
    made.runner.draft_kv = layers
    late = LateTokens(made.scheduler.limits.blocks, made.scheduler.limits.block_size)
    drafter = ModelDrafter(draft, layers, late, ids, probs=True, hand_over=hand_over)
    made.drafts.__init__(drafter, made.scheduler, made.metrics)
    made.drafts.reject()
    return made


def ask(count: int, options: dict[str, Any]) -> list[Request]:
    return [request(f"r{i}", [9, 8, 7, 6], 4, seed=i, **options) for i in range(count)]


def count_texts(found: Iterable[Any]) -> dict[tuple[int, ...], int]:
    counts: dict[tuple[int, ...], int] = {}
    for one in found:
        key = tuple(one.tokens[:3])
        counts[key] = counts.get(key, 0) + 1
    return counts


def compare_samples(a: dict[Any, int], b: dict[Any, int]) -> float:
    """The p-value of two samples of one size from the same distribution."""
    keys = sorted({*a, *b}, key=lambda key: -(a.get(key, 0) + b.get(key, 0)))
    pairs = np.array([[a.get(key, 0), b.get(key, 0)] for key in keys], float)
    common = pairs.sum(axis=1) >= 10
    pairs = np.vstack([pairs[common], pairs[~common].sum(axis=0)])
    expected = np.repeat(pairs.sum(axis=1, keepdims=True) / 2, 2, axis=1)
    statistic = ((pairs - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    degrees = len(pairs) - 1
    spread = 2 / (9 * degrees)
    return 0.5 * erfc(((statistic / degrees) ** (1 / 3) - (1 - spread)) / sqrt(2 * spread))


@pytest.mark.parametrize("options", OPTIONS)
def test_an_engines_texts_have_the_same_distribution(target, options) -> None:
    plain = answers(engine(target, max_num_seqs=64), ask(400, options))
    made = rejecting(target, random_model(CpuOps(2), "q8_0", seed=1), max_num_seqs=64)
    found = answers(made, ask(400, options))
    assert 50 < made.metrics.accepted < made.metrics.proposed and not made.drafts.calls.ended
    assert compare_samples(count_texts(plain.values()), count_texts(found.values())) > LEAST


def test_drafts_that_are_handed_over_early_keep_the_distribution(target) -> None:
    plain = answers(engine(target, max_num_seqs=64), ask(400, OPTIONS[0]))
    draft = random_model(CpuOps(2), "q8_0", seed=1)
    made = rejecting(target, draft, hand_over=HandOver(0.2), max_num_seqs=64)
    found = answers(made, ask(400, OPTIONS[0]))
    assert 1 < made.metrics.proposed / made.metrics.drafts < 1.5  # of at most 3
    assert made.metrics.accepted > 50
    assert compare_samples(count_texts(plain.values()), count_texts(found.values())) > LEAST


ALLOWED, STOP = (3, 4, 6), 5


class AnyAllowed:
    """A grammar: any of a few tokens, each as often as you like, until the end."""

    broken = ""

    def __init__(self, ended: int = 0) -> None:
        self.ended = ended  # tokens taken, from the end on

    def copy(self) -> "AnyAllowed":
        return AnyAllowed(self.ended)

    def compile(self, outputs: StructuredOutputs) -> "AnyAllowed":
        return AnyAllowed()

    @property
    def over(self) -> bool:
        return self.ended > 0

    def take(self, tokens: Any) -> int:
        count = self.fits(tokens)
        self.ended += STOP in tokens[:count]
        return count

    def back(self, count: int) -> None:
        self.ended -= self.ended > 0 and count > 0

    def fits(self, tokens: Any) -> int:
        for i, token in enumerate(tokens):
            if self.ended or STOP in tokens[:i] or token not in (*ALLOWED, STOP):
                return i
        return len(tokens)

    def mask(self, *, endless: bool = False) -> NDArray[np.uint32]:
        words = np.zeros(-(-331 // 32), np.uint32)
        words[0] = sum(1 << token for token in (STOP, *(() if self.ended else ALLOWED)))
        return words


def test_texts_of_a_grammar_have_the_same_distribution(target) -> None:
    """Which of the drafts are refused depends on what was drawn."""
    own = StructuredOutputs(regex="x")
    options = {"temperature": 1.0, "structured_outputs": own, **FEW}
    asked = [replace(one, stop_ids=frozenset({STOP})) for one in ask(800, options)]
    plain = engine(target, max_num_seqs=64)
    made = rejecting(target, random_model(CpuOps(2), "q8_0", seed=3), max_num_seqs=64)
    texts = []
    for one in (plain, made):
        one.grammars._make = AnyAllowed
        texts.append(count_texts(answers(one, asked).values()))
    assert 50 < made.metrics.accepted < made.metrics.proposed and not made.drafts.calls.ended
    assert compare_samples(*texts) > LEAST


def test_drafts_that_are_copied_change_no_text_though_a_seed_repeats(target) -> None:
    """The earlier answers were drawn with the same random numbers: nothing may depend on both."""
    asked = ask(20, OPTIONS[0])
    plain = answers(engine(target, max_num_seqs=64), asked)
    roomy = {"max_num_batched_tokens": 512, "max_num_seqs": 64, "draft_tokens": 3}
    made = engine(target, vocab=target.spec.vocab, **roomy)
    made.drafts.__init__(SuffixDrafter(), made.scheduler, made.metrics)
    made.drafts.reject()
    for _ in range(3):
        assert answers(made, asked) == plain
    assert 20 < made.metrics.accepted < made.metrics.proposed and not made.drafts.calls.ended


def test_drafts_that_end_at_unmapped_tokens_change_no_distribution(target) -> None:
    """Where a draft ends depends on what was drawn, so the target's draw there may not."""
    own = np.arange(target.spec.vocab, dtype=np.int32)
    most = np.where(own % 5 == 0, np.int32(-1), own)
    ids = IdMap(most, most)
    options = {"temperature": 1.0, "top_k": 3}
    plain = answers(engine(target, max_num_seqs=64), ask(400, options))
    made = rejecting(target, target, ids, max_num_seqs=64)
    found = answers(made, ask(400, options))
    assert made.metrics.accepted > 50 and not made.drafts.calls.ended
    assert compare_samples(count_texts(plain.values()), count_texts(found.values())) > LEAST


def test_probabilities_are_spread_over_the_tokens_that_both_have() -> None:
    ids = IdMap(np.array([2, -1, 0], np.int32), np.array([2, -1, 0, -1], np.int32))
    assert ids.spread(np.array([0.2, 0.1, 0.6, 0.1], np.float32)).tolist() == pytest.approx(
        [0.75, 0, 0.25]
    )
    assert ids.spread(np.array([0, 0.5, 0, 0.5], np.float32)).tolist() == [0, 0, 0]


def test_the_configuration_chooses_it() -> None:
    prompt = "One day, a cat saw a cat. The cat said: I saw a cat. " * 3
    params = SamplingParams(temperature=0, max_tokens=80)
    texts = []
    for verifier in ("coupled", "rejection"):
        config = {"num_speculative_tokens": 4, "prompt_lookup_min": 1, "verifier": verifier}
        config |= {"adaptive": False}
        with LLM(max_model_len=128, threads=2, speculative_config=config) as llm:
            assert (llm.loaded.engine.drafts.probs is None) == (verifier == "coupled")
            rows = {row["feature"]: row["reason"] for row in llm.effective}
            assert ("same distribution" in rows["speculative_config"]) == (verifier == "rejection")
            texts.append(llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text)
            assert llm.stats()["accepted"] > 0
    assert texts[0] == texts[1]


def test_greedy_texts_are_the_same(target) -> None:
    greedy = [request(f"r{i}", range(i, 3 * i + 2), 12, temperature=0) for i in range(12)]
    plain = answers(engine(target), greedy)
    made = rejecting(target, target)
    assert answers(made, greedy) == plain
    assert made.metrics.accepted == made.metrics.proposed > 0


def test_a_model_that_drafts_for_itself_is_always_right(target) -> None:
    made = rejecting(target, target)
    answers(made, ask(40, {"temperature": 1.0, "top_p": 0.95, "n": 2}))
    assert made.metrics.accepted == made.metrics.proposed > 100


def test_log_probabilities_are_of_the_tokens_that_came_out(target) -> None:
    made = rejecting(target, random_model(CpuOps(2), "q8_0", seed=1))
    asked = [request(f"r{i}", [9, 8], 6, seed=i, **OPTIONS[0]) for i in range(20)]
    found = answers(made, asked)
    for one in asked:
        text = found[one.id, 0].tokens
        scored = request("s", [9, 8, *text], 1, prompt_logprobs=0)
        expected = [row.chosen for row in answers(engine(target), [scored])["s", 0].prompt[1:]]
        assert np.allclose([row.chosen for row in found[one.id, 0].logprobs], expected, atol=1e-5)
