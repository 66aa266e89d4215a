"""Edits of logits before a draw: bias, bans, masks and penalties, on the device.

Invariant: in the order of docs/ops.md, each one rounded float32 operation; `edit` changes the
tensor it is given, a contiguous copy of the caller's.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flyweight.ops.cuda.kernels import sample as kernels
from flyweight.wire import F32, I64, SampleBatch

BLOCK = 4096  # logits of a segment
HISTORY_BLOCK = 1024  # tokens of a history counted at once


def edit_columns(s: SampleBatch, vocab: int) -> dict[str, NDArray[Any]]:
    """What the edits need on the device; nothing where no row has any."""
    made: dict[str, NDArray[Any]] = {}
    if s.bias_ids.size:
        made |= _make_rounds("bias", _flatten(s.bias_starts, s.bias_ids, vocab), s.bias_values)
    if s.allowed_ids.size:
        made["allowed"] = _flatten(s.allowed_starts, s.allowed_ids, vocab)
        made["allowed_rows"] = np.flatnonzero(np.diff(s.allowed_starts))
    if s.banned_ids.size:
        made["banned"] = _flatten(s.banned_starts, s.banned_ids, vocab)
    if s.masks is not None and len(s.masks.rows):
        made["mask_rows"], made["mask_words"] = s.masks.rows, s.masks.words.view(np.int32)
    if s.history.size:
        made |= {
            "history_rows": np.flatnonzero(np.diff(s.history_starts)).astype(np.int32),
            "history": s.history,
            "history_starts": s.history_starts,
            "prompt": s.prompt,
            "penalties": s.penalties,
        }
    if s.repeat_ids.size:
        flat = _flatten(s.repeat_starts, s.repeat_ids, vocab)
        made |= _make_rounds("repeat", flat, -s.repeat_values)
    return made


def _flatten(starts: NDArray[np.int32], ids: NDArray[np.int32], vocab: int) -> I64:
    """Ids of rows as indices into all logits."""
    counts = np.diff(starts)
    rows = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    flat: I64 = rows * vocab + ids
    return flat


def _make_rounds(name: str, flat: I64, values: F32) -> dict[str, NDArray[Any]]:
    """Additions in rounds that have each index once at most: an index's values keep their order."""
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    firsts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.r_[firsts, len(flat)])
    turns = np.arange(len(flat)) - np.repeat(firsts, sizes)
    made: dict[str, NDArray[Any]] = {}
    for turn in range(int(sizes.max())):
        made[f"{name}_{turn}"] = ordered[turns == turn]
        made[f"{name}_values_{turn}"] = values[order][turns == turn]
    return made


def is_edited(there: dict[str, Tensor]) -> bool:
    firsts = ("bias_0", "allowed", "banned", "mask_rows", "history", "repeat_0")
    return any(name in there for name in firsts)


def edit(x: Tensor, there: dict[str, Tensor]) -> None:
    flat, (_, vocab) = x.view(-1), x.shape
    segments = -(-vocab // BLOCK)
    _add(flat, there, "bias")
    if "allowed" in there:
        kept = flat[there["allowed"]]
        x.index_fill_(0, there["allowed_rows"], -torch.inf)
        flat[there["allowed"]] = kept
    if "banned" in there:
        flat.index_fill_(0, there["banned"], -torch.inf)
    if "mask_rows" in there:
        rows, words = there["mask_rows"], there["mask_words"]
        kernels.apply_masks[(len(rows) * segments,)](
            x, vocab, vocab, rows, words, len(words) // len(rows), segments, BLOCK=BLOCK
        )
    if "history" in there:
        _penalise(x, there, segments)
    _add(flat, there, "repeat")


def _add(flat: Tensor, there: dict[str, Tensor], name: str) -> None:
    turn = 0
    while (at := there.get(f"{name}_{turn}")) is not None:
        flat[at] += there[f"{name}_values_{turn}"]
        turn += 1


def _penalise(x: Tensor, there: dict[str, Tensor], segments: int) -> None:
    rows, vocab = there["history_rows"], x.shape[1]
    counts = torch.zeros(len(rows), vocab, dtype=torch.int32, device=x.device)
    kernels.count_history[(len(rows),)](
        there["history"], there["history_starts"], there["prompt"], rows, counts, vocab,
        BLOCK=HISTORY_BLOCK,
    )  # fmt: skip
    kernels.penalise[(len(rows) * segments,)](
        x, vocab, vocab, rows, counts, there["penalties"], segments, BLOCK=BLOCK,
        enable_fp_fusion=False,
    )  # fmt: skip
