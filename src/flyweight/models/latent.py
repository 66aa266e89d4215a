"""The slots of multi-head latent attention, as published or as GGUF's converters part them.

Invariant: slot `k_up.{h}` takes head h's plain query to the latent, `v_up.{h}` the latent to its
value; both come of kv_b_proj, whose rows are each head's keys, then its values.
"""

from dataclasses import dataclass

from flyweight.models.mixture import Experts
from flyweight.models.plans import make_half_split_order, plan_linear, plan_vector
from flyweight.spec import LayerSpec, SlotPlan, Source


@dataclass(frozen=True, slots=True)
class Latent(Experts):
    """Slots of latent attention.  The rotated rows, published last of each head and interleaved, go
    first; kv_b's rows are each head's way into the latent, transposed, and out of it.
    """

    def plan_attention(self, at: str, src: str, layer: LayerSpec) -> list[SlotPlan]:
        latent, heads, n = layer.latent, layer.heads, src + "self_attn."
        assert latent is not None
        slots, columns, module = [], self.hidden, "q_proj"
        if latent.q_rank:
            down = ((n + "q_a_proj", latent.q_rank),)
            slots += [
                plan_linear(at + "q_down", self.hidden, down),
                plan_vector(at + "q_down_norm", n + "q_a_layernorm.weight", latent.q_rank),
            ]
            columns, module = latent.q_rank, "q_b_proj"
        query = ((n + module, heads * (latent.rope + latent.plain)),)
        width = ((n + "kv_a_proj_with_mqa", latent.rank + latent.rope),)
        slots += [
            plan_linear(at + "q", columns, query, order=_make_order(latent.plain, latent.rope)),
            plan_linear(
                at + "kv_down", self.hidden, width, order=_make_order(latent.rank, latent.rope)
            ),
            plan_vector(at + "kv_norm", n + "kv_a_layernorm.weight", latent.rank),
            *self._plan_heads(at, n, layer),
            plan_linear(at + "out", heads * latent.value, ((n + "o_proj", self.hidden),)),
        ]
        return slots

    def _plan_heads(self, at: str, n: str, layer: LayerSpec) -> list[SlotPlan]:
        latent, heads = layer.latent, layer.heads
        assert latent is not None
        plain, value, rank = latent.plain, latent.value, latent.rank
        slots = []
        for h in range(heads):
            if f"{n}k_b_proj.weight" in self.files.names:  # converters part and transpose kv_b
                k = Source(f"{n}k_b_proj.weight", (heads, rank, plain), rank, h * rank)
                v = Source(f"{n}v_b_proj.weight", (heads, value, rank), value, h * value)
            else:
                shape, start = (heads * (plain + value), rank), h * (plain + value)
                k = Source(f"{n}kv_b_proj.weight", shape, plain, start, transposed=True)
                v = Source(f"{n}kv_b_proj.weight", shape, value, start + plain)
            slots.append(SlotPlan(f"{at}k_up.{h}", (rank, plain), (k,)))
            slots.append(SlotPlan(f"{at}v_up.{h}", (value, rank), (v,)))
        return slots


def _make_order(plain: int, turned: int) -> tuple[int, ...]:
    """The order that puts the last `turned` rows first, and half-split."""
    return (*(plain + i for i in make_half_split_order(turned)), *range(plain))
