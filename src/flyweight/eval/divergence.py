"""How far a model's predictions are from a full model's: the Kullback-Leibler divergence
KL(full || model) of every scored token, and how often both prefer the same token.

Invariant: both models score the same tokens in the same windows, with the same engine settings.
The full model's rows come from a file, so only one model is loaded at a time.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flyweight.errors import ConfigError
from flyweight.eval.perplexity import MeanWithError, Perplexity
from flyweight.eval.scoring import Report
from flyweight.eval.session import EvalSession
from flyweight.eval.store import StoreHeader, StoreReader, StoreWriter, normalize
from flyweight.eval.windows import EvalText, WindowPlan
from flyweight.wire import F32, F64


@dataclass(frozen=True, slots=True)
class Divergence:
    """KL by token in nats, `agreement` of the most likely tokens (a share), and the candidate's
    perplexity; `seconds` of scoring the candidate.
    """

    mean: MeanWithError
    median: float
    p99: float
    p999: float
    most: float
    agreement: MeanWithError
    perplexity: Perplexity
    seconds: float


class DivergenceRows:
    """Compares rows of logits with those of a file."""

    def __init__(self, full: StoreReader) -> None:
        self._full = full
        self.kl: F64 = np.zeros(full.header.tokens)
        self.agrees: F64 = np.zeros(full.header.tokens)

    def take(self, first: int, logits: F32) -> None:
        stop = first + len(logits)
        full, ours = self._full.read(first, len(logits)), normalize(logits)
        kl = (np.exp(full) * (full - ours)).sum(axis=-1, dtype=np.float64)
        self.kl[first:stop] = np.maximum(kl, 0)  # below only by rounding
        best = self._full.list_best(first, len(logits))
        self.agrees[first:stop] = logits.argmax(axis=-1) == best


def make_header(full: EvalSession, text: EvalText, plan: WindowPlan) -> StoreHeader:
    """Of a file with the full model's rows."""
    return StoreHeader(
        model=str(full.path),
        fingerprint=full.fingerprint,
        text=text.name,
        text_sha256=text.digest,
        context=plan.context,
        stride=plan.step,
        tokens=full.tokens,
        tokens_sha256=full.digest,
        vocab=full.vocab,
        activations=full.settings.activations,
        kv_cache_dtype=full.settings.kv_cache_dtype,
    )


def check_vocabularies(candidate: EvalSession, full: EvalSession) -> None:
    """Raises `ConfigError` where the models do not score the same tokens."""
    if candidate.vocab != full.vocab:
        raise ConfigError(
            f"has a vocabulary of {full.vocab} tokens, the model one of {candidate.vocab}",
            "against",
            value=str(full.path),
        )
    if candidate.digest != full.digest:
        raise ConfigError(
            "reads the text as other tokens than the model: their vocabularies differ",
            "against",
            value=str(full.path),
        )


def record(full: EvalSession, header: StoreHeader, path: Path, report: Report) -> None:
    """Writes a file with the full model's rows."""
    writer = StoreWriter(path, header)
    try:
        full.score(report, writer.take)
        writer.finish()
    finally:
        writer.discard()


def compare(candidate: EvalSession, full: StoreReader, report: Report) -> Divergence:
    """Scores the candidate and compares its rows with the full model's."""
    rows = DivergenceRows(full)
    scored = candidate.score(report, rows.take)
    ends = np.cumsum([window.new for window in candidate.windows])[:-1]
    median, p99, p999 = np.quantile(rows.kl, (0.5, 0.99, 0.999))
    return Divergence(
        mean=MeanWithError.of(np.split(rows.kl, ends)),
        median=float(median),
        p99=float(p99),
        p999=float(p999),
        most=float(rows.kl.max()),
        agreement=MeanWithError.of(np.split(rows.agrees, ends)),
        perplexity=Perplexity.of(scored.logprobs),
        seconds=scored.seconds,
    )
