"""A random EAGLE-3 layer for the small model: its files, and its drafts in NumPy."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from small_engine import drain, make_engine, make_prompt_batch, make_requests

from filewriters import encode, write_safetensors
from flyweight.models.decoder import Decoder
from flyweight.ops.stack import run
from flyweight.wire import F32
from torchwriter import torch_bytes

HIDDEN, HEADS, KV, HEAD, INNER, EPS, KNOWN = 32, 4, 2, 8, 48, 1e-5, 30
PUBLISHED: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN,
    "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV,
    "num_hidden_layers": 1, "rms_norm_eps": EPS, "vocab_size": 40, "draft_vocab_size": KNOWN,
    "hidden_act": "silu", "tie_word_embeddings": False, "max_position_embeddings": 64,
}  # fmt: skip
Tensors = dict[str, F32]
IDS = "eagle_aux_hidden_state_layer_ids"


def choose_ids() -> np.ndarray:
    """The target's token of each row of the output matrix."""
    return np.sort(np.random.default_rng(5).permutation(40)[:KNOWN])


def make_tensors(model: Decoder, at: str = "midlayer.") -> Tensors:
    """A random layer, with the model's own norm and output matrix."""
    rng = np.random.default_rng(4)
    shapes = {"q": (32, 64), "k": (16, 64), "v": (16, 64), "o": (32, 32)}
    made = {f"{at}self_attn.{k}_proj.weight": rng.normal(0, 0.3, s) for k, s in shapes.items()}
    for name, shape in (("gate", (INNER, 32)), ("up", (INNER, 32)), ("down", (32, INNER))):
        made[f"{at}mlp.{name}_proj.weight"] = rng.normal(0, 0.1, shape)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        made[f"{at}{name}.weight"] = rng.uniform(0.5, 1.5, 32)
    low = rng.normal(0, 0.1, (32, 64))
    made["fc.weight"] = np.concatenate([low, np.eye(32)], 1)
    made["norm.weight"] = np.asarray(model.parts.weights["norm"])
    made["lm_head.weight"] = list_embeddings(model)[choose_ids()]
    return {name: x.astype(np.float32) for name, x in made.items()}


def list_embeddings(model: Decoder) -> F32:
    ids = np.arange(model.spec.vocab, dtype=np.int32)
    return np.asarray(model.ops.embed(model.parts.weights["embed"], ids))


def fit_tensors(model: Decoder, prompts: Sequence[Sequence[int]], at: str = "midlayer.") -> Tensors:
    """The layer, with an output matrix fitted by least squares to what the model says after these
    prompts: some drafts are right.
    """
    made = make_tensors(model, at)
    reference, ids = Eagle3Reference(model, made, at=at), choose_ids()
    answers = drain(make_engine(model), make_requests(prompts))
    states, wanted = [], []
    for (id, _), tokens in answers.items():
        text = [*prompts[int(id[1:])], *tokens]
        pushed = reference.push(list_embeddings(model)[text[1:]], reference.read(text[:-1]))
        states.append(norm(pushed[:-1], made["norm.weight"]))
        wanted.append(np.eye(40)[text[2:]][:, ids])
    head, *_ = np.linalg.lstsq(np.concatenate(states), np.concatenate(wanted), rcond=None)
    sure = 40 * head.T  # so that some paths are long
    return made | {"lm_head.weight": sure.astype(np.float32).copy()}


def write(
    path: Path, tensors: Tensors, file: str = "pytorch_model.bin",
    offsets: np.ndarray | None = None, **config: Any,
) -> Path:  # fmt: skip
    """A folder; with `offsets`, d2t, of a layer that knows a part of the vocabulary."""
    path.mkdir()
    encoded = {name: encode(x, "f32") for name, x in tensors.items()}
    if offsets is not None:
        encoded["d2t"] = "i64", offsets.shape, offsets.astype(np.int64).tobytes()
        encoded["t2d"] = "bool", (40,), bytes(40)
    (path / "config.json").write_text(json.dumps({**PUBLISHED, **config}))
    if file.endswith(".safetensors"):
        write_safetensors(path / file, encoded)
    else:
        (path / file).write_bytes(torch_bytes(encoded))
    return path


