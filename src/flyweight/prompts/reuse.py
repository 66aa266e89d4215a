"""What the prefix cache would find of prompts that arrive one after the other.

Invariant: keys are those of the engine's block pool, so that the prediction is what the engine
reports where nothing is evicted and every prompt arrives after the last has ended.  Answers are not
counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flyweight.kv.blocks import make_chain_key, make_root_key


@dataclass(frozen=True, slots=True)
class PredictedReuse:
    """Tokens that are found, of all tokens of the prompts."""

    hits: tuple[int, ...]
    tokens: int

    @property
    def found(self) -> int:
        return sum(self.hits)

    @property
    def rate(self) -> float:
        return self.found / self.tokens if self.tokens else 0.0


def predict_reuse(prompts: Iterable[Sequence[int]], block_size: int) -> PredictedReuse:
    """Each prompt takes the leading blocks that an earlier one had; its last token is computed."""
    seen: set[bytes] = set()
    hits: list[int] = []
    total = 0
    for ids in prompts:
        keys: list[bytes] = []
        parent = make_root_key("", "", "")
        for at in range(0, len(ids) - block_size + 1, block_size):
            parent = make_chain_key(parent, ids[at : at + block_size])
            keys.append(parent)
        usable = keys[: (len(ids) - 1) // block_size]
        held = next((i for i, key in enumerate(usable) if key not in seen), len(usable))
        hits.append(held * block_size)
        seen.update(keys)
        total += len(ids)
    return PredictedReuse(tuple(hits), total)
