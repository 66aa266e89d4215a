"""Training: the loss falls, and what is written drafts for the model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flyweight import LLM, SamplingParams
from flyweight.config import Settings
from flyweight.describe import describe, find
from flyweight.errors import ConfigError
from flyweight.training import eagle, job
from flyweight.training.corpus import Corpus, join_states
from flyweight.training.eagle import PASSES, EagleLayer, EagleShape, train_eagle
from flyweight.training.job import LEAST_EAGLE, HeadOptions, train_heads
from flyweight.training.states import TextStates

STORY = "Once upon a time there was a little dog. The dog liked to play with the red ball. "
SHAPE = EagleShape(hidden=16, heads=4, kv_heads=2, head=8, inner=24, base=10000.0, eps=1e-5)


def test_medusa_heads_learn_and_draft(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n<|endoftext|>\n".join([STORY * 3] * 12))
    options = HeadOptions("medusa", steps=60, heads=2, openings=8, length=96, dtype="int8")
    told: list[tuple[str, int, int]] = []
    done = train_heads(
        None, tmp_path / "text.txt", tmp_path / "h", options, lambda *x: told.append(x)
    )
    assert done.losses[1] < done.losses[0] / 2
    assert told[-1][1:] == (60, 60)
    config = {
        "method": "medusa",
        "model": str(tmp_path / "h"),
        "num_speculative_tokens": 2,
        "adaptive": False,
    }
    llm = LLM(max_model_len=96, speculative_config=config)
    params = SamplingParams(temperature=0, max_tokens=48)
    begun = [STORY[:size] for size in (12, 30, 45, 60)]
    found = llm.generate(begun, params, use_tqdm=False)
    plain = LLM(max_model_len=96).generate(begun, params, use_tqdm=False)
    for one, other in zip(found, plain, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
    assert llm.loaded.engine.metrics.accepted > 8


def test_batches_are_whole_texts() -> None:
    rng = np.random.default_rng(0)
    texts = [
        TextStates(rng.integers(0, 9, n).astype(np.int32), {-1: np.eye(n, 4, dtype=np.float16)})
        for n in (3, 7, 5, 7)
    ]
    corpus = Corpus.of(texts, torch.eye(9, 4))
    batches = corpus.batch_texts(14, 0)
    seen: list[list[int]] = []
    for _ in range(2):
        places, length = next(batches)
        assert places.shape[1] == length and places.numel() <= 14
        seen += [sorted(set(row)) for row in places.tolist()]
    assert sorted(seen) == [[0, 1, 2], list(range(3, 10)), list(range(10, 15)), list(range(15, 22))]


def test_passes_see_what_drafting_sees() -> None:
    """A later pass at a token equals that token computed after true states, by itself."""
    torch.manual_seed(0)
    layer = EagleLayer(SHAPE)
    embedded, states = torch.randn(1, 9, 16), torch.randn(1, 9, 16)
    passes: list[tuple[torch.Tensor, torch.Tensor]] = []
    first = layer(embedded, states, passes)
    second_in = torch.cat((states[:, :1], first[:, :-1]), 1)
    second = layer(embedded, second_in, passes)
    third_in = torch.cat((states[:, :1], second[:, :-1]), 1)
    third = layer(embedded, third_in, passes)
    at = 6  # true states up to at - 2, then one of each pass
    own = states.clone()
    own[:, at - 1], own[:, at] = second_in[:, at - 1], third_in[:, at]
    alone = layer(embedded[:, : at + 1], own[:, : at + 1], [])
    assert torch.allclose(alone[:, at], third[:, at], atol=1e-5)


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_layer_learns_and_drafts(method: str, tmp_path: Path) -> None:
    """What training computes is what drafting does: most drafts of a learnt text are right."""
    (tmp_path / "text.txt").write_text("\n<|endoftext|>\n".join([STORY * 3] * 12))
    options = HeadOptions(method, steps=80, inner=64, openings=8, length=96)
    done = train_heads(None, tmp_path / "text.txt", tmp_path / "h", options, lambda *_: None)
    assert done.losses[1] < done.losses[0] / 4
    config = {"method": method, "model": str(tmp_path / "h"), "adaptive": False}
    config |= {"num_speculative_tokens": 3}
    llm = LLM(max_model_len=96, speculative_config=config)
    params = SamplingParams(temperature=0, max_tokens=48)
    opening = {"prompt_token_ids": llm.tokenizer.encode(STORY, add_special=True)[:8]}
    (found,) = llm.generate([opening], params, use_tqdm=False)
    (plain,) = LLM(max_model_len=96).generate([opening], params, use_tqdm=False)
    assert found.outputs[0].token_ids == plain.outputs[0].token_ids
    metrics = llm.loaded.engine.metrics
    assert metrics.accepted > metrics.drafts


def test_joined_states_are_those_of_the_texts() -> None:
    """Those of several layers side by side, at the precision at which they are kept."""
    rng = np.random.default_rng(0)
    texts = [
        TextStates(
            np.zeros(n, np.int32),
            {tap: rng.normal(0, 1, (n, 4)).astype(np.float16) for tap in (0, 2, -1)},
        )
        for n in (3, 5)
    ]
    joined = join_states(texts, (0, 2))
    assert joined.dtype == torch.float16
    for tap, columns in ((0, joined[:, :4]), (2, joined[:, 4:])):
        expected = np.concatenate([text.states[tap] for text in texts])
        assert np.array_equal(columns.numpy(), expected)


def test_layers_that_are_read() -> None:
    found = describe(find(Settings()))
    for layers, taps in ((3, (0, 1, 2)), (6, (0, 3, 5)), (8, (1, 3, 4)), (32, (1, 15, 28))):
        deep = replace(found.spec, layers=found.spec.layers[:1] * layers)
        own = replace(found, spec=deep)
        assert job.list_taps(own, HeadOptions("eagle3")) == taps
        assert job.list_taps(own, HeadOptions("eagle")) == (-1,)
    with pytest.raises(ConfigError, match=r"taps 3 layers.*nearest valid: eagle"):
        shallow = replace(found.spec, layers=found.spec.layers[:2])
        job.check_base(shallow, HeadOptions("eagle3"))


@pytest.mark.parametrize("method", ["medusa", "eagle", "eagle3"])
def test_the_same_seed_trains_the_same(tmp_path: Path, method: str) -> None:
    (tmp_path / "text.txt").write_text(STORY * 40)
    options = HeadOptions(method, steps=3, heads=1, inner=32, length=64)
    for name in ("a", "b"):
        train_heads(None, tmp_path / "text.txt", tmp_path / name, options, lambda *_: None)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]


def make_corpus(lengths: list[int]) -> Corpus:
    rng = np.random.default_rng(0)
    texts = [
        TextStates(
            rng.integers(0, 9, n).astype(np.int32),
            {-1: rng.normal(0, 1, (n, 16)).astype(np.float16)},
        )
        for n in lengths
    ]
    return Corpus.of(texts, torch.eye(9, 16))


def test_short_texts_make_no_loss_nan() -> None:
    """Of batches of one text, those with less than a token for every pass are left out."""
    losses: list[float] = []
    tables = torch.eye(9, 16), torch.eye(9, 16)
    corpus = make_corpus([1, 2, 3, 3, LEAST_EAGLE, 6])
    train_eagle(corpus, tables, SHAPE, 12, losses.append, tokens=3)
    assert len(losses) == 12 and np.isfinite(losses).all()
    assert LEAST_EAGLE == PASSES + 1


def test_the_embedding_is_scaled_as_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def train(corpus: Corpus, tables: tuple[torch.Tensor, ...], *_: object) -> EagleLayer:
        seen.extend(tables)
        return EagleLayer(SHAPE)

    monkeypatch.setattr(eagle, "train_eagle", train)
    found = describe(find(Settings()))
    found = replace(found, spec=replace(found.spec, embed_scale=4.0))
    table = np.eye(9, 16, dtype=np.float32)
    texts = [TextStates(np.zeros(3, np.int32), {-1: np.zeros((3, 16), np.float16)})]
    job._train(texts, [table, table, table[0]], found, HeadOptions("eagle"), lambda *_: None)
    assert np.array_equal(seen[0].numpy(), 4 * table) and np.array_equal(seen[1].numpy(), table)