def compute_inputs(model: Decoder, tokens: Sequence[int], layer: int) -> F32:
    """What goes into a layer of the model, [T,H]: the embedding after those before it alone."""
    ops = model.ops
    kv = make_engine(model).runner.kv[:layer]  # type: ignore[attr-defined]
    batch = make_prompt_batch(tokens)
    x = list_embeddings(model)[np.array(tokens)]
    ropes = [ops.rotation(batch.positions, *rope) for rope in model.ropes]
    return np.asarray(x + run(model.layers[:layer], None, x, kv, batch, ropes))


@dataclass
class Eagle3Reference:
    """The layer's drafts of a whole text at once.  `inputs` are the layers of the model whose
    inputs it reads, `known` the tokens of its logits.
    """

    model: Decoder
    tensors: Tensors
    inputs: Sequence[int] = (1, 2, 3)
    at: str = "midlayer."
    known: Sequence[int] = ()
    normed_residual: bool = False
    normed_output: bool = False

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """Greedy draft tokens after a text whose newest token is not computed."""
        drafted: list[int] = []
        states = self.read(tokens[:-1])
        for _ in range(count):
            drafted.append(int(np.argmax(self.rank(tokens, drafted, states))))
        return drafted

    def rank(self, tokens: Sequence[int], drafted: Sequence[int], states: F32) -> F32:
        """Log-probabilities of what follows a text and draft tokens; `states` are the first."""
        w, text = self.tensors, [*tokens, *drafted]
        embedding = w.get("embed_tokens.weight", list_embeddings(self.model))
        head = w.get("lm_head.weight", list_embeddings(self.model))
        for at in range(len(tokens), len(text) + 1):
            made = self.push(embedding[text[1:at]], states)[-1]
            normed = norm(made, w["norm.weight"])
            states = np.concatenate([states, [normed if self.normed_output else made]])
        logits = np.full(40, -np.inf)
        logits[self.known or np.arange(40)] = head @ normed
        best = logits.max()
        return logits - best - np.log(np.exp(logits - best).sum())

    def read(self, tokens: Sequence[int]) -> F32:
        """The first states, [T,H]."""
        tapped = [compute_inputs(self.model, tokens, layer) for layer in self.inputs]
        w = self.tensors
        if "fc_norm.0.weight" in w:
            tapped = [norm(x, w[f"fc_norm.{i}.weight"]) for i, x in enumerate(tapped)]
        joined = np.concatenate(tapped, 1)
        if "input_norm.weight" in w:
            joined = norm(joined, w["input_norm.weight"])
        return joined @ w["fc.weight"].T

    def push(self, embedded: F32, states: F32) -> F32:
        w, at, count = self.tensors, self.at, len(states)
        normed = norm(states, w[f"{at}hidden_norm.weight"])
        both = np.concatenate([norm(embedded, w[f"{at}input_layernorm.weight"]), normed], 1)
        q, k, v = (both @ w[f"{at}self_attn.{n}_proj.weight"].T for n in "qkv")
        q, k = turn(q.reshape(count, HEADS, HEAD)), turn(k.reshape(count, KV, HEAD))
        k, v = (np.repeat(x.reshape(count, KV, HEAD), HEADS // KV, axis=1) for x in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(HEAD)
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hts,shd->thd", weights, v)
        x = normed if self.normed_residual else states
        x = x + mixed.reshape(count, HIDDEN) @ w[f"{at}self_attn.o_proj.weight"].T
        read = norm(x, w[f"{at}post_attention_layernorm.weight"])
        gate, up = (read @ w[f"{at}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        return x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{at}mlp.down_proj.weight"].T


def norm(x: F32, w: F32) -> F32:
    return w * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def turn(x: F32) -> F32:
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
