"""A tiny DeepSeek-V3 with a multi-token prediction layer, as a folder, and the layer's arithmetic
in NumPy, over a whole text at once.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fitted_heads import states_of
from small_engine import drain, make_engine, make_requests

from filewriters import encode, write_folder
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.models.registry import find_family
from flyweight.ops.base import Ops
from flyweight.ops.reference import ReferenceOps
from flyweight.spec import Files
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.load import load
from flyweight.wire import F32

H, VOCAB, HEADS, RANK, Q_RANK, ROPE, NOPE, VALUE, EPS = 32, 40, 2, 16, 12, 4, 8, 6, 1e-5
EXPERTS, TOP, GROUPS, INNER, SCALE = 6, 2, 3, 16, 1.5
LAYERS = 2
CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": H, "intermediate_size": 48,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": EPS, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "q_lora_rank": Q_RANK,
    "kv_lora_rank": RANK, "qk_rope_head_dim": ROPE, "qk_nope_head_dim": NOPE, "v_head_dim": VALUE,
    "n_routed_experts": EXPERTS, "num_experts_per_tok": TOP, "moe_intermediate_size": INNER,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": SCALE,
    "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "n_group": GROUPS, "topk_group": 2, "num_nextn_predict_layers": 1,
}  # fmt: skip
AT = f"model.layers.{LAYERS}."  # the prediction layer
Tensors = dict[str, F32]


def make_tensors(config: Mapping[str, Any] = CONFIG, extra: int = 1) -> Tensors:
    """A model with `extra` prediction layers, of random weights."""
    rng, vocab = np.random.default_rng(4), config["vocab_size"]
    made = {
        "model.embed_tokens.weight": rng.normal(0, 0.6, (vocab, H)),
        "lm_head.weight": rng.normal(0, 0.4, (vocab, H)),
        "model.norm.weight": rng.uniform(0.7, 1.3, H),
    }
    for i in range(LAYERS + extra):
        spread = 0.25 if i < LAYERS else 0.1
        made |= make_layer(rng, f"model.layers.{i}.", i > 0, spread)
    for i in range(LAYERS, LAYERS + extra):
        made |= make_ends(rng, f"model.layers.{i}.", vocab)
    return {name: x.astype(np.float32) for name, x in made.items()}


def make_layer(rng: np.random.Generator, at: str, mixed: bool, spread: float) -> dict[str, Any]:
    def drawn(*shape: int) -> Any:
        return rng.normal(0, spread, shape)

    made = {
        "input_layernorm": rng.uniform(0.7, 1.3, H),
        "post_attention_layernorm": rng.uniform(0.7, 1.3, H),
        "self_attn.q_a_proj": drawn(Q_RANK, H),
        "self_attn.q_a_layernorm": rng.uniform(0.7, 1.3, Q_RANK),
        "self_attn.q_b_proj": drawn(HEADS * (NOPE + ROPE), Q_RANK),
        "self_attn.kv_a_proj_with_mqa": drawn(RANK + ROPE, H),
        "self_attn.kv_a_layernorm": rng.uniform(0.7, 1.3, RANK),
        "self_attn.kv_b_proj": drawn(HEADS * (NOPE + VALUE), RANK),
        "self_attn.o_proj": drawn(H, HEADS * VALUE),
    }
    blocks = {"mlp": 48} if not mixed else {"mlp.shared_experts": INNER}
    blocks |= {f"mlp.experts.{e}": INNER for e in range(EXPERTS if mixed else 0)}
    for block, inner in blocks.items():
        made[f"{block}.gate_proj"], made[f"{block}.up_proj"] = drawn(inner, H), drawn(inner, H)
        made[f"{block}.down_proj"] = drawn(H, inner)
    if mixed:
        made["mlp.gate"] = drawn(EXPERTS, H)
    found = {f"{at}{name}.weight": x for name, x in made.items()}
    if mixed:
        found[f"{at}mlp.gate.e_score_correction_bias"] = rng.normal(0, 0.2, EXPERTS)
    return found


def make_ends(rng: np.random.Generator, at: str, vocab: int) -> dict[str, Any]:
    """What a prediction layer has besides; copies that are not read are zeros."""
    return {
        f"{at}enorm.weight": rng.uniform(0.7, 1.3, H),
        f"{at}hnorm.weight": rng.uniform(0.7, 1.3, H),
        f"{at}eh_proj.weight": rng.normal(0, 0.2, (H, 2 * H)),
        f"{at}shared_head.norm.weight": rng.uniform(0.7, 1.3, H),
        f"{at}shared_head.head.weight": np.zeros((vocab, H)),
        f"{at}embed_tokens.weight": np.zeros((vocab, H)),
    }


def write_model(path: Path, tensors: Tensors, **config: Any) -> Path:
    found = {key: x for key, x in {**CONFIG, **config}.items() if x is not None}
    return write_folder(path, found, {name: encode(x, "f32") for name, x in tensors.items()})


def load_model(path: Path, ops: Ops) -> tuple[Decoder, Checkpoint]:
    checkpoint = open_checkpoint(path)
    kind = find_family(checkpoint.config)
    spec = kind.read_spec(checkpoint.config)
    plan = kind.plan(spec, Files(False, frozenset(checkpoint.tensors), checkpoint.joined))
    weights = load(checkpoint, plan, ops)
    return Decoder(Parts(ops, SingleProcess(), spec, weights), 128), checkpoint


def fit_join(model: Decoder, tensors: Tensors, prompts: Sequence[Sequence[int]]) -> F32:
    """The eh_proj that, alone, comes closest to the model's next state on its own answers."""
    answers = drain(make_engine(model), make_requests(prompts))
    inputs, wanted = [], []
    for (id, _), tokens in answers.items():
        text = [*prompts[int(id[1:])], *tokens]
        states = states_of(model, text)
        inputs.append(join_pairs(tensors, text[1:], states[:-1]))
        wanted.append(states[1:])
    found, *_ = np.linalg.lstsq(np.concatenate(inputs), np.concatenate(wanted), rcond=None)
    return found.T.astype(np.float32).copy()


