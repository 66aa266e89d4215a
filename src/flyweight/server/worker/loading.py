"""Builds an engine on a thread of its own, while those that are loaded go on.

Invariant: an error while loading is reported over the pipe, and ends nothing else.  Sends a few
messages of progress per second at most.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from threading import Thread
from typing import Any

from flyweight.build import LoadedModel, build
from flyweight.config import Settings
from flyweight.describe import ModelDescription
from flyweight.errors import FlyweightError, MemoryShortage
from flyweight.plan.memory import GIB, MemoryPlan, summarize
from flyweight.resources import EngineResources, ProcessResources
from flyweight.server import pipe
from flyweight.server.worker.hosted import report

EVERY = 0.25  # seconds between two messages of progress
BROKE = "the model could not be loaded; the log has more"


class ApiServerGone(Exception):
    """The API server has closed the pipe."""


class LoadingReporter:
    """A `LoadListener` that reports over the pipe."""

    def __init__(self, send: Callable[[pipe.ToFront], None]) -> None:
        self._send = send
        self._last = 0.0

    def show_plan(self, plan: MemoryPlan, found: ModelDescription) -> None:
        self._send(pipe.LoadingProgress("plan", summarize(plan)))

    def report_progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self._last < EVERY:
            return
        self._last = now
        self._send(pipe.LoadingProgress("progress", "loading", done, total))

    def warn(self, message: str) -> None:
        self._send(pipe.LoadingProgress("warning", message))

    def note(self, message: str) -> None:
        self._send(pipe.LoadingProgress("note", message))

    def show_download(self, file: str, done: int, total: int) -> None:
        """The API server has fetched the files."""


class EngineLoader:
    """Loads one engine; `on_end` is called on its thread, when `loaded` or `failed` is set.
    `dropped`: it was unloaded before that.
    """

    def __init__(
        self,
        number: int,
        begin: pipe.EngineSetup,
        process: ProcessResources,
        send: Callable[[pipe.ToFront], None],
        on_end: Callable[[], None],
    ) -> None:
        self.number, self.begin, self.process = number, begin, process
        self.loaded: LoadedModel | None = None
        self.settings: Settings | None = None
        self.failed: pipe.Failed | None = None
        self.dropped = False
        self._send, self._on_end = send, on_end
        Thread(target=self._run, name="loader", daemon=True).start()

    def _run(self) -> None:
        try:
            self.settings = Settings.of(**self.begin.settings)
            tell = LoadingReporter(self._send)
            begin = self.begin
            own = EngineResources(
                self.process, self.number, begin.room, begin.fixed, begin.token_cache,
                begin.replica,
            )  # fmt: skip
            self.loaded = build(self.settings, tell, served=True, resources=own)
        except FlyweightError as error:
            self.failed = pipe.Failed(str(error), isinstance(error, MemoryShortage))
        except ApiServerGone:
            return
        except Exception as error:
            report(error)
            self.failed = pipe.Failed(BROKE)
        self._on_end()


def describe_engine(loaded: LoadedModel, settings: Settings) -> dict[str, Any]:
    """The facts of a built engine that the API server needs."""
    limits, plan = loaded.limits, loaded.memory
    return {
        "fingerprint": loaded.fingerprint,
        "vocab": loaded.spec.vocab,
        "width": loaded.spec.hidden,
        "context": loaded.spec.context,
        "tokenizer": loaded.text,
        "max_model_len": limits.max_model_len,
        "scored": limits.scored,
        "adapters": list(settings.adapters),
        "blocks": limits.blocks,
        "block_size": limits.block_size,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "draft_tokens": settings.draft_tokens,
        "prefix_caching": limits.prefix_caching,
        "kv_sample": settings.kv_cache_metrics_sample if settings.kv_cache_metrics else 0.0,
        "threads": plan.sizing.threads,
        "spread": plan.sizing.spread,
        "isa": loaded.isa,
        "compiled": None if loaded.shape is None else asdict(loaded.shape),
        "kv_dtype": plan.sizing.kv_dtype,
        "swap_space": int(settings.swap_space * GIB),
        "memory": {
            "weights": plan.weights,
            "kv": plan.kv,
            "grammars": plan.sizing.grammars,
            "need": plan.need,
            "limit": plan.limit,
        },
    }
