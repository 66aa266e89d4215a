"""Heads that do not see all steps: the same text, no states of the model meanwhile, and drafts for
sequences that begin afterwards.
"""

from typing import Any

import pytest

from flyweight import LLM, SamplingParams
from flyweight.engine.draft_limits import CountedStep, FullDrafts
from flyweight.models.decoder import Decoder
from flyweight.types import Request

PROMPTS = ["Once upon a time there was a dog", "Lily and Tom went to the", "One day a bird saw"]
PARAMS = [SamplingParams(temperature=t, seed=3, max_tokens=40, ignore_eos=True) for t in (0, 0.8)]
HEADS: dict[str, dict[str, Any]] = {
    "medusa": {"num_speculative_tokens": 3},
    "eagle": {"num_speculative_tokens": 3},
    "eagle tree": {"num_speculative_tokens": 8, "tree_width": 3},
    "eagle3": {"num_speculative_tokens": 3},
}


class ScriptedRests(FullDrafts):
    """Drafts always, but for rests: each begins after `awake` steps, and ends where it may."""

    def __init__(self, awake: int) -> None:
        super().__init__()
        self.awake, self.left, self.rests = awake, awake, 0

    def end(self, shape: CountedStep, ended: float, now: float) -> bool:
        self.left -= 1
        if self.left == 0:
            self.resting = True
            self.rests += 1
        return not self.resting

    def wake(self) -> bool:
        self.resting, self.left = False, self.awake
        return True


def answer(llm: LLM, params: SamplingParams) -> list[list[int]]:
    """Prompts together, then each alone; they begin while others rest or do not."""
    together = llm.generate(PROMPTS, params, use_tqdm=False)
    alone = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in (*PROMPTS, *PROMPTS)]
    return [list(one.outputs[0].token_ids) for one in (*together, *alone)]


@pytest.mark.parametrize("name", HEADS)
def test_texts_are_the_same_with_rests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"threads": 1, "max_model_len": 128, "max_num_seqs": 4}
    with LLM(**options) as llm:
        expected = [answer(llm, params) for params in PARAMS]
    tapped: list[int] = []
    compute = Decoder.compute_tapped

    def count(self: Decoder, *given: Any) -> Any:
        tapped.append(1)
        return compute(self, *given)

    monkeypatch.setattr(Decoder, "compute_tapped", count)
    method = name.split()[0]
    config = {"method": method, "model": f"stories-{method}", "adaptive": False, **HEADS[name]}
    with LLM(speculative_config=config, **options) as llm:
        drafts = llm.loaded.engine.drafts
        drafts.limits = limits = ScriptedRests(awake=12)
        assert [answer(llm, params) for params in PARAMS] == expected
        assert limits.rests > 5 and drafts.metrics.accepted > 0
        assert not drafts.calls.missed  # those that ended are forgotten
        # while it rests, the states of no layer are taken, and nothing is drafted
        limits.awake = limits.left = 1
        llm.generate(PROMPTS[0], SamplingParams(max_tokens=2), use_tqdm=False)
        assert limits.resting
        monkeypatch.setattr(limits, "wake", lambda: False)
        steps, proposed = len(tapped), drafts.metrics.proposed
        llm.generate(PROMPTS[0], PARAMS[0], use_tqdm=False)
        assert len(tapped) == steps and drafts.metrics.proposed == proposed
        # and a sequence that begins once the rest is over gets drafts again
        monkeypatch.undo()
        limits.awake = 1000
        llm.generate(PROMPTS[0], PARAMS[0], use_tqdm=False)
        assert drafts.metrics.proposed > proposed


def test_a_sequence_that_went_on_during_a_rest_gets_no_drafts() -> None:
    config = {
        "method": "eagle", "model": "stories-eagle", "num_speculative_tokens": 3, "adaptive": False,
    }  # fmt: skip
    with LLM(threads=1, max_model_len=128, speculative_config=config) as llm:
        drafts = llm.loaded.engine.drafts
        drafts.limits = limits = ScriptedRests(awake=1)
        engine, first = llm.loaded.engine, SamplingParams(temperature=0, max_tokens=30)
        texts = [tuple(llm.loaded.tokenizer.encode(prompt)) for prompt in PROMPTS]
        requests = [Request(f"{i}", text, first, max_tokens=30) for i, text in enumerate(texts)]
        engine.add(requests[0])
        for _ in range(3):
            engine.step()
        assert limits.resting and drafts.metrics.proposed == 0
        limits.awake = 1000
        engine.add(requests[1])
        engine.step()
        assert not limits.resting and drafts.calls.missed == {("0", 0)}
        while engine.busy:
            drafted = {seq.request.id for seq in engine.scheduler.running if seq.draft}
            assert drafted <= {"1"}
            engine.step()
        assert drafts.metrics.proposed > 0 and not drafts.calls.missed
