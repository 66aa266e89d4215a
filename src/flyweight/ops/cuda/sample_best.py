"""The ids with the largest logits, best first, ties by id.

Invariant: a place (kernels/sample.py) is a number of its own for each id of a row, so `topk` has no
ties to break.  The n best ids are in the n groups of ids whose best ones are the best.
"""

import torch
from torch import Tensor

from flyweight.ops.cuda.kernels import sample as kernels

BLOCK = 4096  # logits of a segment
GROUP = 128  # ids of a group
PLACES = 1 << 23  # sorted at once, to bound the memory
WARPS = 8


def list_best(logits: Tensor, rows: Tensor, best: int, out: Tensor) -> None:
    """Fills [Q,best] with the places of the best ids of each of Q rows."""
    vocab = logits.shape[1]
    grouped = 2 * best * GROUP < vocab
    width = best * GROUP if grouped else vocab
    most = max(PLACES // width // 4 * 4, 4)  # rows at 16 bytes: no kernel is compiled anew
    for first in range(0, len(rows), most):
        some = rows[first : first + most]
        places = _list_groups(logits, some, best) if grouped else _list_all(logits, some)
        out[first : first + most] = torch.topk(places, best, dim=1).values


def _list_groups(logits: Tensor, rows: Tensor, best: int) -> Tensor:
    count, vocab = len(rows), logits.shape[1]
    groups, segments = -(-vocab // GROUP), -(-vocab // BLOCK)
    shape = logits, logits.stride(0), vocab, rows
    bests = torch.empty(count, groups, dtype=torch.int64, device=logits.device)
    kernels.find_group_bests[(count * segments,)](
        *shape, bests, groups, segments, BLOCK=BLOCK, GROUP=GROUP, num_warps=WARPS
    )
    chosen = torch.topk(bests, best, dim=1, sorted=False).values
    places = torch.empty(count, best * GROUP, dtype=torch.int64, device=logits.device)
    kernels.unfold_groups[(count * best,)](*shape, chosen, places, best, GROUP=GROUP, num_warps=1)
    return places


def _list_all(logits: Tensor, rows: Tensor) -> Tensor:
    count, vocab, segments = len(rows), logits.shape[1], -(-logits.shape[1] // BLOCK)
    places = torch.empty(count, vocab, dtype=torch.int64, device=logits.device)
    kernels.pack_places[(count * segments,)](
        logits, logits.stride(0), vocab, rows, places, segments, BLOCK=BLOCK, num_warps=WARPS
    )
    return places
