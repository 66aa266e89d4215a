"""Sampling on the device: tokens draw for draw those of the reference.

Invariant: `submit_sample` starts all the device's work and does not wait for it, but for rows with
one of the rarer cuts, which the reference draws on the host; `Pending.collect` waits once.  The
caller's logits are never changed: a step that edits them edits a copy.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from flyweight.ops.cuda import sample_options
from flyweight.ops.cuda.kernels import sample as kernels
from flyweight.ops.cuda.kernels import sample_weigh as weighing
from flyweight.ops.cuda.kernels.sample_draw import draw
from flyweight.ops.cuda.kernels.sample_list import list_head
from flyweight.ops.cuda.sample_best import list_best
from flyweight.ops.cuda.sample_edit import edit, edit_columns, is_edited
from flyweight.ops.cuda.sample_launch import launch
from flyweight.ops.cuda.sample_options import DrawPlan
from flyweight.ops.cuda.sample_report import report
from flyweight.ops.reference_sample import adjust, choose, find_cuts
from flyweight.wire import F64, I32, SampleBatch, Sampled

BLOCK = 4096  # logits of a segment
BUCKETS = 1024
LIST = 8192  # candidates of one bucket that are listed
HEAD = 2048  # best candidates that are listed where there are cuts
HEAD_SEGMENT = 16384  # logits listed by one program
TILE = 128  # of those, looked at together
DRAW_BLOCK = 2048  # logits a draw's program reads at once
WARPS, WEIGH_WARPS, DRAW_WARPS = 8, 16, 4
GROUP = 128  # ids of which the best is kept
HEAD_GROUPS = 3  # eighths of the groups whose best ids are weighed one by one
SUMS = BUCKETS, 12, 8  # int64 of a drawn row: buckets, classes, counters (kernels/sample_weigh.py)

GREEDY, DRAWN = -2, -1  # in place of a token that is given


def sample(logits: Tensor, s: SampleBatch) -> Sampled:
    return submit_sample(logits, s).collect()


@dataclass(slots=True)
class Pending:
    """Results under way to the host."""

    plan: DrawPlan
    results: Tensor  # see `split_results`
    listed: Tensor | None  # raw logits of the rows with listed ids
    done: Any = None  # an event, on a GPU
    parts: dict[str, slice] = field(default_factory=dict)

    def collect(self) -> Sampled:
        """Waits for the device."""
        if self.done is not None:
            self.done.synchronize()
        flat = self.results.numpy()
        found = {name: flat[part] for name, part in self.parts.items()}
        return report(self.plan, found, self.listed)


def submit_sample(logits: Tensor, s: SampleBatch) -> Pending:
    """Starts the draws of [R,V] float32 logits."""
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    plan = _plan(logits, s)
    count, chosen = len(logits), len(plan.wanted)
    parts = split_results(count, chosen, plan.best_count)
    last = "top" if chosen else "tokens" if len(plan.drawn) else "best"
    total = parts[last].stop + parts[last].stop % 2
    # one zeroed piece of memory: the results, then the sums of the draws
    zeros = torch.zeros(
        total + len(plan.drawn) * sum(SUMS), dtype=torch.int64, device=logits.device
    )
    results = zeros[:total]
    found = {n: results[part] for n, part in parts.items() if part.start < part.stop <= total}
    found["sums"] = zeros[total:]
    arrays = _make_options(plan)
    there = sample_options.upload(arrays, logits.device) if arrays else {}
    if plan.draws:
        _launch_draws(logits, plan, there, found)
    if chosen:
        _launch_scores(logits, plan, there, found)
    listed = None
    if s.listed is not None and len(s.listed.rows):
        rows = torch.from_numpy(s.listed.rows.astype(np.int64)).to(logits.device)
        listed = _fetch(logits.index_select(0, rows))
    pending = Pending(plan, _fetch(results), listed, None, parts)
    if logits.device.type == "cuda":
        pending.done = torch.cuda.Event()
        pending.done.record()
    return pending


def split_results(rows: int, wanted: int, best: int) -> dict[str, slice]:
    """Where each result is in the int64 vector of all; each begins at 16 bytes, as Triton compiles
    a kernel anew for a pointer that does not.
    """
    sizes = {
        "best": rows, "tokens": rows, "raw_best": wanted, "ranks": wanted, "totals": wanted,
        "mine": wanted, "top": wanted * best,
    }  # fmt: skip
    parts, start = {}, 0
    for name, size in sizes.items():
        parts[name] = slice(start, start + size)
        start += size + size % 2
    return parts


def _fetch(x: Tensor) -> Tensor:
    """A copy under way to the host."""
    if x.device.type != "cuda":
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return host.copy_(x, non_blocking=True)


def _plan(logits: Tensor, s: SampleBatch) -> DrawPlan:
    given, mu = s.given, None
    if s.cuts is not None:
        given, mu = _draw_rare(logits, s)
    return DrawPlan(
        s=s,
        vocab=logits.shape[1],
        given=given,
        mu=mu,
        drawn=np.flatnonzero((given < 0) & (s.temperature > 0)),
        wanted=np.flatnonzero(s.logprobs >= 0),
        width=max(int(s.logprobs.max(initial=-1)), 0),
    )


def _draw_rare(logits: Tensor, s: SampleBatch) -> tuple[I32, F64]:
    """The tokens of rows with a rarer cut, by the reference; mirostat's state after."""
    given, mu = s.given.copy(), np.full(len(logits), np.nan)
    cuts = find_cuts(s)
    held = logits[torch.tensor(list(cuts), device=logits.device)].cpu().numpy() if cuts else ()
    for (r, cut), row in zip(cuts.items(), held, strict=True):
        adjusted = adjust(row, s, r)
        adjusted[np.isnan(adjusted)] = -np.inf
        given[r], mu[r] = choose(adjusted, s, r, cut)
    return given, mu


