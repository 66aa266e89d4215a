"""Trains an EAGLE layer (Li et al., 2024): from a token and the state before it to the next state.

The layer reads fc([embedding; state]) without a norm of its own; embedding and output matrix are
the model's.  It learns the model's choice, and the next state, from true states first and then from
its own, up to `PASSES` deep (Zhang et al., 2024), as it drafts.  Needs torch (the extra `train`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import nn

from flyweight.training.corpus import Corpus, find_schedule
from flyweight.training.logits import compute_logits, prepare_head

PASSES = 3
STATE_LOSS = 0.2  # the share of the distance between states


@dataclass(frozen=True, slots=True)
class EagleShape:
    """Sizes of the layer."""

    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    base: float
    eps: float


Pair = tuple[torch.Tensor, torch.Tensor]


class EagleLayer(nn.Module):  # type: ignore[misc]
    """fc and one decoder layer."""

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        s, self.shape = shape, shape
        self.fc = nn.Linear(2 * s.hidden, s.hidden, bias=False)
        self.q = nn.Linear(s.hidden, s.heads * s.head, bias=False)
        self.k = nn.Linear(s.hidden, s.kv_heads * s.head, bias=False)
        self.v = nn.Linear(s.hidden, s.kv_heads * s.head, bias=False)
        self.o = nn.Linear(s.heads * s.head, s.hidden, bias=False)
        self.norm = nn.Parameter(torch.ones(s.hidden))
        self.gate = nn.Linear(s.hidden, s.inner, bias=False)
        self.up = nn.Linear(s.hidden, s.inner, bias=False)
        self.down = nn.Linear(s.inner, s.hidden, bias=False)
        with torch.no_grad():  # begins as the state it is given
            self.fc.weight[:, s.hidden :] += torch.eye(s.hidden)
            self.o.weight *= 0.1
            self.down.weight *= 0.1

    def forward(
        self, embedded: torch.Tensor, states: torch.Tensor, before: list[Pair]
    ) -> torch.Tensor:
        """[S,L,H] -> the next states [S,L,H].  `before` holds K and V of earlier passes, from true
        states first; this pass adds its own.
        """
        x = self.fc(torch.cat((embedded, states), -1))
        x = x + self.o(push_attention(self.shape, (self.q(x), self.k(x), self.v(x)), before))
        normed = norm_rows(x, self.norm, self.shape.eps)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def push_attention(
    shape: EagleShape, projected: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    before: list[Pair],
) -> torch.Tensor:  # fmt: skip
    """q, k and v [S,L,.] -> [S,L,heads*head]; adds K and V to those of earlier passes."""
    size, s = projected[0].shape[:2], shape
    q = _rotate(projected[0].view(*size, s.heads, s.head), s)
    k = _rotate(projected[1].view(*size, s.kv_heads, s.head), s)
    v = projected[2].view(*size, s.kv_heads, s.head)
    shared = s.heads // s.kv_heads
    before.append((k.repeat_interleave(shared, 2), v.repeat_interleave(shared, 2)))
    return _attend(q, before).flatten(2)


def norm_rows(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm."""
    return w * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _attend(q: torch.Tensor, passes: list[Pair]) -> torch.Tensor:
    """A token sees true states up to `last` tokens before it, then one of each later pass."""
    last, length = len(passes) - 1, q.shape[1]
    places = torch.arange(length)
    scores = torch.einsum("sqhd,skhd->shqk", q, passes[0][0]) / math.sqrt(q.shape[-1])
    hidden = places[None, :] > places[:, None] - last
    columns = [scores.masked_fill(hidden, -math.inf)]
    values = []
    for i, (k, v) in enumerate(passes[1:], 1):
        back = last - i  # the token that pass i computed for this one
        near, own = (F.pad(a, (0, 0, 0, 0, back, 0))[:, :length] for a in (k, v))
        score = torch.einsum("sqhd,sqhd->shq", q, near) / math.sqrt(q.shape[-1])
        columns.append(score[..., None])
        values.append(own)
    weights = torch.cat(columns, -1).softmax(-1)
    mixed = torch.einsum("shqk,skhd->sqhd", weights[..., :length], passes[0][1])
    for i, own in enumerate(values):
        mixed = mixed + weights[..., length + i].transpose(1, 2)[..., None] * own
    return mixed


