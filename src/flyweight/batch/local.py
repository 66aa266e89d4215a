"""Answers a batch in this process, with continuous batching."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flyweight.batch.answering import RowAnswerer
from flyweight.batch.rows import RowAnswer, RowIndex
from flyweight.describe import LoadListener
from flyweight.llm import LLM
from flyweight.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """`settings` are those of `LLM`, its model with them; `server` those of requests."""

    settings: dict[str, Any]
    server: ServerSettings = field(default_factory=ServerSettings)
    notify: LoadListener | None = None

    def answer(self, index: RowIndex) -> Iterator[RowAnswer]:
        with LLM(**self.settings, notify=self.notify) as llm:
            answerer = RowAnswerer(llm, self.server)
            try:
                yield from answerer.answer(index.read_pending())
            finally:
                answerer.close()
