"""Callers' own functions on logits (`logits_processors`), between the model and the sampler.

Invariant: a function gets a copy of one row and that sequence's tokens, in this process; no `Batch`
carries one.  What it raises ends its sequence and nothing else.
"""

from collections.abc import Sequence as Seq
from inspect import signature
from typing import Any

import numpy as np

from flyweight.engine.hook import Hook, LogitsEdit, RowMarks
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Chunk
from flyweight.errors import EngineError
from flyweight.types import Processor, Request
from flyweight.validation.untrusted import one_line
from flyweight.wire import F32

LONGEST = 300  # characters of an error
LARGEST = np.finfo(np.float32).max


class Processors(Hook):
    """Has the runner apply them: one edit for each row that is drawn (these sequences have no
    drafts).
    """

    def wants(self, request: Request) -> bool:
        return bool(request.params.logits_processors)

    def mark(self, chunks: Seq[Chunk], marks: RowMarks) -> None:
        marks.edits += [LogitsEdit(row, chunk.seq) for chunk in chunks for row in chunk.drawn]


def apply(logits: F32, wanted: Seq[LogitsEdit]) -> None:
    """Puts what the functions return in their rows' place; NaN bans, as -inf does."""
    for edit in wanted:
        name = ""
        try:
            row = logits[edit.row].copy()
            for i, processor in enumerate(edit.seq.request.params.logits_processors):
                name = f"logits_processors[{i}]"
                row = _check_row(_call(processor, edit.seq, row), len(row))
            row[np.isnan(row)] = -np.inf
            if row.max() == -np.inf:
                raise ValueError("it left no token to sample")
            logits[edit.row] = np.minimum(row, LARGEST)
        except Exception as error:
            words = one_line(f"{name} raised {type(error).__name__}: {error}", LONGEST)
            edit.error = EngineError(words)


def _call(processor: Processor, seq: Sequence, row: F32) -> Any:
    """f(generated ids, row), or f(prompt ids, generated ids, row), as in vLLM."""
    tokens = seq.tokens.tolist()
    generated = tokens[seq.prompt :]
    if len(signature(processor).parameters) == 3:
        return processor(tokens[: seq.prompt], generated, row)
    return processor(generated, row)


def _check_row(found: Any, vocab: int) -> F32:
    if found is None:
        raise TypeError("it returned None; it must return the row")
    row = np.array(found, np.float32)
    if row.shape != (vocab,):
        raise ValueError(f"it returned an array of shape {row.shape}; needed: ({vocab},)")
    return row