def _rotate(x: torch.Tensor, shape: EagleShape) -> torch.Tensor:
    half = shape.head // 2
    turn = shape.base ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[1])[:, None] * turn  # [L, half]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def train_eagle(
    corpus: Corpus,
    tables: Pair,
    shape: EagleShape,
    steps: int,
    progress: Callable[[float], None] = lambda loss: None,
    tokens: int = 2048,
    rate: float = 2e-3,
) -> EagleLayer:
    """`tables` are the model's scaled embedding and output matrices [V,H]; `progress` receives
    the loss of each step.  Some text has more than PASSES tokens.
    """
    torch.manual_seed(0)
    layer, (embedding, head) = EagleLayer(shape), tables
    near = embedding, prepare_head(head)

    def compute(places: torch.Tensor) -> torch.Tensor:
        return _compute_loss(layer, corpus, near, places)

    fit_layer(layer.parameters(), compute, corpus.batch_texts(tokens, 0), steps, progress, rate)
    return layer


def fit_layer(
    parameters: Iterator[nn.Parameter],
    compute: Callable[[torch.Tensor], torch.Tensor],
    batches: Iterator[tuple[torch.Tensor, int]],
    steps: int,
    progress: Callable[[float], None],
    rate: float,
) -> None:
    """`compute` gives the loss of places [S,L]; the last pass learns something of every batch."""
    own = list(parameters)
    optimiser = torch.optim.AdamW(own, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    useful = (batch for batch in batches if batch[1] > PASSES)
    for step, (places, length) in enumerate(islice(useful, steps)):
        optimiser.param_groups[0]["lr"] = find_schedule(step, steps, rate)
        loss = compute(places[:, :length])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(own, 1.0)
        optimiser.step()
        progress(float(loss.detach()))


def _compute_loss(
    layer: EagleLayer, corpus: Corpus, tables: Pair, places: torch.Tensor
) -> torch.Tensor:
    """The mean over passes; what repeats a text's last token counts nothing."""
    embedding, head = tables
    true = corpus.states[places].float()
    tokens, choices = corpus.tokens[places], corpus.choices[places]
    counted = places[:, 1:] > places[:, :-1]  # [S, L-1]
    embedded, wanted = embedding[tokens[:, 1:]], true[:, 1:]
    passes: list[Pair] = []
    states, loss = true[:, :-1], torch.zeros(())
    for i in range(PASSES):
        counts = counted.clone()
        counts[:, :i] = False  # its K and V would be of tokens before the first
        found = layer(embedded, states, passes)
        logits = compute_logits(found[counts], head)
        loss = loss + F.cross_entropy(logits, choices[:, 1:][counts])
        loss = loss + STATE_LOSS * F.smooth_l1_loss(found[counts], wanted[counts])
        states = torch.cat((states[:, :1], found[:, :-1]), 1)
    return loss / PASSES


def name_tensors(layer: EagleLayer) -> dict[str, torch.Tensor]:
    """The layer's parameters under the published names."""
    at = "layers.0."
    names = {"fc": "fc", "q": f"{at}self_attn.q_proj", "k": f"{at}self_attn.k_proj"}
    names |= {"v": f"{at}self_attn.v_proj", "o": f"{at}self_attn.o_proj"}
    names |= {name: f"{at}mlp.{name}_proj" for name in ("gate", "up", "down")}
    found = {f"{name}.weight": getattr(layer, own).weight for own, name in names.items()}
    return found | {f"{at}post_attention_layernorm.weight": layer.norm.data}
