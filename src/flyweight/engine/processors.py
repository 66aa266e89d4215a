"""Callers' own functions on logits (`logits_processors`), between the model and the sampler.

Invariant: a function gets a copy of one row and that sequence's tokens, in this process; no `Batch`
carries one.  What it raises ends its sequence and nothing else.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Plan
from flyweight.types import Processor
from flyweight.validation.untrusted import one_line
from flyweight.wire import F32

LONGEST = 300  # characters of an error
LARGEST = np.finfo(np.float32).max


@dataclass(slots=True)
class LogitsEdit:
    """Logits row `row` is to go through a sequence's functions; `error` says why it did not."""

    row: int
    seq: Sequence
    error: str = ""


def edits(plan: Plan) -> list[LogitsEdit]:
    """One for each row to be drawn for a request with functions of its own."""
    found: list[LogitsEdit] = []
    if not any(chunk.seq.options.edited for chunk in plan.chunks):
        return found
    row = 0
    for chunk in plan.chunks:
        if chunk.pooled:
            continue
        drawn = chunk.rows > chunk.scored  # one row: such sequences have no guesses
        if drawn and chunk.seq.options.edited:
            found.append(LogitsEdit(row + chunk.scored, chunk.seq))
        row += chunk.rows
    return found


def apply(logits: F32, wanted: Seq[LogitsEdit]) -> None:
    """Puts what the functions return in their rows' place; NaN bans, as -inf does."""
    for edit in wanted:
        name = ""
        try:
            row = logits[edit.row].copy()
            for i, processor in enumerate(edit.seq.request.params.logits_processors):
                name = f"logits_processors[{i}]"
                row = _row(_called(processor, edit.seq, row), len(row))
            row[np.isnan(row)] = -np.inf
            if row.max() == -np.inf:
                raise ValueError("it left no token to draw")
            logits[edit.row] = np.minimum(row, LARGEST)
        except Exception as error:
            edit.error = one_line(f"{name} raised {type(error).__name__}: {error}", LONGEST)


def _called(processor: Processor, seq: Sequence, row: F32) -> Any:
    """f(generated ids, row), or f(prompt ids, generated ids, row), as vLLM tells them apart."""
    tokens = seq.tokens.tolist()
    generated = tokens[seq.prompt :]
    if len(signature(processor).parameters) == 3:
        return processor(tokens[: seq.prompt], generated, row)
    return processor(generated, row)


def _row(found: Any, vocab: int) -> F32:
    if found is None:
        raise TypeError("it returned None; it must return the row")
    row = np.array(found, np.float32)
    if row.shape != (vocab,):
        raise ValueError(f"it returned an array of shape {row.shape}; needed: ({vocab},)")
    return row
