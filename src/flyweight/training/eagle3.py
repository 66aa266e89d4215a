"""Trains an EAGLE-3 layer (Li et al., 2025): from a token and the states of several layers to what
the model says next.

The layer reads the normed embedding and the normed state side by side.  Embedding and output matrix
are the model's.  It learns the model's choice alone, from true states first and then from its own
(training-time test), as it drafts.  Needs torch (the extra `train`).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from flyweight.training.corpus import Corpus
from flyweight.training.eagle import (
    PASSES,
    EagleShape,
    Pair,
    fit_layer,
    norm_rows,
    push_attention,
)
from flyweight.training.logits import compute_logits, prepare_head

NORMS = {
    "embed_norm": "midlayer.input_layernorm", "state_norm": "midlayer.hidden_norm",
    "mlp_norm": "midlayer.post_attention_layernorm", "norm": "norm",
}  # fmt: skip


class Eagle3Layer(nn.Module):  # type: ignore[misc]
    """fc over the states of `taps` layers, and one decoder layer; the norm of its logits begins as
    `norm`.
    """

    def __init__(self, shape: EagleShape, taps: int, norm: torch.Tensor) -> None:
        super().__init__()
        s, self.shape = shape, shape
        self.fc = nn.Linear(taps * s.hidden, s.hidden, bias=False)
        self.q = nn.Linear(2 * s.hidden, s.heads * s.head, bias=False)
        self.k = nn.Linear(2 * s.hidden, s.kv_heads * s.head, bias=False)
        self.v = nn.Linear(2 * s.hidden, s.kv_heads * s.head, bias=False)
        self.o = nn.Linear(s.heads * s.head, s.hidden, bias=False)
        self.gate = nn.Linear(s.hidden, s.inner, bias=False)
        self.up = nn.Linear(s.hidden, s.inner, bias=False)
        self.down = nn.Linear(s.inner, s.hidden, bias=False)
        for name in NORMS:
            setattr(self, name, nn.Parameter(torch.ones(s.hidden)))
        with torch.no_grad():  # begins as the highest state it is given
            self.norm.copy_(norm)
            self.fc.weight[:, -s.hidden :] += torch.eye(s.hidden)
            self.o.weight *= 0.1
            self.down.weight *= 0.1

    def forward(
        self, embedded: torch.Tensor, states: torch.Tensor, before: list[Pair]
    ) -> torch.Tensor:
        """[S,L,H] -> the next states [S,L,H].  `before` holds K and V of earlier passes, from true
        states first; this pass adds its own.
        """
        eps = self.shape.eps
        normed = norm_rows(embedded, self.embed_norm, eps), norm_rows(states, self.state_norm, eps)
        both = torch.cat(normed, -1)
        projected = self.q(both), self.k(both), self.v(both)
        x = states + self.o(push_attention(self.shape, projected, before))
        read = norm_rows(x, self.mlp_norm, eps)
        return x + self.down(F.silu(self.gate(read)) * self.up(read))


def train_eagle3(
    corpus: Corpus,
    tables: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    shape: EagleShape,
    steps: int,
    progress: Callable[[float], None] = lambda loss: None,
    tokens: int = 2048,
    rate: float = 2e-3,
) -> Eagle3Layer:
    """As `train_eagle`; the corpus has the states of all tapped layers side by side, and the third
    table is the weight of the model's last norm [H].
    """
    torch.manual_seed(0)
    embedding, head, norm = tables
    layer = Eagle3Layer(shape, corpus.states.shape[1] // shape.hidden, norm)
    near = embedding, prepare_head(head)

    def compute(places: torch.Tensor) -> torch.Tensor:
        return _compute_loss(layer, corpus, near, places)

    fit_layer(layer.parameters(), compute, corpus.batch_texts(tokens, 0), steps, progress, rate)
    return layer


def _compute_loss(
    layer: Eagle3Layer, corpus: Corpus, tables: Pair, places: torch.Tensor
) -> torch.Tensor:
    """The mean over passes; what repeats a text's last token counts nothing."""
    embedding, head = tables
    tokens, choices = corpus.tokens[places], corpus.choices[places]
    counted = places[:, 1:] > places[:, :-1]  # [S, L-1]
    embedded = embedding[tokens[:, 1:]]
    passes: list[Pair] = []
    states, loss = layer.fc(corpus.states[places][:, :-1].float()), torch.zeros(())
    for i in range(PASSES):
        counts = counted.clone()
        counts[:, :i] = False  # its K and V would be of tokens before the first
        found = layer(embedded, states, passes)
        normed = norm_rows(found[counts], layer.norm, layer.shape.eps)
        logits = compute_logits(normed, head)
        loss = loss + F.cross_entropy(logits, choices[:, 1:][counts])
        states = torch.cat((states[:, :1], found[:, :-1]), 1)
    return loss / PASSES


def name_tensors(layer: Eagle3Layer) -> dict[str, torch.Tensor]:
    """The layer's parameters under the published names."""
    at = "midlayer."
    names = {"fc": "fc", "o": f"{at}self_attn.o_proj"}
    names |= {name: f"{at}self_attn.{name}_proj" for name in "qkv"}
    names |= {name: f"{at}mlp.{name}_proj" for name in ("gate", "up", "down")}
    found = {f"{name}.weight": getattr(layer, own).weight for own, name in names.items()}
    return found | {f"{name}.weight": getattr(layer, own).data for own, name in NORMS.items()}