def _count_segments(vocab: int) -> int:
    return -(-vocab // BLOCK)


def _make_options(plan: DrawPlan) -> dict[str, NDArray[Any]]:
    """All that the device must know besides the logits."""
    arrays: dict[str, NDArray[Any]] = {}
    if plan.draws:
        arrays |= edit_columns(plan.s, plan.vocab)
    if len(plan.drawn):
        arrays["table"] = sample_options.make_table(plan.s, plan.drawn)
    if len(plan.wanted):
        sources = np.where(plan.s.temperature > 0, DRAWN, GREEDY)
        sources = np.where(plan.given >= 0, plan.given, sources)[plan.wanted]
        arrays["wanted"] = plan.wanted.astype(np.int32)
        arrays["sources"] = sources.astype(np.int32)
    return arrays


def _launch_draws(
    logits: Tensor, plan: DrawPlan, there: dict[str, Tensor], found: dict[str, Tensor]
) -> None:
    """Fills `best`, and `tokens` where any are drawn."""
    vocab, segments = plan.vocab, _count_segments(plan.vocab)
    if is_edited(there):
        logits = logits.clone(memory_format=torch.contiguous_format)
        edit(logits, there)
    shape = logits, logits.stride(0), vocab, _number_rows(len(logits), logits.device)
    programs = len(logits) * segments
    if not len(plan.drawn):
        launch(kernels.find_best, programs, (*shape, found["best"], segments, BLOCK), WARPS)
        return
    groups = -(-vocab // GROUP)
    tops = torch.empty(len(logits), groups, dtype=torch.int32, device=logits.device)
    tail = groups, segments, BLOCK, GROUP
    launch(weighing.find_group_tops, programs, (*shape, found["best"], tops, *tail), WARPS)
    _draw(logits, plan, there, found | {"tops": tops})


@lru_cache(maxsize=64)
def _number_rows(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.int32, device=device)


def _draw(
    logits: Tensor, plan: DrawPlan, there: dict[str, Tensor], found: dict[str, Tensor]
) -> None:
    vocab, count = plan.vocab, len(plan.drawn)
    assert vocab < 1 << 19, "a bucket's word counts no more candidates"
    groups, segments = found["tops"].shape[1], _count_segments(vocab)
    table, best = there["table"], found["best"]
    buckets, classes, counters = found["sums"].split([count * n for n in SUMS])
    counters = counters.view(torch.int32)
    lists = torch.empty(2, 2 * count * LIST, dtype=torch.int32, device=logits.device)
    limit = groups * HEAD_GROUPS // 8
    edge = table, best, found["tops"], groups, limit, counters
    launch(weighing.find_edge, count, (*edge, triton.next_power_of_2(groups), BUCKETS), WARPS)
    shape = logits, logits.stride(0), vocab, table, best, buckets
    cut = segments, BLOCK, BUCKETS
    launch(weighing.weigh, count * segments, (*shape, classes, counters, *cut), WEIGH_WARPS)
    launch(weighing.aim, count, (table, best, buckets, classes, counters, BUCKETS), WARPS)
    launch(weighing.refine, count * segments, (*shape, counters, *cut), WEIGH_WARPS)
    listed = *shape, classes, counters, lists[0].view(torch.float32), lists[1]
    heads, head = -(-vocab // HEAD_SEGMENT), min(HEAD, LIST)
    sizes = heads, head, LIST, HEAD_SEGMENT, BLOCK, BUCKETS
    launch(list_head, count * heads, (*listed, *sizes), WARPS)
    tiles = LIST, DRAW_BLOCK, TILE, BUCKETS
    launch(draw, count, (*listed, found["tokens"], *tiles), DRAW_WARPS)


def _launch_scores(
    logits: Tensor, plan: DrawPlan, there: dict[str, Tensor], found: dict[str, Tensor]
) -> None:
    """Fills what log-probabilities are made of, from the caller's logits."""
    vocab, count, segments = plan.vocab, len(plan.wanted), _count_segments(plan.vocab)
    shape = logits, logits.stride(0), vocab, there["wanted"]
    programs = count * segments
    launch(kernels.find_best, programs, (*shape, found["raw_best"], segments, BLOCK), WARPS)
    token = there["sources"], found.get("tokens", found["best"]), found["best"]
    parts = torch.empty(count, segments, dtype=torch.float64, device=logits.device)
    scores = found["raw_best"], found["ranks"], parts, segments, BLOCK
    launch(kernels.score, programs, (*shape, *token, *scores), WARPS)
    sums = parts, found["totals"], found["mine"], segments, triton.next_power_of_2(segments)
    launch(kernels.finish_scores, count, (*shape, *token, *sums), 4)
    if plan.width:
        list_best(logits, there["wanted"], plan.best_count, found["top"].view(count, -1))
