"""Operations and bytes of each op of a decoder, by name.

What is counted: a product of T rows with an N x K matrix, 2 T N K operations and the matrix's bytes
in the file; attention as the roofline counts it; of every other op the float32 rows that it reads
and writes, 4 bytes an element, and these operations an element:

    norm 4, norm of a sum 5 (the addition), rotation 3 an element that turns, gated activation 5,
    plain activation 4, sampling 1 a logit; exp and division count as one operation each

Invariant: a cost depends on shapes alone, never on what was measured.
"""

import re
from collections.abc import Mapping

from flyweight.plan.roofline import Matrix, OpCost, StepShape, make_attention_cost
from flyweight.planning.op_meter import OpCall
from flyweight.spec import KVType, ModelSpec

EXPERT = re.compile(r"\.\d+$")
FREE = OpCost(0.0, 0.0, "f32")
FLOAT = 4
NORM, ADD_NORM, ROTATE, GATED, PLAIN = 4, 5, 3, 5, 4


def count_product(matrices: list[Matrix], tokens: int) -> OpCost:
    """The product of `tokens` rows with the matrices of a slot, side by side."""
    ops = [matrix.make_op(tokens) for matrix in matrices]
    unit = ops[0].unit if ops else "f32"
    return OpCost(sum(op.operations for op in ops), sum(op.nbytes for op in ops), unit)


def count_lookup(tokens: int, width: int, row_bytes: float) -> OpCost:
    """Rows of a table, read as the file has them and written as floats."""
    return OpCost(0.0, tokens * (row_bytes + FLOAT * width), "f32")


def count_norm(rows: int, width: int) -> OpCost:
    """Reads a row and writes its norm."""
    return OpCost(NORM * rows * width, 2 * FLOAT * rows * width, "f32")


def count_add_norm(rows: int, width: int) -> OpCost:
    """Reads a row and the residual; writes the residual and its norm."""
    return OpCost(ADD_NORM * rows * width, 4 * FLOAT * rows * width, "f32")


def count_add(rows: int, width: int) -> OpCost:
    """Reads a row and the residual; writes the residual."""
    return OpCost(rows * width, 3 * FLOAT * rows * width, "f32")


def count_rotation(tokens: int, turned: int, read: int, query: int, stored: int) -> OpCost:
    """Turns `turned` elements of a token's q and k: reads `read` floats, writes `query` floats and
    `stored` bytes of K/V.
    """
    nbytes = tokens * (FLOAT * (read + query) + stored)
    return OpCost(ROTATE * tokens * turned, nbytes, "f32")


def count_activation(tokens: int, inner: int, gated: bool) -> OpCost:
    """Reads one row of `inner` elements, or two where gated, and writes one."""
    operations = (GATED if gated else PLAIN) * tokens * inner
    return OpCost(operations, FLOAT * tokens * inner * (3 if gated else 2), "f32")


def count_sampling(rows: int, vocab: int) -> OpCost:
    """Greedy: compares every logit once."""
    return OpCost(rows * vocab, FLOAT * rows * vocab, "f32")


class StepCosts:
    """What the calls of a step cost, by the model's spec and the sizes of its matrices."""

    def __init__(
        self, spec: ModelSpec, matrices: Mapping[str, list[Matrix]], kv: KVType, embed: float
    ) -> None:
        self.spec, self.kv = spec, kv
        self._matrices, self._embed = matrices, embed  # bytes of a row of the table

    def count(self, call: OpCall, context: int) -> OpCost:
        """The cost of one call of a step that ends at `context` positions."""
        rows = call.given[0] if call.given else 0
        width = call.given[-1] if call.given else 0
        layer = self.spec.layers[max(call.layer, 0)]
        match call.op:
            case "linear" | "linear_heads" | "experts":
                return count_product(self.find_matrices(call), rows)
            case "embed":
                return count_lookup(rows, call.result[-1], self._embed)
            case "norm" | "layer_norm":
                return count_norm(rows, width)
            case "add_norm":
                return count_add_norm(rows, width)
            case "add":
                return count_add(rows, width)
            case "act" | "activate":
                return count_activation(rows, call.result[-1], call.op == "act")
            case "sample":
                return count_sampling(rows, width)
            case "attend":
                seen = StepShape(((rows, context),), 1, context)
                return make_attention_cost(layer, seen, self.kv)
            case "rope_store":
                dim = 0 if layer.rope is None else self.spec.ropes[layer.rope].dim
                turned = (layer.heads + layer.kv.heads) * dim
                query, stored = call.result[1] * call.result[2], self.kv.count_bytes(layer.kv)
                return count_rotation(rows, turned, width, query, stored)
        return FREE

    def find_matrices(self, call: OpCall) -> list[Matrix]:
        """Those of the call's slot; of all heads or experts where each has its own."""
        if call.op == "linear":
            return self._matrices[call.slot]
        stem = EXPERT.sub(".", call.slot)
        stems = [stem]
        if call.op == "experts":
            stems.append(stem.replace(".up.", ".down."))
        return [
            matrix
            for slot, found in self._matrices.items()
            for matrix in found
            if slot.startswith(tuple(stems))
        ]

    def find_shape(self, call: OpCall) -> tuple[int, ...]:
        """[N, K] of the matrix that a call multiplies with; () where it has none."""
        if call.op not in ("linear", "linear_heads", "experts"):
            return ()
        found = self.find_matrices(call)
        return (sum(m.rows for m in found), found[0].columns)
