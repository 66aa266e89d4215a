"""The registry, and real techniques at small sizes on the model inside the package."""

import json
import re
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from flyweight.config import Settings
from flyweight.describe import describe, find
from flyweight.errors import ConfigError
from flyweight.prove import registry, stand_in, techniques
from flyweight.prove.drafting import DraftingSides
from flyweight.prove.engine_side import PromptLimits
from flyweight.prove.outcome import UnequalWork, check_work
from flyweight.prove.registry import NAMES, find_technique
from flyweight.prove.report import describe_outcome
from flyweight.prove.runner import ProvePlan, prove
from flyweight.prove.stand_in import write_long, write_predicting, write_wide
from flyweight.prove.technique import (
    CHANCE,
    LIMIT,
    METRICS,
    SIDES,
    Measurement,
    ProveJob,
    Technique,
)
from flyweight.prove.techniques import draft_model

STORIES = find(Settings.of())


def test_every_file_is_a_technique_and_every_name_has_one() -> None:
    folder = Path(techniques.__file__).parent
    files = {path.stem.replace("_", "-") for path in folder.glob("*.py")} - {"--init--"}
    assert files == set(NAMES)
    for technique in registry.list_techniques():
        assert technique.metric in METRICS and technique.off != technique.on
    assert find_technique("continuous").seed == "23x"  # the paper's, as docs/prove.md says


def test_the_page_lists_every_technique() -> None:
    page = Path(__file__).parents[2] / "docs" / "prove.md"
    table = page.read_text(encoding="utf-8").split("## Techniques", 1)[1]
    assert tuple(re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.M)) == NAMES


def test_an_unknown_technique_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"NAME = 'acp' is not a technique \(did you mean 'apc'"):
        find_technique("acp")


def test_prefix_caching_changes_no_token(tmp_path: Path) -> None:
    apc = find_technique("apc")
    runs = []
    for name in SIDES:
        side = apc.open(ProveJob(STORIES, tmp_path), name)
        assert list(side.notes) == [
            "requests are cut from 3,040 tokens to 512, the model's context"
        ]
        runs.append(side.run(0, 0.05))
        side.close()
    off, on = runs
    assert off.work == on.work == (4, 4 * (512 - 16), 4 * 16)
    assert off.answers == on.answers and len(on.ttfts) == 4 and len(on.itls) == 4 * 15


DRAFTERS = (
    "ngram", "ngram-prose", "suffix", "draft-model", "cascade", "medusa", "medusa-tree", "eagle",
    "eagle-tree", "eagle3",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", ["batching", "blocker", "stress", *DRAFTERS, "threads", "beam", "continuous"]
)
def test_techniques_that_promise_the_same_tokens_keep_it(name: str, tmp_path: Path) -> None:
    technique = find_technique(name)
    assert technique.exact
    off, on = (run_once(technique, side, tmp_path) for side in SIDES)
    assert off.work == on.work and off.work[2] > 0
    assert off.answers == on.answers
    assert off.figures["draft tokens"] == 0
    assert off.find_time(technique.metric) is not None
    assert on.find_time(technique.metric) is not None


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_drafts_on_its_own_workload(name: str, tmp_path: Path) -> None:
    """Without the controller, which decides by time."""
    sides = find_technique(name).open
    assert isinstance(sides, DraftingSides) and sides.choose_settings("off") == {}
    fixed = replace(sides, config={**sides.config, "adaptive": False})
    side = fixed(ProveJob(STORIES, tmp_path, 2), "on")
    first, second = (side.run(round, 1.0) for round in range(2))
    side.close()
    assert first.figures["draft tokens accepted"] > 0
    assert first.answers != second.answers  # another text in every round


def test_stories_are_cut_to_a_short_context() -> None:
    limits = PromptLimits(2048, 40, describe(STORIES).tokenizer)
    (prompt,) = draft_model.make_prompts(limits, 0, 1.0)
    assert len(prompt.tokens) <= 20 and len(prompt.tokens) + prompt.answer == 40


