"""Products with the model's output matrix, which take most of the time of training.

Invariant: in bfloat16 where the processor multiplies it, in float32 elsewhere: there torch emulates
bfloat16, ten times slower than float32.
"""

import torch

from flyweight.ops.cpu import available_isas

MULTIPLY_BF16 = frozenset({"avx512", "amx"})


def prepare_head(head: torch.Tensor) -> torch.Tensor:
    """The output matrix [V,H] in the type that it is multiplied in."""
    return head.bfloat16() if MULTIPLY_BF16 & set(available_isas()) else head.float()


def compute_logits(states: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """States [R,H] and a prepared head [V,H] -> logits [R,V] in float32."""
    return (states.to(head.dtype) @ head.T).float()
