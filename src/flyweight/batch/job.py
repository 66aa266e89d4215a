"""Runs a batch: the rows of a file that have no answer yet, each answered once, by a `BatchRunner`.

Invariant: a row whose line is in the output is not run again.  An answer is in the output before
the next one is taken.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from flyweight.batch.files import open_output, open_rows
from flyweight.batch.rows import RowAnswer, RowIndex
from flyweight.errors import ConfigError


class BatchRunner(Protocol):
    """Where rows are answered.  `answer` yields the answers in any order; raises `ConfigError` or
    `CheckpointError` where the model cannot be loaded.
    """

    def answer(self, index: RowIndex) -> Iterator[RowAnswer]: ...


class BatchListener:
    """Gets what happens; does nothing."""

    def begin(self, rows: int, done: int) -> None:
        """`rows` of the input, `done` of them before."""

    def report(self, summary: "BatchSummary") -> None:
        """After each answer."""


@dataclass(slots=True)
class BatchSummary:
    """Counts of rows: in the input, answered before and now, and those whose answer is an error,
    `errors` of all and `new_errors` of those answered now; tokens and seconds are of now.
    """

    input: str
    output: str
    rows: int = 0
    done_before: int = 0
    answered: int = 0
    errors: int = 0
    new_errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def to_document(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def run_batch(
    input: Path, output: Path, runner: BatchRunner, listener: BatchListener | None = None
) -> BatchSummary:
    """Answers the rows of `input` that `output` has no line for.  Raises `ConfigError` before
    anything is loaded where one of the files cannot be used.
    """
    tell, began = listener or BatchListener(), time.monotonic()
    file = open_rows(input)
    check_different(input, output)
    summary = BatchSummary(str(input), str(output))
    with open_output(output) as lines:
        index = RowIndex(file)
        lines.recover(index)
        summary.rows, summary.done_before = index.rows, index.done
        summary.errors = lines.failed
        tell.begin(index.rows, index.done)
        if index.done < index.rows:
            for answer in runner.answer(index):
                if not index.finish(answer.number):
                    continue  # it came twice
                lines.append(answer.line)
                add_answer(summary, answer)
                summary.seconds = time.monotonic() - began
                tell.report(summary)
        lines.finish()
    summary.seconds = time.monotonic() - began
    return summary


def add_answer(summary: BatchSummary, answer: RowAnswer) -> None:
    summary.answered += 1
    summary.errors += answer.failed
    summary.new_errors += answer.failed
    summary.prompt_tokens += answer.prompt_tokens
    summary.completion_tokens += answer.completion_tokens


def check_different(input: Path, output: Path) -> None:
    if output.exists() and output.samefile(input):
        raise ConfigError("is the input", "output", value=str(output), allowed="another file")
