"""EAGLE: its drafts are what the layer's arithmetic says of the text, and change no token."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked_drafts import CheckedDrafter
from fitted_heads import states_of
from small_engine import ROOMY, TIGHT, drain, make_engine, make_model, make_prompts, make_requests
from test_rejecting_engine import LEAST, compare_samples

from filewriters import encode, write_safetensors
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.eagle import EagleModel, open_source
from flyweight.draft.eaglefolder import load_eagle
from flyweight.draft.methods import DraftBase
from flyweight.draft.statedrafter import StateDrafter
from flyweight.errors import CheckpointError
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps
from flyweight.plan.memory import Needs, Sizing, make_smallest_plan
from flyweight.speculation import SpeculationConfig
from flyweight.types import Request, SamplingParams
from flyweight.wire import F32

PROMPTS = make_prompts(6)
HEADS, KV, HEAD, INNER, EPS = 4, 2, 8, 48, 1e-5
CONFIG = {
    "hidden_size": 32, "intermediate_size": INNER, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "head_dim": HEAD, "rms_norm_eps": EPS, "rope_theta": 10000.0,
    "vocab_size": 40, "hidden_act": "silu",
}  # fmt: skip


def make_tensors() -> dict[str, F32]:
    """A layer that mostly hands on the state it is given."""
    rng = np.random.default_rng(2)
    shapes = {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32)}
    made = {f"layers.0.self_attn.{k}_proj.weight": rng.normal(0, 0.1, s) for k, s in shapes.items()}
    for name, shape in (("gate", (INNER, 32)), ("up", (INNER, 32)), ("down", (32, INNER))):
        made[f"layers.0.mlp.{name}_proj.weight"] = rng.normal(0, 0.1, shape)
    made["layers.0.post_attention_layernorm.weight"] = np.ones(32)
    made["fc.weight"] = np.concatenate([rng.normal(0, 0.3, (32, 32)), np.eye(32)], 1)
    return {name: x.astype(np.float32) for name, x in made.items()}


def write(path: Path, tensors: dict[str, F32], **config: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    write_safetensors(path / "model.safetensors", {k: encode(x, "f32") for k, x in tensors.items()})
    return path


def open_folder(path: Path, model: Decoder) -> Any:
    config = SpeculationConfig("eagle", 3, {"model": str(path)})
    return open_source(config, DraftBase(model.spec, "base"))


def make_drafter(
    path: Path, model: Decoder, limits: Any = ROOMY, *, probs: bool = False
) -> StateDrafter:
    source = open_folder(path, model)
    layers = allocate_kv(source.spec, model.ops, limits, "f32")
    eagle = EagleModel(model, *load_eagle(source, model), limits.max_model_len)
    return StateDrafter(eagle, layers, limits.blocks, probs=probs)


class Reference:
    """The same in NumPy, over a whole text at once."""

    def __init__(self, model: Decoder, tensors: dict[str, F32]) -> None:
        self.model, self.w = model, tensors
        ids = np.arange(model.spec.vocab, dtype=np.int32)
        self.embedding = np.asarray(model.ops.embed(model.parts.weights["embed"], ids))

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """Greedy draft tokens after a text whose newest token is not computed."""
        states, text = list(states_of(self.model, tokens[:-1])), list(tokens)
        for _ in range(count):
            made = self.push(self.embedding[text[1:]], np.array(states))
            states.append(made[-1])
            text.append(int(np.argmax(self.embedding @ made[-1])))
        return text[len(tokens) :]

    def push(self, embedded: F32, states: F32) -> F32:
        x = np.concatenate([embedded, states], 1) @ self.w["fc.weight"].T
        q, k, v = (x @ self.w[f"layers.0.self_attn.{n}_proj.weight"].T for n in "qkv")
        q, k = self.turn(q.reshape(len(x), HEADS, HEAD)), self.turn(k.reshape(len(x), KV, HEAD))
        v, mixed = v.reshape(len(x), KV, HEAD), np.zeros((len(x), HEADS, HEAD))
        for t in range(len(x)):
            for h in range(HEADS):
                scores = k[: t + 1, h // 2] @ q[t, h] / np.sqrt(HEAD)
                weights = np.exp(scores - scores.max())
                mixed[t, h] = weights @ v[: t + 1, h // 2] / weights.sum()
        x = x + mixed.reshape(len(x), 32) @ self.w["layers.0.self_attn.o_proj.weight"].T
        normed = x / np.sqrt((x * x).mean(1, keepdims=True) + EPS)
        gate, up = (normed @ self.w[f"layers.0.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        return x + (gate / (1 + np.exp(-gate)) * up) @ self.w["layers.0.mlp.down_proj.weight"].T

    @staticmethod
    def turn(x: F32) -> F32:
        angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., : HEAD // 2], x[..., HEAD // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return make_model(ReferenceOps("f32"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "eagle", make_tensors())


def check_every_draft(model: Decoder, folder: Path, limits: Any) -> tuple[int, int]:
    """How many drafts were compared, and how many of them were wrong."""
    drafter = make_drafter(folder, model, limits)
    drafter.__class__ = CheckedDrafter
    assert isinstance(drafter, CheckedDrafter)
    drafter.reference = Reference(model, make_tensors())
    requests = [r for r in make_requests(PROMPTS, 12) if r.params.temperature == 0]
    drain(make_engine(model, limits, drafter), requests)
    return drafter.compared, drafter.wrong


CHUNKED = replace(ROOMY, max_chunk=5, prefix_caching=False)


@pytest.mark.parametrize("limits", [ROOMY, CHUNKED])
def test_drafts_are_what_the_layer_says(model: Decoder, folder: Path, limits: Any) -> None:
    compared, wrong = check_every_draft(model, folder, limits)
    assert compared > 10 and wrong == 0


def test_a_stale_state_is_caught(
    model: Decoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe = StateDrafter.observe

    def stale(self: StateDrafter, batch: Any, taps: Any) -> None:
        observe(self, batch, {-1: np.roll(taps[-1], 1, axis=0)})

    monkeypatch.setattr(StateDrafter, "observe", stale)
    compared, wrong = check_every_draft(model, folder, ROOMY)
    assert wrong > compared / 2


@pytest.mark.parametrize("limits", [ROOMY, TIGHT, replace(ROOMY, prefix_caching=False)])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_no_token_changes(folder: Path, backend: str, limits: Any) -> None:
    model = make_model(CpuOps(1, None, "f32") if backend == "cpu" else ReferenceOps("f32"))
    requests = make_requests(PROMPTS)
    expected = {}
    for request in requests:
        expected |= drain(make_engine(model), [request])
    engine = make_engine(model, limits, make_drafter(folder, model, limits))
    assert drain(engine, requests) == expected
    found = engine.metrics
    assert found.proposed > found.accepted > 0 and found.drafts > 20
    assert bool(found.preempted) == (limits is TIGHT)
    assert bool(found.cached) == limits.prefix_caching


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        ({"fc.weight": (32, 96)}, {}, r"fc\.weight.* is \[32, 96\], .* needs \[32, 64\]"),
        ({}, {"hidden_size": 64}, "hidden_size = 64, this model has 32"),
        ({}, {"base_fingerprint": "other"}, "base_fingerprint = 'other'"),
        ({}, {"num_hidden_layers": 2}, "2 layers of 32 elements"),
        ({"layers.0.input_layernorm.weight": (32,)}, {}, "input_layernorm.* is none of an EAGLE"),
    ],
)
def test_other_heads_are_refused(
    model: Decoder, tmp_path: Path, change: Any, config: Any, message: str
) -> None:
    tensors = make_tensors() | {k: np.zeros(s, np.float32) for k, s in change.items()}
    with pytest.raises(CheckpointError, match=message) as refused:
        open_folder(write(tmp_path / "h", tensors, **config), model)
    assert "\n" not in str(refused.value)


class StateChecker(StateDrafter):
    """Compares the held state of every computed token of a request with the model's."""

    compared = wrong = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        for request in requests:
            computed = list(request.tokens)[:-1]
            at = np.arange(len(computed))
            slots = np.array(request.blocks)[at // self.block_size] * self.block_size
            slots += at % self.block_size
            same = np.allclose(
                self.held.states[slots], states_of(self.model.target, computed), atol=1e-4
            )
            self.compared += 1
            self.wrong += not (same and (self.held.positions[slots] == at).all())
        return super().propose(requests)


def test_copied_slots_take_their_states_along(model: Decoder, folder: Path) -> None:
    """Choices share the prompt's last block, and whoever writes first copies it into a block that
    was another text's.
    """
    limits, rng = replace(ROOMY, blocks=20), np.random.default_rng(3)
    drafter = make_drafter(folder, model, limits)
    drafter.__class__ = StateChecker
    assert isinstance(drafter, StateChecker)
    engine = make_engine(model, limits, drafter)
    params = SamplingParams(n=3, temperature=0.0, max_tokens=6)
    for i in range(3):
        prompt = tuple(rng.integers(0, 40, 15).tolist())
        drain(engine, [Request(f"r{i}", prompt, params, max_tokens=6, seed=i)])
    assert drafter.compared > 10 and drafter.wrong == 0


def test_unused_matrices_are_in_no_plan(model: Decoder, tmp_path: Path, folder: Path) -> None:
    more = {name: np.ones((40, 32), np.float32) for name in ("embed_tokens", "lm_head")}
    tensors = make_tensors() | {f"{name}.weight": x for name, x in more.items()}
    found = open_folder(write(tmp_path / "more", tensors), model).kinds
    assert found == open_folder(folder, model).kinds
    assert {name.split()[1]: parts[0][0] for name, parts in found.items()} == {
        name: x.shape for name, x in make_tensors().items()
    }


@pytest.mark.parametrize("dtype", ["f16", "int8", "int4"])
def test_the_plan_counts_what_is_stored(model: Decoder, folder: Path, dtype: str) -> None:
    """Its K/V is of the backend's own type, whatever the model's is."""
    ops, source = CpuOps(1, None, "f32"), open_folder(folder, model)
    own = source.kinds, source.stored, ops, source.name
    needs = Needs.of(model.spec, source.kinds, ops).add_heads(*own)
    sizing = Sizing(96, 4, 48, 16, dtype, blocks=8)
    plan = make_smallest_plan(needs, sizing, (0, 1 << 40))
    layers = allocate_kv(source.spec, ops, replace(ROOMY, block_size=16, blocks=8), ops.kv_dtype)
    states = 8 * 16 * (4 * 32 + 8)
    assert plan.draft_kv == sum(layer.nbytes for layer in layers) + states


def test_with_probs_drafts_have_random_numbers_of_their_own(model: Decoder, folder: Path) -> None:
    """Each token's probability is that of a layer whose drafts are the same without a seed."""
    texts = {}
    for probs in (False, True):
        drafter = make_drafter(folder, model, probs=probs)
        drafts: list[Draft] = []
        propose = drafter.propose
        drafter.propose = lambda asked, f=propose, d=drafts: d.extend(f(asked)) or d[-len(asked) :]  # type: ignore[method-assign,misc]
        engine = make_engine(model, replace(ROOMY, vocab=40), drafter)
        if probs:
            engine.drafts.reject()
        params = SamplingParams(temperature=1.0, max_tokens=16)
        drain(engine, [Request("r", tuple(PROMPTS[0]), params, max_tokens=16, seed=5)])
        made = [draft for draft in drafts if draft.tokens]
        assert made and all((draft.probs is not None) == probs for draft in made)
        texts[probs] = made
    assert texts[False][0].tokens != texts[True][0].tokens
    for draft in texts[True]:
        assert draft.probs is not None and draft.probs.shape == (len(draft.tokens), 40)
        assert np.allclose(draft.probs.sum(axis=1), 1, atol=1e-5)
        assert all(row[token] > 0 for row, token in zip(draft.probs, draft.tokens, strict=True))


def test_by_rejection_texts_have_the_same_distribution(folder: Path) -> None:
    model, limits = make_model(CpuOps(1, None, "f32")), replace(ROOMY, vocab=40)
    params = SamplingParams(temperature=1.0, allowed_token_ids=(3, 4, 5, 6, 7), max_tokens=4)
    prompt = tuple(PROMPTS[0])
    asked = [Request(f"r{i}", prompt, params, max_tokens=4, seed=i) for i in range(400)]
    engine = make_engine(model, limits, make_drafter(folder, model, limits, probs=True))
    engine.drafts.reject()
    plain, found = (
        Counter(tuple(tokens[:3]) for tokens in drain(one, asked).values())
        for one in (make_engine(model, limits), engine)
    )
    assert 50 < engine.metrics.accepted < engine.metrics.proposed
    assert not engine.drafts.calls.ended
    assert plain != found and compare_samples(plain, found) > LEAST
