"""An adaptive `speculative_config` in `LLM`: the same tokens, and the speed-up is reported."""

from flyweight.llm import LLM
from flyweight.outputs import Gauge
from flyweight.sampling_params import SamplingParams

PROMPTS = ["The cat sat. The cat sat. The cat sat. The", "Once upon a time"]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
SPEEDUP = "flyweight:spec_decode_speedup"


def test_the_measured_speedup_is_in_results_and_metrics() -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    found = {}
    for adaptive in (True, False):
        config = {**NGRAM, "adaptive": adaptive}
        with LLM(threads=1, max_model_len=128, speculative_config=config) as llm:
            outputs = [llm.generate(prompt, params)[0] for prompt in PROMPTS]
            metrics = {one.name: one for one in llm.get_metrics()}
            stats = llm.stats()
        found[adaptive] = [one.outputs[0].token_ids for one in outputs]
        speedup = outputs[0].metrics.draft_speedup
        assert (speedup is not None and speedup > 0) == adaptive
        assert (SPEEDUP in metrics) == adaptive == (stats["decode_us"] > 0)
        if adaptive:
            gauge = metrics[SPEEDUP]
            assert isinstance(gauge, Gauge) and gauge.value > 0
    assert found[True] == found[False]


def test_that_drafting_has_ended_is_reported() -> None:
    with LLM(threads=1, max_model_len=128, speculative_config=NGRAM) as llm:
        drafts = llm.loaded.engine.drafts
        assert drafts.calls.tap == llm.loaded.engine.runner.tap  # type: ignore[attr-defined]
        rows = {row["feature"]: row["effective"] for row in llm.effective}
        assert rows["speculative_config"] == "ngram, 4 tokens a step"
        drafts.calls.drafter.forget = None  # type: ignore[method-assign, union-attr, assignment]
        llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=4))
        rows = {row["feature"]: row["effective"] for row in llm.effective}
        assert rows["speculative_config"] == "ended"