def fit_tensors(path: Path, prompts: Sequence[Sequence[int]]) -> Tensors:
    """With an eh_proj that is often right after these prompts; a model is written to `path`."""
    made = make_tensors()
    model, checkpoint = load_model(write_model(path, made), ReferenceOps("f32"))
    checkpoint.close()
    return made | {f"{AT}eh_proj.weight": fit_join(model, made, prompts)}


def rms(x: Any, weight: Any, eps: float = EPS) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def join_pairs(w: Tensors, tokens: Sequence[int], states: Any) -> Any:
    """The normed embedding of each token, then the normed state before it."""
    embedded = w["model.embed_tokens.weight"][list(tokens)]
    both = rms(embedded, w[f"{AT}enorm.weight"]), rms(states, w[f"{AT}hnorm.weight"])
    return np.concatenate(both, 1)


class Reference:
    """The prediction layer."""

    def __init__(self, model: Decoder, tensors: Tensors) -> None:
        self.model = model
        self.w = {name: x.astype(np.float64) for name, x in tensors.items()}

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """Greedy draft tokens after a text whose newest token is not computed."""
        states, text = list(states_of(self.model, tokens[:-1])), list(tokens)
        for _ in range(count):
            made = self.push(text[1:], np.array(states))
            states.append(made[-1])
            text.append(int(np.argmax(self.w["lm_head.weight"] @ made[-1])))
        return text[len(tokens) :]

    def push(self, tokens: Sequence[int], states: Any) -> Any:
        """States [T,H] after the pairs, normed."""
        x = join_pairs(self.w, tokens, states) @ self.w[f"{AT}eh_proj.weight"].T
        x = x + self.attend(rms(x, self.w[f"{AT}input_layernorm.weight"]))
        normed = rms(x, self.w[f"{AT}post_attention_layernorm.weight"])
        x = x + np.array([self.mix(row) for row in normed])
        return rms(x, self.w[f"{AT}shared_head.norm.weight"])

    def project(self, x: Any, name: str) -> Any:
        return x @ self.w[f"{AT}{name}.weight"].T

    def attend(self, x: Any) -> Any:
        """Multi-head latent attention, as published: keys and values of the latents."""
        n, count = "self_attn.", len(x)
        q = rms(self.project(x, n + "q_a_proj"), self.w[f"{AT}{n}q_a_layernorm.weight"], 1e-6)
        q = self.project(q, n + "q_b_proj").reshape(count, HEADS, NOPE + ROPE)
        down = self.project(x, n + "kv_a_proj_with_mqa")
        latent = rms(down[:, :RANK], self.w[f"{AT}{n}kv_a_layernorm.weight"], 1e-6)
        kv = self.project(latent, n + "kv_b_proj").reshape(count, HEADS, NOPE + VALUE)
        turned_q, turned_k = self.turn(q[:, :, NOPE:]), self.turn(down[:, None, RANK:])
        mixed = np.zeros((count, HEADS, VALUE))
        for t in range(count):
            for h in range(HEADS):
                scores = kv[: t + 1, h, :NOPE] @ q[t, h, :NOPE]
                scores = (scores + turned_k[: t + 1, 0] @ turned_q[t, h]) / np.sqrt(NOPE + ROPE)
                weights = np.exp(scores - scores.max())
                mixed[t, h] = weights @ kv[: t + 1, h, NOPE:] / weights.sum()
        return self.project(mixed.reshape(count, -1), n + "o_proj")

    @staticmethod
    def turn(x: Any) -> Any:
        """Rotates the pairs (0, 1), (2, 3), ..."""
        angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, ROPE, 2) / ROPE)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        out = np.empty_like(x)
        out[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 1::2] * cos + x[..., ::2] * sin
        return out

    def mix(self, x: Any) -> Any:
        """The chosen experts of one row, and the shared one."""
        scores = 1 / (1 + np.exp(-self.project(x, "mlp.gate")))
        chances = scores + self.w[f"{AT}mlp.gate.e_score_correction_bias"]
        grouped = np.sort(chances.reshape(GROUPS, -1), axis=1)[:, -2:].sum(1)
        kept = np.argsort(-grouped)[: CONFIG["topk_group"]]
        own = [e for e in range(EXPERTS) if e // (EXPERTS // GROUPS) in kept]
        chosen = sorted(own, key=lambda e: -chances[e])[:TOP]
        total = scores[chosen].sum()
        out = self.feed(x, "mlp.shared_experts")
        for e in chosen:
            out = out + SCALE * scores[e] / total * self.feed(x, f"mlp.experts.{e}")
        return out

    def feed(self, x: Any, name: str) -> Any:
        gate, up = self.project(x, f"{name}.gate_proj"), self.project(x, f"{name}.up_proj")
        return self.project(gate / (1 + np.exp(-gate)) * up, f"{name}.down_proj")
