"""Everything that sets a family apart is felt: switching it off moves the logits by far more than
the tolerance they are held to.

Biases and norms are found in the weight plans, so that no new one is forgotten.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import MODELS, Weights, decoder, logits

from flyweight.models.registry import find_family
from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps
from flyweight.spec import Files, LayerSpec, ModelSpec, Source, WeightPlan
from flyweight.validation.untrusted import read_json
from flyweight.weights.checkpoint import open_checkpoint

FELT = 100 * 1e-3
NAMES = sorted(p.name for p in MODELS.iterdir())
LOCAL = {"rope_type": "default", "rope_theta": 1000.0}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def moved(name: str, ops: Ops, file: str = "expected.npz", **changes: Any) -> float:
    """How far a changed model's logits are from what transformers says of the whole one."""
    expected = np.load(MODELS / name / file)
    changes.setdefault("length", int(expected["length"]))
    model = decoder(MODELS / name, ops, **changes)
    got = logits(model, expected["prompt"], expected["rows"])
    return float(np.abs(got - expected["logits"]).max())


def test_nothing_switched_off_is_not_felt(native: Ops) -> None:
    assert moved("gemma3", native) < 1e-3


# --- what a config says ---

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "activation": ("llama1", {"hidden_act": "gelu"}),
    "gpt2's activation": ("gpt2", {"activation_function": "relu"}),
    "opt's activation": ("opt", {"activation_function": "gelu"}),
    "gpt-neox's activation": ("gpt-neox", {"hidden_act": "relu"}),
    "starcoder2's activation": ("starcoder2", {"hidden_act": "relu"}),
    "gemma 1's activation": ("gemma", {"hidden_act": "silu"}),
    "gemma's activation": ("gemma2", {"hidden_activation": "silu"}),
    "longrope's factor": (
        "phi4-longrope",
        {"rope_parameters": read_json(MODELS / "phi4-longrope" / "config.json")["rope_parameters"]
         | {"attention_factor": 1.0}},
    ),
    "experts' part of deepseek": ("deepseek-v2-lite", {"num_experts_per_tok": 2}),
    "norm epsilon": ("llama1", {"rms_norm_eps": 1.0}),
    "llama3 rope": ("llama3", {"rope_parameters": {**PLAIN_ROPE, "rope_theta": 5000.0}}),
    "llama3 thresholds": (
        "llama3",
        {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0}},
    ),
    "rope base": ("llama3", {"rope_parameters": PLAIN_ROPE}),
    "rope base beside no rope_parameters": ("qwen3", {"rope_theta": 10000.0}),
    "linear rope": ("llama-linear", {"rope_parameters": PLAIN_ROPE}),
    "yarn": ("llama-yarn", {"rope_parameters": PLAIN_ROPE}),
    "yarn's stretch": (
        "llama-yarn",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "yarn's rounding": (
        "gpt-oss",
        {"rope_parameters": read_json(MODELS / "gpt-oss" / "config.json")["rope_parameters"]
         | {"truncate": True}},
    ),
    "dynamic rope": ("llama-dynamic", {"rope_parameters": PLAIN_ROPE}),
    "longrope": (
        "phi4-longrope",
        {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 0.75}},
    ),
    "a part of the head turned": (
        "stablelm",
        {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 1.0}},
    ),
    "mistral's window": ("mistral-window", {"sliding_window": None}),
    "a window one wider": ("mistral-window", {"sliding_window": 38}),
    "qwen2's window": ("qwen2-window", {"use_sliding_window": False}),
    "which layers see it": ("qwen2-window", {"max_window_layers": 2}),
    "phi3's window": ("phi3", {"sliding_window": None}),
    "starcoder2's window": ("starcoder2", {"sliding_window": None}),
    "gemma2's window": ("gemma2", {"sliding_window": 264}),
    "gemma2's pattern": (
        "gemma2", {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}
    ),
    "gemma2's scores' scale": ("gemma2-scalar", {"query_pre_attn_scalar": 24}),
    "gemma2's cap on scores": ("gemma2", {"attn_logit_softcapping": None}),
    "gemma2's cap on logits": ("gemma2", {"final_logit_softcapping": None}),
    "gemma3's window": ("gemma3", {"sliding_window": 264}),
    "gemma3's two bases": (
        "gemma3",
        {"rope_parameters": {"full_attention": LOCAL, "sliding_attention": LOCAL}},
    ),
    "granite's embedding": ("granite", {"embedding_multiplier": 1.0}),
    "granite's scores": ("granite", {"attention_multiplier": 0.25}),
    "granite's residual": ("granite", {"residual_multiplier": 1.0}),
    "granite's logits": ("granite", {"logits_scaling": 1.0}),
    "layers without positions": ("smollm3", {"no_rope_layers": [1, 1, 1, 1]}),
    "blocks side by side": ("gpt-neox", {"use_parallel_residual": False}),
    "blocks one after the other": ("gpt-neox-serial", {"use_parallel_residual": True}),
    "gpt-oss's window": ("gpt-oss", {"sliding_window": 264}),
    "how many experts": ("mixtral", {"num_experts_per_tok": 1}),
    "weights that add up to 1": ("qwen3-moe", {"norm_topk_prob": False}),
    "weights that do not": ("qwen2-moe", {"norm_topk_prob": True}),
    "experts' scale": ("deepseek-v2-lite", {"routed_scaling_factor": 1.0}),
    "experts by groups": ("deepseek-v2", {"topk_method": "greedy"}),
    "deepseek-v3's groups": ("deepseek-v3", {"n_group": 1, "topk_group": 1}),
    "deepseek-v3's scale": ("deepseek-v3", {"routed_scaling_factor": 1.0}),
    "deepseek-v3's weights that add up": ("deepseek-v3", {"norm_topk_prob": False}),
    "kimi-k2's weights that add up": ("kimi-k2", {"norm_topk_prob": False}),
    "kimi-k2's ramp": (
        "kimi-k2",
        {"rope_parameters": read_json(MODELS / "kimi-k2" / "config.json")["rope_parameters"]
         | {"beta_fast": 32.0}},
    ),
    "llama4's chunks": ("llama4", {"attention_chunk_size": 264}),
    "a chunk one wider": ("llama4", {"attention_chunk_size": 49}),
    "which layers have chunks": ("llama4", {"layer_types": ["chunked_attention"] * 4}),
    "llama4's layers without positions": ("llama4", {"no_rope_layers": [1, 1, 1, 1]}),
    "llama4's usual layers without positions": ("llama4-scout", {"no_rope_layer_interval": 2}),
    "llama4's head norms": ("llama4", {"use_qk_norm": False}),
    "llama4's temperature": ("llama4", {"attn_temperature_tuning": False}),
    "llama4's temperature's steps": ("llama4", {"floor_scale": 32}),
    "llama4's temperature's strength": ("llama4", {"attn_scale": 0.1}),
    "how many experts of llama4": ("llama4", {"num_experts_per_tok": 1}),
    "latent scores' scale": (
        "deepseek-v2-lite",
        {"rope_parameters": read_json(MODELS / "deepseek-v2-lite" / "config.json")[
            "rope_parameters"] | {"mscale_all_dim": None, "attention_factor": 1.0}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("feature", CONFIGS)
def test_what_a_config_says_is_felt(feature: str, native: Ops) -> None:
    name, config = CONFIGS[feature]
    assert moved(name, native, config=config) > FELT


def test_the_length_decides_the_rope(native: Ops) -> None:
    """Dynamic and longrope are settled by how much the engine will run, on both sides."""
    for name, other in (("llama-dynamic", 128), ("phi4-longrope", 96)):
        assert moved(name, native, length=other) > FELT
        assert moved(name, native, f"expected-{other}.npz", length=264) > FELT


# --- what a spec says ---


def layers(**changes: Any) -> Callable[[ModelSpec], ModelSpec]:
    return lambda s: replace(s, layers=tuple(replace(x, **changes) for x in s.layers))


def latents(**changes: Any) -> Callable[[ModelSpec], ModelSpec]:
    def change(x: LayerSpec) -> LayerSpec:
        return x if x.latent is None else replace(x, latent=replace(x.latent, **changes))

    return lambda s: replace(s, layers=tuple(map(change, s.layers)))


def mixtures(**changes: Any) -> Callable[[ModelSpec], ModelSpec]:
    def change(x: LayerSpec) -> LayerSpec:
        return x if x.moe is None else replace(x, moe=replace(x.moe, **changes))

    return lambda s: replace(s, layers=tuple(map(change, s.layers)))


def routed(**changes: Any) -> Callable[[ModelSpec], ModelSpec]:
    def change(x: LayerSpec) -> LayerSpec:
        if x.moe is None:
            return x
        return replace(x, moe=replace(x.moe, route=replace(x.moe.route, **changes)))

    return lambda s: replace(s, layers=tuple(map(change, s.layers)))


without_shared = mixtures(shared=0)


SPECS: dict[str, tuple[str, Callable[[ModelSpec], ModelSpec]]] = {
    "head norms": ("qwen3", layers(qk_norm="")),
    "gemma3's head norms": ("gemma3", layers(qk_norm="")),
    "norms of all heads": ("olmo2", layers(qk_norm="")),
    "stablelm's head norms": ("stablelm-heads", layers(qk_norm="")),
    "gemma 1's scaled embedding": ("gemma", lambda s: replace(s, embed_scale=1.0)),
    "norms after blocks": ("opt-350m", lambda s: replace(s, norm=replace(s.norm, post=False))),
    "the scaled embedding": ("gemma2", lambda s: replace(s, embed_scale=1.0)),
    "the shared expert": ("qwen2-moe", without_shared),
    "deepseek's shared experts": ("deepseek-v2-lite", without_shared),
    "deepseek-v3's shared expert": ("deepseek-v3", without_shared),
    "deepseek-v3's groups by two experts": ("deepseek-v3", routed(judges=1)),
    "deepseek-v3's sigmoid": ("deepseek-v3", routed(scoring="softmax")),
    "the latents' own epsilon": ("deepseek-v3", latents(eps=0.1)),
    "llama4's shared expert": ("llama4", without_shared),
    "scores before the experts": ("llama4", mixtures(before=False)),
    "the clamped activation": ("gpt-oss", layers(act="silu")),
}


@pytest.mark.parametrize("feature", SPECS)
def test_what_a_spec_says_is_felt(feature: str, native: Ops) -> None:
    name, change = SPECS[feature]
    assert moved(name, native, change=change) > FELT


class Unclamped(CpuOps):
    """gpt-oss's activation without its limits."""

    def act(self, x: np.ndarray, kind: str) -> np.ndarray:
        if kind != "swiglu_clamped":
            return super().act(x, kind)
        gate, up = np.split(x, 2, axis=1)
        return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)

    def experts(self, x: Any, ids: Any, weights: Any, up: Any, down: Any, act: str) -> Any:
        out = np.zeros_like(x)
        for t, j in np.ndindex(ids.shape):
            e = ids[t, j]
            inner = self.act(self.linear(x[t : t + 1], up[e]), act)
            out[t] += weights[t, j] * self.linear(inner, down[e])[0]
        return out


def test_the_clamp_is_felt() -> None:
    assert moved("gpt-oss", Unclamped(1, None, "f32")) > FELT


# --- what a weight plan says ---


def planned(name: str) -> WeightPlan:
    config = read_json(MODELS / name / "config.json")
    kind = find_family(config)
    with_names = open_checkpoint(MODELS / name)
    files = Files(False, frozenset(with_names.tensors))
    with_names.close()
    return kind.plan(kind.read_spec(config), files)


def short(slot: str) -> str:
    """layers.3.up.7 -> up"""
    return re.sub(r"^layers\.\d+\.|\.\d+$", "", slot)


def slots_with(test: Callable[[Any], bool]) -> list[tuple[str, str]]:
    found = {(n, short(s.name)) for n in NAMES for s in planned(n).slots if test(s)}
    return sorted(found)


BIASED = slots_with(lambda s: any(source.bias for source in s.sources))
VECTORS = slots_with(lambda s: s.kind == "vector")
PLUS = sorted({name for name in NAMES for s in planned(name).slots if s.plus})


def edited(which: Callable[[Any], bool], change: Callable[[Source], Source]) -> Any:
    """A plan whose chosen slots have other sources; what is left over is ignored."""

    def edit(plan: WeightPlan) -> WeightPlan:
        slots = [
            replace(s, sources=tuple(map(change, s.sources))) if which(s) else s for s in plan.slots
        ]
        return WeightPlan(tuple(slots), ("*",))

    return edit


@pytest.mark.parametrize(("name", "which"), BIASED)
def test_every_bias_is_felt(name: str, which: str, native: Ops) -> None:
    plan = edited(lambda s: short(s.name) == which, lambda source: replace(source, bias=""))
    assert moved(name, native, plan=plan) > FELT


@pytest.mark.parametrize(("name", "which"), VECTORS)
def test_every_norm_and_sink_is_felt(name: str, which: str, native: Ops) -> None:
    """Each one's values put back to where training begins: norms at 1, biases and sinks at 0."""
    start = 0.0 if which.endswith("_bias") or which == "sinks" else 1.0

    def reset(weights: Weights) -> None:
        for slot, values in weights.items():
            if short(slot) == which:
                weights[slot] = np.full_like(values, start)

    assert moved(name, native, weights=reset) > FELT


@pytest.mark.parametrize("name", PLUS)
def test_the_one_of_gemmas_norms_is_felt(name: str, native: Ops) -> None:
    def bare(plan: WeightPlan) -> WeightPlan:
        return replace(plan, slots=tuple(replace(s, plus=0.0) for s in plan.slots))

    assert moved(name, native, plan=bare) > FELT


POST_NORMED = ("gemma2", "gemma3", "olmo2", "olmo3", "glm4", "exaone4")
DROPPED = {
    ("gpt2", "positions"),
    ("opt", "positions"),
    ("qwen2-moe", "shared_gate"),
    ("gpt-oss", "sinks"),
    *((name, post) for name in POST_NORMED for post in ("attn_post", "mlp_post")),
}


@pytest.mark.parametrize(("name", "which"), sorted(DROPPED))
def test_every_extra_part_is_felt(name: str, which: str, native: Ops) -> None:
    def drop(weights: Weights) -> None:
        for slot in [slot for slot in weights if short(slot) == which]:
            del weights[slot]

    assert moved(name, native, weights=drop) > FELT


ORDERED = {
    ("gpt-oss", "up"),
    ("deepseek-v2", "q"),
    ("deepseek-v2", "kv_down"),
    ("llama4", "qkv"),
    *((name, "qkv") for name in ("gpt-neox", "glm", "glm4", "ernie4-5", "cohere", "cohere2")),
    ("cohere-plus", "q_norm"),
    ("cohere-plus", "k_norm"),
}


@pytest.mark.parametrize(("name", "which"), sorted(ORDERED))
def test_every_order_of_rows_is_felt(name: str, which: str, native: Ops) -> None:
    plan = edited(lambda s: short(s.name) == which, lambda source: replace(source, order=()))
    assert moved(name, native, plan=plan) > FELT


def test_the_skipped_positions_are_felt(native: Ops) -> None:
    plan = edited(lambda s: s.name == "positions", lambda source: replace(source, start=0))
    assert moved("opt", native, plan=plan) > FELT


def test_a_window_as_wide_as_the_context_is_none(native: Ops) -> None:
    for window in (264, 10_000):
        assert moved("mistral", native, config={"sliding_window": window}) < 1e-3


def test_gemma_1_means_the_tanh_form_where_it_says_gelu(native: Ops) -> None:
    """As its first configs do."""
    assert moved("gemma", native, config={"hidden_act": "gelu", "hidden_activation": None}) < 1e-3


def test_checkpoints_without_the_base_prefix_load(native: Ops, tmp_path: Path) -> None:
    """GPT-2 and OPT are published with and without it."""
    from filewriters import encode, write_folder

    for name, base in (("gpt2", "transformer."), ("opt", "model."), ("opt-350m", "model.")):
        source = open_checkpoint(MODELS / name)
        tensors = {}
        for key, info in source.tensors.items():
            values = np.asarray(source.read(key, 0, info.shape[0]), np.float32)
            tensors[key.removeprefix(base)] = encode(values, "f32")
        write_folder(tmp_path / name, source.config, tensors)
        expected = np.load(MODELS / name / "expected.npz")
        model = decoder(tmp_path / name, native)
        got = logits(model, expected["prompt"], expected["rows"])
        assert np.abs(got - expected["logits"]).max() < 1e-3


def test_the_rope_of_a_layer_does_not_depend_on_its_window(native: Ops) -> None:
    """Gemma 3's local layers keep their base where the window is as wide as the context."""
    narrow = decoder(MODELS / "gemma3", native).spec
    wide = decoder(MODELS / "gemma3", native, {"sliding_window": 264}).spec
    assert [x.rope for x in wide.layers] == [x.rope for x in narrow.layers] == [1, 0, 1]
    assert [x.kv.window for x in wide.layers] == [264, 0, 264]
