"""What the device found for a step's rows, as tokens and log-probabilities on the host.

Invariant: log-probabilities are the reference's float64 operations on the row's largest logit and
the sum of its exponentials.
"""

from dataclasses import fields, replace

import numpy as np
from torch import Tensor

from flyweight.ops.cuda.sample_options import DrawPlan
from flyweight.ops.reference_sample import add_listed
from flyweight.wire import F32, I32, I64, SampleBatch, Sampled


def report(plan: DrawPlan, found: dict[str, I64], listed: Tensor | None) -> Sampled:
    """What the device found, as tokens and log-probabilities."""
    count, wanted = len(plan.given), plan.wanted
    tokens = split_places(found["best"])[0] if count else np.zeros(0, np.int32)
    if len(plan.drawn):
        tokens[plan.drawn] = found["tokens"][plan.drawn]
    tokens = np.where(plan.given >= 0, plan.given, tokens).astype(np.int32)
    logprobs, ranks = np.full(count, np.nan, np.float32), np.zeros(count, np.int32)
    top_ids = np.full((count, plan.width), -1, np.int32)
    top = np.full((count, plan.width), np.nan, np.float32)
    if len(wanted):
        with np.errstate(invalid="ignore", divide="ignore"):
            best = split_places(found["raw_best"])[1].astype(np.float64)
            total = np.log(found["totals"].view(np.float64))
            logprobs[wanted] = split_places(found["mine"])[1] - best - total
            ranks[wanted] = found["ranks"] + 1
            ids, values = split_places(found["top"].reshape(len(wanted), -1))
            absent = np.arange(ids.shape[1]) >= plan.s.logprobs[wanted][:, None]
            below = values - best[:, None] - total[:, None]
        top_ids[wanted, : ids.shape[1]] = np.where(absent, -1, ids)
        top[wanted, : ids.shape[1]] = np.where(absent, np.nan, below)
    sampled = Sampled(tokens, logprobs, ranks, top_ids, top, plan.mu)
    return sampled if listed is None else _report_listed(plan.s, sampled, listed.numpy())


def split_places(packed: I64) -> tuple[I32, F32]:
    """Ids and logits of places (kernels/sample.py)."""
    ids = (2**31 - 1) - (packed & (2**31 - 1))
    key = ((packed >> 31) - 2**31).astype(np.int32)
    bits = np.where(key < 0, key ^ np.int32(0x7FFFFFFF), key)
    return ids.astype(np.int32), bits.view(np.float32)


def _report_listed(s: SampleBatch, sampled: Sampled, logits: F32) -> Sampled:
    """`add_listed` where only the logits of the rows concerned, in their order, are here."""
    assert s.listed is not None
    rows = s.listed.rows
    names = [f.name for f in fields(Sampled)]
    some = {n: v[rows] for n in names if (v := getattr(sampled, n)) is not None}
    alone = replace(s.listed, rows=np.arange(len(rows), dtype=np.int32))
    part = add_listed(logits, alone, Sampled(**some))
    width = part.top_ids.shape[1]
    top_ids = np.full((len(sampled.tokens), width), -1, np.int32)
    top = np.full((len(sampled.tokens), width), np.nan, np.float32)
    top_ids[:, : sampled.top_ids.shape[1]] = sampled.top_ids
    top[:, : sampled.top_ids.shape[1]] = sampled.top_logprobs
    top_ids[rows], top[rows] = part.top_ids, part.top_logprobs
    return replace(sampled, top_ids=top_ids, top_logprobs=top)
