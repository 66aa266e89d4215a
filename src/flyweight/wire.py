"""The flat arrays that cross every boundary: scheduler to model, rank 0 to other ranks, target to
draft model.

Invariant: plain integer and float arrays, C-contiguous, laid end to end by sequence; no live object
travels. T tokens, S sequences, R rows that need logits, M blocks of the longest table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
Tensor = Any  # an array of the backend: NumPy's on the CPU, torch's on a GPU


class CutRow(NamedTuple):
    """The sampling options that no kernel knows, of one row; their values as off are the defaults.
    They are the options that declare the column `cuts`, in the order of their declarations; then
    `mu`, mirostat's state before the draw.
    """

    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.0
    mirostat: float = 0
    mirostat_tau: float = 0.0
    mirostat_eta: float = 0.0
    mu: float = np.nan


@dataclass(frozen=True, slots=True)
class Cuts:
    """The options of `CutRow` for the Q rows that use one."""

    rows: I32  # [Q] ascending
    values: F64  # [Q, fields of `CutRow`]


@dataclass(frozen=True, slots=True)
class Masks:
    """Which ids may be drawn at the Q rows that a grammar holds: id i has bit i % 32 of word
    i // 32.
    """

    rows: I32  # [Q] ascending
    words: U32  # [Q, ceil(V/32)]


@dataclass(frozen=True, slots=True)
class ListedLogprobs:
    """The ids whose log-probabilities are wanted at Q rows, in place of the best ones; a row
    without any wants those of the whole vocabulary, best first.
    """

    rows: I32  # [Q] ascending
    ids: I32  # [sum] row after row
    starts: I32  # [Q+1]


@dataclass(frozen=True, slots=True)
class Proposals:
    """The draft tokens at D rows, which are the C drafts starts[c]:starts[c+1], each from its first
    token on.  `probs` are what the tokens were drawn from.
    """

    rows: I32  # [D]
    tokens: I32  # [D]
    starts: I32  # [C+1]
    probs: F32  # [D,V]


@dataclass(slots=True)
class SampleBatch:
    """Sampling options as columns, one row per logits row.  History, bias, allowed and banned ids,
    repeats are CSR over rows; the rarest options are in `cuts`, grammars' answers in `masks`, none
    where no row has one.

    The order of application is stated in docs/ops.md.  `logprobs` are raw (before all of it).  The
    draw at a row depends only on (seed, choice, position).  Neither it nor a `Batch` is changed
    once made; frozen they would cost every step 4 us.
    """

    temperature: F32  # [R] 0 = greedy
    top_p: F32  # [R]
    top_k: I32  # [R] 0 = all
    min_p: F32  # [R]
    seed: U64  # [R]
    choice: I32  # [R]
    position: I32  # [R] index in the sequence of the token to be drawn
    penalties: F32  # [R,3] repetition, presence, frequency
    # [R] how many history tokens are prompt: no presence or frequency penalty for those
    prompt: I32
    history: I32  # [sum] tokens so far, row after row; empty rows without a penalty
    history_starts: I32  # [R+1]
    bias_ids: I32  # [sum]
    bias_values: F32  # [sum]
    bias_starts: I32  # [R+1]
    allowed_ids: I32  # [sum] the only ids that may be drawn; empty rows where all may
    allowed_starts: I32  # [R+1]
    banned_ids: I32  # [sum] ids that may not be drawn (min_tokens not reached, bad words)
    banned_starts: I32  # [R+1]
    repeat_ids: I32  # [sum] ids that would go on with a repetition (DRY)
    repeat_values: F32  # [sum] what their logits lose
    repeat_starts: I32  # [R+1]
    given: I32  # [R] the token where it is known and only its log-probability is wanted, else -1
    logprobs: I32  # [R] how many best log-probabilities to return, -1 = none wanted at all
    cuts: Cuts | None = None
    masks: Masks | None = None
    listed: ListedLogprobs | None = None
    proposals: Proposals | None = None  # to be verified by rejection sampling


@dataclass(slots=True)
class Batch:
    """One step's work.  Sequence s owns tokens starts[s]:starts[s+1] and sees contexts[s] positions
    of K/V in all, those tokens included, through tables[s].  `rows` index tokens whose logits are
    wanted, ascending.

    A draft that is a tree is several sequences: its trunk, and each branch with the blocks before
    it and own ones from its first token on.  What a branch sees of this step's tokens in its own
    blocks are `ancestors`: every layer copies these slots once it has written K and V, before any
    token attends.
    """

    tokens: I32  # [T]
    positions: I32  # [T]
    slots: I32  # [T] where each token's K/V is written: block * B + offset
    starts: I32  # [S+1]
    contexts: I32  # [S]
    tables: I32  # [S,M] block numbers, padded with 0
    rows: I32  # [R]
    sampling: SampleBatch
    adapters: I32 | None = None  # [S]
    hidden: I32 | None = None  # [E] tokens whose final hidden states are wanted
    ancestors: tuple[I32, I32] | None = None  # [A] slots each: from, to
    branches: int = 0  # how many of the S sequences are branches


@dataclass(slots=True)
class Sampled:
    """What `sample` returns, not changed afterwards.  top_ids / top_logprobs are padded with -1 /
    nan to the largest requested count.  `mu`, where the batch has cuts, is mirostat's state after
    the draw (NaN elsewhere).
    """

    tokens: I32  # [R]
    logprobs: F32  # [R] raw log-probability of the token drawn or given
    ranks: I32  # [R] 1 = the most likely
    top_ids: I32  # [R,n]
    top_logprobs: F32  # [R,n]
    mu: F64 | None = None  # [R]
    hidden: F32 | None = None  # [E,H] after the final norm, where the batch wants any
    taps: Mapping[int, Tensor] | None = None  # [T,H] by layer, where a drafter taps some