@pytest.mark.parametrize("name", ["kv-cache", "continuous", "ngram", "blocker", "beam"])
def test_requests_are_cut_to_a_short_context(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts and answers, to the model inside the package with a context of 64 tokens."""
    monkeypatch.setattr(stand_in, "LONG_CONTEXT", 64)
    short = write_long(tmp_path).path
    opened = find_technique(name).open(ProveJob(short, tmp_path, 2), "on")
    assert "to 64, the model's context" in opened.notes[0]
    found = opened.run(0, 0.01)
    opened.close()
    assert found.requests and found.prompt_tokens and found.output_tokens
    assert found.prompt_tokens + found.output_tokens <= 64 * found.requests * 4  # beams


def test_a_context_that_is_too_short_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "LONG_CONTEXT", 63)
    job = ProveJob(write_long(tmp_path).path, tmp_path, 2)
    with pytest.raises(ConfigError, match="needs a context of 64 tokens, this model has 63"):
        find_technique("kv-cache").open(job, "off")
    with pytest.raises(ConfigError, match="needs a context of 512 tokens, this model has 63"):
        find_technique("rag").open(job, "off")


@pytest.mark.parametrize("name", ["medusa", "medusa-tree", "eagle", "eagle-tree", "eagle3"])
def test_heads_of_another_model_cannot_be_measured(name: str, tmp_path: Path) -> None:
    """The stand-in has another hidden size than the heads of the package."""
    job = ProveJob(write_wide(tmp_path).path, tmp_path, 2)
    with pytest.raises(ConfigError, match=r"stories-[a-z0-9]+ is for another model: .*hidden_size"):
        find_technique(name).open(job, "on")


def test_a_simulation_is_on_no_model(tmp_path: Path) -> None:
    technique = find_technique("window")
    found = prove(
        technique, ProveJob(STORIES, tmp_path), ProvePlan(seconds=0),
        lambda technique, job, side: technique.open(job, side),
    )  # fmt: skip
    assert describe_outcome(found)[0].endswith(f"{len(found.pairs)} pairs simulated")


@pytest.mark.parametrize("name", ["weights", "kv-types", "isa"])
def test_techniques_that_compute_in_another_way_do_the_same_work(name: str, tmp_path: Path) -> None:
    technique = find_technique(name)
    assert not technique.exact
    off, on = (run_once(technique, side, tmp_path) for side in SIDES)
    assert off.work == on.work and off.work[2] > 0


def run_once(technique: Technique, side: str, folder: Path) -> Measurement:
    opened = technique.open(ProveJob(STORIES, folder, 2), side)
    try:
        return opened.run(0, 0.01)
    finally:
        opened.close()


def test_batching_differs_in_its_steps(tmp_path: Path) -> None:
    """As the engine counts them.  On a machine that reads a megabyte a second, the
    limit is set by reading the weights, once a step.
    """
    slow = {"read": 1e6, "int8": 1e12, "bf16": 1e12, "f32": 1e12}
    (tmp_path / "limits.json").write_text(json.dumps(slow))
    batching = find_technique("batching")
    off, on = (run_once(batching, side, tmp_path).figures for side in SIDES)
    assert off["steps"] == 5 * 64  # one sequence at a time
    assert 4 < off[LIMIT] / on[LIMIT] < 5.1
    assert on["steps"] < 2 * 64


@pytest.mark.parametrize("side", SIDES)
def test_the_limit_of_concurrency_counts_every_product_once(side: str, tmp_path: Path) -> None:
    """By hand, where reading is free and every unit has 1e9 operations a second.  Two requests of
    16 tokens in and 16 out compute 31 tokens each and 16 rows of logits; a token sees itself and
    all before it, so 31 · 32 / 2 pairs of a query and a key.  The model inside the package has
    six layers of 192, with six heads of 32, two of them in K and V, and 512 inside.
    """
    free = {"read": 1e18, "int8": 1e9, "bf16": 1e9, "f32": 1e9}
    (tmp_path / "limits.json").write_text(json.dumps(free))
    found = run_once(find_technique("stress"), side, tmp_path)
    assert found.work == (2, 32, 32)
    layer = 2 * 192 * 192 + 2 * 64 * 192 + 3 * 512 * 192
    products = 2 * (6 * layer * 62 + 2048 * 192 * 32)
    attention = 6 * 2 * (2 * 31 * 32 // 2) * 6 * (32 + 32)  # layers, pairs, heads, their widths
    assert found.figures[LIMIT] == pytest.approx((products + attention) / 1e9, rel=1e-6)


def test_the_wide_stand_in_is_a_model_of_random_weights(tmp_path: Path) -> None:
    made = describe(write_wide(tmp_path).path)
    assert made.spec.context == 8192 and len(made.spec.layers) == 8
    matrices = [one for one in made.checkpoint.tensors.values() if len(one.shape) == 2]
    assert {one.kind for one in matrices} == {"bf16"}
    assert sum(2 * prod(one.shape) for one in matrices) > 96 << 20


def test_the_predicting_stand_in_drafts_most_of_its_text(tmp_path: Path) -> None:
    """Most drafts are right but not all, and the text is the same."""
    model, mtp = write_predicting(tmp_path).path, find_technique("mtp")
    assert isinstance(mtp.open, DraftingSides)
    fixed = replace(mtp.open, config={**mtp.open.config, "adaptive": False})
    runs = []
    for name in SIDES:
        side = fixed(ProveJob(model, tmp_path, 2), name)
        runs.append([side.run(round, 1.0) for round in range(3)])
        side.close()
    for off, on in zip(*runs, strict=True):
        assert off.work == on.work and off.answers == on.answers
    drafted = sum(run.figures["draft tokens"] for run in runs[1])
    accepted = sum(run.figures["draft tokens accepted"] for run in runs[1])
    assert 0.7 * drafted < accepted < drafted and drafted > 300


def test_a_model_without_a_prediction_layer_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a model that carries a prediction layer"):
        find_technique("mtp").open(ProveJob(STORIES, tmp_path, 2), "on")


def test_the_predicting_stand_in_has_the_vocabulary_of_the_model_inside(tmp_path: Path) -> None:
    made, inside = describe(write_predicting(tmp_path).path).tokenizer, describe(STORIES).tokenizer
    text = "Once upon a time, Lily's dog (Rex) ran 12 miles.\n\nÉté!"
    assert made.vocab_size == inside.vocab_size
    ids = made.encode(text, add_special=False)
    assert ids == inside.encode(text, add_special=False) and made.decode(ids) == text
    assert made.encode("<|endoftext|>", add_special=False) == [0]


def test_the_long_stand_in_is_the_model_inside_with_a_longer_context(tmp_path: Path) -> None:
    made = describe(write_long(tmp_path).path)
    inside = describe(STORIES)
    assert made.spec.context == 8192 and inside.spec.context == 512
    assert made.spec.layers == inside.spec.layers
    assert made.checkpoint.tensors == inside.checkpoint.tensors


def test_a_rag_template_saves_tokens_of_the_same_requests(tmp_path: Path) -> None:
    """In the long stand-in the lengths are the seed's: 1,250 tokens and an answer of 800, and with
    the template 600 of context, the question, the instruction and the marks.
    """
    rag, model = find_technique("rag"), write_long(tmp_path).path
    runs = []
    for name in SIDES:
        side = rag.open(ProveJob(model, tmp_path, 2), name)
        assert list(side.notes) == []
        runs.append(side.run(0, 0.01))
        side.close()
    off, on = runs
    assert off.work == (1, 1250, 800) and on.requests == 1 and on.output_tokens == 300
    assert 600 < on.prompt_tokens < 800 and off.answers == () == on.answers
    assert on.figures["tokens of a prompt"] == on.prompt_tokens
    check_work(rag, (off, on))
    with pytest.raises(UnequalWork, match="rag: off did 1 requests, on did 2"):
        check_work(rag, (off, replace(on, requests=2)))
    with pytest.raises(UnequalWork, match="off did 1250 prompt tokens"):
        check_work(find_technique("apc"), (off, on))


def test_few_shot_classifies_the_same_texts_with_and_without_examples(tmp_path: Path) -> None:
    """Each of the 20 prompts has four other texts and their labels before its own."""
    technique, runs = find_technique("few-shot"), []
    for name in SIDES:
        side = technique.open(ProveJob(STORIES, tmp_path, 2), name)
        runs.append([side.run(round, 1.0) for round in range(2)])
        side.close()
    (off, again), (on, _) = runs
    check_work(technique, (off, on))
    assert off.requests == len(off.right) == len(on.right) == len(on.ttfts) == 20
    assert off.right == again.right and off.figures == again.figures
    assert on.prompt_tokens > 2 * off.prompt_tokens
    assert on.figures[CHANCE] == 0.5 and on.figures["prompt tokens found in the cache"] > 0
