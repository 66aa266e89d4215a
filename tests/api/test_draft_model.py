"""`draft_model` through the Python API: the pair inside the package, and what cannot draft."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from flyweight import LLM, ConfigError, LoRARequest, SamplingParams, pairing
from flyweight import build as building
from flyweight.config import Settings
from flyweight.describe import ModelDescription, SilentListener, describe, find
from flyweight.draft.textmodel import DraftText, TextDrafter
from flyweight.draft.vocabulary import Token
from flyweight.engine.draft_limits import FullDrafts
from flyweight.errors import CheckpointError
from flyweight.params.structured import StructuredOutputs
from flyweight.plan import machine
from flyweight.types import SamplingParams as Params
from opt_pair import POSITIONS, opt_config, opt_tensors
from tiny_model import VOCAB, tiny_adapter, tiny_folder

CHARACTERS = ("Tom", "Lily", "a dog", "the cat", "Mia", "a red bird", "Ben", "an old man")
OPENINGS = ("Once upon a time, {} went", "{} was sad because", "One day {} found a", "Why did {}")
PROMPTS = [opening.format(one) for opening in OPENINGS for one in CHARACTERS]
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40, "n": 2},
    {"temperature": 0, "repetition_penalty": 1.2, "logprobs": 3},
    {"temperature": 0.7, "structured_outputs": StructuredOutputs(regex="[a-z ,.]{20,60}")},
    {"temperature": 0.7, "min_tokens": 12, "presence_penalty": 0.5},
    {"temperature": 1.0, "min_p": 0.05, "prompt_logprobs": 2},
)
DRAFT = {
    "method": "draft_model", "model": "stories-draft", "num_speculative_tokens": 4,
    "adaptive": False,
}  # fmt: skip


def list_params() -> list[Params]:
    return [
        SamplingParams(max_tokens=32, seed=i, **OPTIONS[i % len(OPTIONS)])
        for i in range(len(PROMPTS))
    ]


def answer(llm: LLM) -> list[list[tuple[Any, ...]]]:
    """Every answer: its tokens, why it ended and its log-probabilities."""
    found = llm.generate(PROMPTS, list_params(), use_tqdm=False)
    return [
        [(o.token_ids, o.finish_reason, o.logprobs) for o in one.outputs] + [(one.prompt_logprobs,)]
        for one in found
    ]


def load(model: str, config: dict[str, Any] | None, **options: Any) -> LLM:
    """A model that drafts at every step, whether that pays or not."""
    llm = LLM(model, threads=2, speculative_config=config, **options)
    llm.loaded.engine.drafts.limits = FullDrafts()
    return llm


@pytest.fixture(scope="module")
def wanted() -> list[list[tuple[Any, ...]]]:
    return answer(LLM("stories", threads=2))


MIXES: tuple[dict[str, Any], ...] = (
    {},
    {"max_num_batched_tokens": 32, "max_num_seqs": 5},
    {"enable_prefix_caching": False, "block_size": 32},
    {"blocks": 7, "block_size": 16, "max_model_len": 96},
)


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_answers_are_those_without_drafts(wanted, mix: dict[str, Any]) -> None:
    llm = load("stories", DRAFT, **mix)
    assert answer(llm) == wanted
    stats = llm.stats()
    assert 100 < stats["accepted"] < stats["proposed"]
    if "blocks" in mix:
        assert stats["preempted"] > 0


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    llm = load("stories", {**DRAFT, "model": "stories"})
    params = [
        SamplingParams(max_tokens=40, temperature=t, top_p=0.95, seed=i)
        for i, t in enumerate([0, 0.5, 1.0, 1.3])
    ]
    llm.generate(PROMPTS[:4], params, use_tqdm=False)
    stats = llm.stats()
    assert stats["accepted"] == stats["proposed"] > 80


def test_drafts_come_true_often_enough_to_pay() -> None:
    """Greedy tokens a step; the long figure is in docs/speculative.md."""
    llm = load("stories", DRAFT)
    greedy = SamplingParams(temperature=0, max_tokens=60)
    llm.generate(PROMPTS, [greedy] * len(PROMPTS), use_tqdm=False)
    stats = llm.stats()
    assert 1 + stats["accepted"] / stats["drafts"] > 2.2


def test_an_adapter_acts_on_the_model_alone(tmp_path: Path) -> None:
    folder, adapter = tiny_folder(tmp_path / "model"), tiny_adapter(tmp_path / "adapter")
    params = [SamplingParams(max_tokens=24, seed=i, temperature=i % 2) for i in range(8)]
    prompts, found = ["The cat sat on", "a b c d"] * 4, []
    for config in (None, {**DRAFT, "model": str(folder)}):
        llm = load(str(folder), config, adapters={"x": adapter})
        lora = [None if i % 3 else LoRARequest("x", 1, str(adapter)) for i in range(8)]
        outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=lora)
        found.append([one.outputs[0].token_ids for one in outputs])
    assert found[0] == found[1]
    assert 0 < llm.stats()["accepted"] < llm.stats()["proposed"]


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    """A model with a small vocabulary of its own, most of which is in the other."""
    tiny_folder(tmp_path / "other")
    yield tmp_path / "other"


@pytest.mark.parametrize("mix", [{}, MIXES[1], MIXES[3]], ids=str)
def test_a_draft_with_another_vocabulary_changes_nothing(wanted, other: Path, mix) -> None:
    llm = load("stories", {**DRAFT, "model": str(other)}, **mix)
    assert answer(llm) == wanted
    assert llm.stats()["proposed"] > 100


@pytest.mark.parametrize("mix", [{}, MIXES[1], MIXES[3]], ids=str)
def test_a_model_that_drafts_for_itself_through_text_is_mostly_right(
    wanted, mix: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words are whole, and the draft's K/V follows the text."""
    monkeypatch.setattr(pairing, "is_same", lambda ours, theirs: False)
    monkeypatch.setattr(pairing, "LEAST_SHARE", 2)
    llm = load("stories", {**DRAFT, "model": "stories"}, **mix)
    assert answer(llm) == wanted
    greedy = [SamplingParams(temperature=0, max_tokens=32)] * len(PROMPTS)
    before = llm.stats()
    llm.generate(PROMPTS, greedy, use_tqdm=False)
    proposed, accepted = (llm.stats()[key] - before[key] for key in ("proposed", "accepted"))
    assert accepted > 0.95 * proposed > 200


