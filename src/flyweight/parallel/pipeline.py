"""A model whose layers are on several ranks: each step goes from stage to stage in micro-batches.

A stage computes one micro-batch while the next stage computes the one before.  More micro-batches
leave the stages waiting for a smaller share of the step, (p - 1) / (m + p - 1) for p stages and m
equal parts, and read the weights more often: a step is cut where its parts still have many tokens.

Invariant: all stages cut a step in the same parts.  Hidden states of the last stage return to the
first, which has the head.  Between ranks they are host arrays.  Knows no sampling.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flyweight.errors import ConfigError
from flyweight.models.stages import DecoderStage, MicroBatch, split_batch
from flyweight.ops.operands import KVLayer
from flyweight.wire import I32, Batch, Tensor

if TYPE_CHECKING:
    from flyweight.parallel.comm import StageLink

LEAST_TOKENS = 64  # of a micro-batch: with fewer, weights are read more often than it gains
PARTS = 4  # micro-batches for each stage, at most


def count_parts(tokens: int, stages: int) -> int:
    """Micro-batches that a step of so many tokens is cut into."""
    return min(PARTS * stages, max(1, tokens // LEAST_TOKENS))


@dataclass(slots=True)
class PipelineTimes:
    """Of a stage, in seconds: the steps, and computing in them.  `bubbles` adds up what the formula
    says each step waits, as a share, times its seconds.
    """

    steps: int = 0
    seconds: float = 0.0
    computing: float = 0.0
    bubbles: float = 0.0

    def clear(self) -> None:
        """Begins anew."""
        self.steps, self.seconds, self.computing, self.bubbles = 0, 0.0, 0.0, 0.0

    @property
    def measured(self) -> float:
        """The share of the time that the stage waited."""
        return 1 - self.computing / self.seconds if self.seconds else 0.0

    @property
    def expected(self) -> float:
        """The same by the formula, for stages that cost the same."""
        return self.bubbles / self.seconds if self.seconds else 0.0


class PipelineStage:
    """One stage of a model, as `engine.runner.Model`.  Results are the first stage's alone."""

    def __init__(self, stage: DecoderStage, link: "StageLink") -> None:
        self.stage, self.link, self.times = stage, link, PipelineTimes()
        self.first, self.last = stage.stage.index == 0, stage.stage.last

    def compute_hidden(self, batch: Batch, kv: Sequence[KVLayer], rows: I32) -> Tensor:
        """Final hidden states [R, H] on the first stage; elsewhere [R, 0]."""
        began = time.perf_counter()
        parts = self._split(batch, rows)
        for part in parts:
            self._run_part(part, kv)
        hidden = self._collect(parts, len(rows))
        self.link.finish_sends()
        self._count(time.perf_counter() - began, len(parts))
        return hidden

    def compute_tapped(
        self, batch: Batch, kv: Sequence[KVLayer], rows: I32, taps: Sequence[int]
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        raise ConfigError("states of layers are not handed out by several stages")

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V] on the first stage; elsewhere as they are."""
        return self.stage.compute_logits(hidden) if self.first else hidden

    def _split(self, batch: Batch, rows: I32) -> list[MicroBatch]:
        """Drafts that are trees copy K/V within a step, so such a step stays whole."""
        count = count_parts(len(batch.tokens), self.stage.stage.count)
        return split_batch(batch, rows, 1 if batch.branches else count)

    def _run_part(self, part: MicroBatch, kv: Sequence[KVLayer]) -> None:
        ops, width = self.stage.ops, self.stage.spec.hidden
        if self.first:
            began = time.perf_counter()
            residual = self.stage.embed(part.batch)
        else:
            residual = ops.upload(self.link.receive_previous((len(part.batch.tokens), width)))
            began = time.perf_counter()
        self.stage.run_layers(residual, part.batch, kv)
        if not self.last:
            sent = ops.fetch(residual)
            self._note(began)
            self.link.send_next(sent)
            return
        hidden = None
        if len(part.rows):
            hidden = ops.fetch(self.stage.norm_rows(residual, part.rows))
        self._note(began)
        if hidden is not None:
            self.link.send_first(hidden)

    def _collect(self, parts: Sequence[MicroBatch], count: int) -> Tensor:
        """What the last stage has sent, in the order of the step's rows."""
        if not self.first:
            return np.zeros((count, 0), np.float32)
        width = self.stage.spec.hidden
        hidden = np.empty((count, width), np.float32)
        for part in parts:
            if len(part.rows):
                hidden[part.places] = self.link.receive_last((len(part.rows), width))
        return self.stage.ops.upload(hidden)

    def _note(self, began: float) -> None:
        self.times.computing += time.perf_counter() - began

    def _count(self, seconds: float, parts: int) -> None:
        stages = self.stage.stage.count
        self.times.steps += 1
        self.times.seconds += seconds
        self.times.bubbles += seconds * (stages - 1) / (parts + stages - 1)
