"""The slots of a mixture of experts, whose matrices are separate as published, or stacked as
GGUF's converters leave them.

Invariant: slot `up.{e}` is expert e's gate and up, `down.{e}` its way back.
"""

from dataclasses import dataclass

from flyweight.models.plans import plan_linear, plan_vector
from flyweight.spec import Files, LayerSpec, SlotPlan, Source


@dataclass(frozen=True, slots=True)
class MoeNames:
    """Where a family keeps its mixture, under a layer's name."""

    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "mlp.shared_expert"
    shared_gate: str = "mlp.shared_expert_gate"
    choice: str = "mlp.gate.e_score_correction_bias"


STACKED = MoeNames()  # what weights/gguf_names.py calls them, whatever the family


@dataclass(frozen=True, slots=True)
class Experts:
    """`plans.Blocks` of a family with experts."""

    hidden: int
    names: MoeNames
    files: Files

    def plan_attention(self, at: str, src: str, layer: LayerSpec) -> list[SlotPlan]:
        raise AssertionError("experts have no attention weights")

    def plan_mixture(self, at: str, src: str, layer: LayerSpec) -> list[SlotPlan]:
        """Router, experts, and the shared expert with its gate."""
        assert layer.moe is not None
        names = STACKED if self.files.converted else self.names
        moe, count = layer.moe, layer.moe.route.experts
        router = ((src + names.router, count),)
        slots = [plan_linear(at + "router", self.hidden, router, biased=moe.bias)]
        if moe.route.corrected:
            slots.append(plan_vector(at + "choice_bias", src + names.choice, count))
        for e in range(count):
            up = self._place_expert(src, e, (names.gate, names.up), (moe.inner, self.hidden), layer)
            down = self._place_expert(src, e, (names.down,), (self.hidden, moe.inner), layer)
            slots += [
                SlotPlan(f"{at}up.{e}", (2 * moe.inner, self.hidden), up),
                SlotPlan(f"{at}down.{e}", (self.hidden, moe.inner), down),
            ]
        if moe.shared:
            up_names = tuple(f"{src}{names.shared}.{m}" for m in (names.gate, names.up))
            parts = tuple((name, moe.shared) for name in up_names)
            slots.append(plan_linear(at + "shared_up", self.hidden, parts))
            down_part = ((f"{src}{names.shared}.{names.down}", self.hidden),)
            slots.append(plan_linear(at + "shared_down", moe.shared, down_part))
        if moe.shared_gate:
            slots.append(
                plan_linear(at + "shared_gate", self.hidden, ((src + names.shared_gate, 1),))
            )
        return slots

    def _place_expert(
        self, src: str, e: int, modules: tuple[str, ...], shape: tuple[int, int], layer: LayerSpec
    ) -> tuple[Source, ...]:
        """Expert e's part of every module."""
        assert layer.moe is not None
        rows, count = shape[0], layer.moe.route.experts
        names = STACKED if self.files.converted else self.names
        found = []
        for module in modules:
            if self.files.converted:
                tensor, bias = f"{src}{names.experts}.{module}", layer.moe.bias
                found.append(
                    Source(
                        f"{tensor}.weight", (count, *shape), rows, e * rows,
                        bias=f"{tensor}.bias" if bias else "",
                    )
                )  # fmt: skip
            else:
                found.append(Source(f"{src}{names.experts}.{e}.{module}.weight", shape, rows))
        return tuple(found)