def test_rejected_text_in_the_drafts_kv_is_noticed(
    wanted, data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seeded bug: what was drawn stays after it was rejected."""

    def keep(self: TextDrafter, text: DraftText, tokens: Sequence[int]) -> None:
        for token in tokens[text.seen :]:
            text.pieces += self.reader.spell(token)
        text.seen = len(tokens)
        del text.written[max(0, len(text.pieces) - 1) :]

    draft = {**DRAFT, "model": str(data("stories260k/stories260K-f32.gguf"))}
    greedy, found = [SamplingParams(temperature=0, max_tokens=32)] * len(PROMPTS), []
    for read in (TextDrafter._spell, keep):
        monkeypatch.setattr(TextDrafter, "_spell", read)
        llm = load("stories", draft)
        assert answer(llm) == wanted
        llm.generate(PROMPTS, greedy, use_tqdm=False)
        found.append(llm.stats()["accepted"])
    assert 200 < found[1] < found[0]


def test_a_prompt_is_read_in_parts_while_the_model_computes_it(
    data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call reads more than a step computes, not even of a prompt from the prefix cache."""
    budget, calls, made = 32, list[tuple[str, int]](), list[int]()
    compute = TextDrafter._compute

    def count(self: TextDrafter, chosen: Any, sampling: Any = None) -> Any:
        made.append(sum(len(pieces) for _, pieces in chosen))
        return compute(self, chosen, sampling)

    def watch(name: str) -> None:
        call = getattr(TextDrafter, name)

        def watched(self: TextDrafter, requests: Any) -> Any:
            made.clear()
            found = call(self, requests)
            calls.append((name, sum(made[:2])))
            return found

        monkeypatch.setattr(TextDrafter, name, watched)

    monkeypatch.setattr(TextDrafter, "_compute", count)
    for name in ("read", "catch_up", "propose"):
        watch(name)
    draft = {**DRAFT, "model": str(data("stories260k/stories260K-f32.gguf"))}
    prompt, greedy = " ".join(PROMPTS[:24]), SamplingParams(temperature=0, max_tokens=16)
    options: dict[str, Any] = {"max_num_batched_tokens": budget, "max_num_seqs": 4}
    wanted = LLM("stories", threads=2).generate([prompt], greedy, use_tqdm=False)[0].outputs[0]
    llm = load("stories", draft, **options)
    for again in (False, True):
        calls.clear()
        (found,) = llm.generate([prompt], greedy, use_tqdm=False)
        assert found.outputs[0].token_ids == wanted.token_ids
        assert bool(found.num_cached_tokens) == again
        assert max(size for _, size in calls) <= budget + 1
        names = [name for name, _ in calls]
        if not again:
            assert names[:4] == ["read"] * 4 and all(size for _, size in calls[:4])
    assert llm.stats()["accepted"] > 0


def test_an_unread_text_does_not_stop_the_drafts_of_others(
    data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt from the prefix cache takes many calls to be read; short texts draft meanwhile."""
    calls: list[dict[str, int]] = []
    propose = TextDrafter.propose

    def watch(self: TextDrafter, requests: Any) -> Any:
        drafts = propose(self, requests)
        tokens = {r.id[0]: len(d.tokens) for r, d in zip(requests, drafts, strict=True)}
        calls.append(tokens)
        return drafts

    draft = {**DRAFT, "model": str(data("stories260k/stories260K-f32.gguf"))}
    llm = load("stories", draft, max_num_batched_tokens=16, max_num_seqs=4)
    long = " ".join(PROMPTS[:24])
    llm.generate([long], SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    monkeypatch.setattr(TextDrafter, "propose", watch)
    outs = llm.generate(
        [long, "Once upon a time", "The dog"],
        SamplingParams(temperature=0, max_tokens=24),
        use_tqdm=False,
    )
    first = outs[0].request_id
    waiting = [tokens for tokens in calls[:6] if not tokens.get(first)]
    assert len(waiting) > 2  # the long text is not read yet
    assert sum(sum(tokens.values()) for tokens in waiting) > 0


def refuse(model: str = "stories", **options: Any) -> str:
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        LLM(model, **options)
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_what_cannot_draft_is_refused_before_anything_is_loaded() -> None:
    said = refuse(speculative_config={**DRAFT, "model": "no/such/file.gguf"})
    assert "no/such/file.gguf" in said
    said = refuse(speculative_config={"method": "draft_model", "num_speculative_tokens": 4})
    assert "speculative_config.model" in said and "is missing" in said
    assert "is missing" in refuse(speculative_config={"model": "stories-draft"})


def test_a_revision_names_a_version_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--org--draft"
    (repo / "refs").mkdir(parents=True)
    for name, commit in (("main", "0" * 40), ("v2", "1" * 40)):
        tiny_folder(repo / "snapshots" / commit)
        (repo / "refs" / name).write_text(commit)
    target = describe(find(Settings.of(model="stories", offline=True)))
    for given, commit in (({}, "0" * 40), ({"revision": "v2"}, "1" * 40)):
        config = {**DRAFT, "model": "org/draft", **given}
        settings = Settings.of(model="stories", offline=True, speculative_config=config)
        found = pairing.find_draft(settings, target, SilentListener())
        assert found is not None and commit in str(found.found.checkpoint.path)
    said = refuse(speculative_config={**DRAFT, "revision": "v2"})
    assert "revision = 'v2' is a branch, tag or commit of a model on the Hub, and 's" in said


def test_a_misspelt_model_inside_is_named() -> None:
    said = refuse(speculative_config={**DRAFT, "model": "stories-daft"})
    assert "did you mean 'stories-draft'?" in said
    assert "did you mean 'stories-draft'?" in refuse("storys-draft")


def test_rejection_through_text_is_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pairing, "is_same", lambda ours, theirs: False)
    monkeypatch.setattr(pairing, "LEAST_SHARE", 2)
    monkeypatch.setattr(building, "load_weights", None)  # calling it would raise
    said = refuse(speculative_config={**DRAFT, "verifier": "rejection"})
    assert "speculative_config.verifier = 'rejection' is not supported" in said
    assert "coupled" in said


def test_a_draft_model_without_a_vocabulary_is_refused_before_anything_is_loaded(
    other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = pairing.list_tokens

    def list_tokens(found: ModelDescription) -> list[Token]:
        return [("", b"")] * VOCAB if found.spec.vocab == VOCAB else own(found)

    monkeypatch.setattr(pairing, "list_tokens", list_tokens)
    monkeypatch.setattr(building, "load_weights", None)  # calling it would raise
    said = refuse(speculative_config={**DRAFT, "model": str(other)})
    assert "has no vocabulary" in said and "nearest valid: a draft model with a tokenizer" in said


def test_a_context_above_the_draft_models_positions_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dict.fromkeys(("num_key_value_heads", "rms_norm_eps", "rope_theta"))
    folder = tiny_folder(tmp_path / "opt", {**config, **opt_config(1)}, opt_tensors(1))
    monkeypatch.setattr(building, "load_weights", None)  # calling it would raise
    said = refuse(speculative_config={**DRAFT, "model": str(folder)}, max_model_len=POSITIONS + 1)
    assert f"is above the {POSITIONS} positions that the draft model has learned" in said
    assert f"nearest valid: {POSITIONS}" in said


def test_a_draft_model_has_a_format_of_its_own(tmp_path: Path) -> None:
    """The target's files are safetensors, the draft's a .gguf file."""
    folder = tiny_folder(tmp_path / "model")
    options = {"speculative_config": DRAFT, "load_format": "safetensors"}
    settings = Settings.of(model=str(folder), **options)
    found = pairing.find_draft(settings, describe(find(settings)), SilentListener())
    assert found is not None and found.found.spec.hidden > 0


def test_a_draft_that_is_too_large_is_refused_with_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between what the model needs alone and what both need, in a process of a fixed size."""
    monkeypatch.setattr(machine, "measure_resident", lambda: 90 << 20)
    asked: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 1, "block_size": 512}
    found = re.search(r"this model needs ([\d.]+) MiB", refuse(memory_limit="50MiB", **asked))
    assert found is not None
    said = refuse(
        speculative_config={**DRAFT, "model": "stories"},
        memory_limit=f"{float(found[1]) + 5:.0f}MiB",
        **asked,
    )
    assert "too small for the draft model: it needs" in said and "or no speculative_config" in said
