"""One engine of the engine process: its driver, its requests, the budget of its steps.

Invariant: an error in a step ends at most the request that caused it (`Driver`).  Knows no pipe, no
HTTP, no text and no other engine.
"""

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flyweight.build import LoadedModel
from flyweight.driver.background import Background, list_tasks
from flyweight.driver.driver import BROKE, Driver
from flyweight.engine.step import UNLIMITED, Plan
from flyweight.errors import RequestError
from flyweight.server import pipe
from flyweight.server.worker.budget import BudgetController
from flyweight.server.worker.faults import Fault
from flyweight.server.worker.metering import RequestMeter
from flyweight.server.worker.publishing import HeldAnswers

KEPT_STEPS = 256  # shown by /debug/steps


class HostedEngine:
    """`send` takes its messages to the API server."""

    def __init__(
        self, loaded: LoadedModel, begin: pipe.EngineSetup, send: Callable[[pipe.ToFront], None]
    ) -> None:
        self.send, self.engine, self.limits = send, loaded.engine, loaded.limits
        self.background = Background([*list_tasks(loaded), loaded.ahead])
        self.held = HeldAnswers(self.engine.external, loaded.limits.block_size)
        most = loaded.limits.max_num_batched_tokens
        self.controller = BudgetController(begin.target_step_time, most, begin.max_prefill_delay)
        if self.engine.external is not None:
            self.engine.external.use_costs(self.controller.estimate_prefill)
        self.budget = UNLIMITED  # of the step under way
        self.fault = Fault.of(begin.fault)
        self.meter = RequestMeter(reads=begin.settings.get("backend") != "cuda")
        self.steps: deque[dict[str, Any]] = deque(maxlen=KEPT_STEPS)
        self.arrived: dict[str, int] = {}  # requests under way, numbered as they came
        self.unstarted: set[str] = set()
        self.started: list[str] = []
        self.count, self.step, self.seconds = 0, 0, 0.0
        self.shape = (0, 0, 0)  # of the step under way: tokens of prompts, decodes, draft tokens
        self.driver = Driver(self.engine, report)
        self._handlers: dict[type, Callable[[Any], None]] = {
            pipe.Submit: self._add,
            pipe.Abort: self._leave,
            pipe.EngineQuestion: self._ask,
        }
        self._answers: dict[pipe.Topic, Callable[[], dict[str, Any]]] = {
            "ping": dict,
            "steps": self._list_steps,
            "kv": self._list_blocks,
            "reset": self._reset,
        }

    @property
    def busy(self) -> bool:
        """Whether there is something to compute, or to save for an answer."""
        return self.engine.busy or bool(self.held)

    def take(self, message: pipe.ToEngine) -> None:
        self._handlers[type(message)](message)

    def _ask(self, question: pipe.EngineQuestion) -> None:
        try:
            answer = self._answers[question.topic]()
        except Exception as error:
            report(error)
            answer = {}
        self.send(pipe.EngineAnswer(question.number, answer))

    def _add(self, message: pipe.Submit) -> None:
        number, self.count = self.count, self.count + 1
        try:
            request = message.to_request()
            self.driver.add(request)
        except RequestError as refused:
            self.send(pipe.RequestRefused.of(message.id, refused))
            return
        except Exception as error:
            report(error)
            self.send(pipe.RequestRefused.of(message.id, BROKE))
            return
        self.arrived[request.id] = number
        self.unstarted.add(request.id)
        if request.measure:
            self.meter.add(request.id)

    def _leave(self, message: pipe.Abort) -> None:
        """Ends a request that its client left.  The engine recovers before a second try; if that
        fails too, the answer is computed to its end and dropped.
        """
        for _ in range(2):
            try:
                if message.stopped and message.index is not None:
                    self.driver.stop(message.id, message.index)
                else:
                    self.driver.abort(message.id, message.index)
                break
            except Exception as error:
                report(error)
        self._tidy([message.id])
        self.held.drop(message.id, message.index)
        self.send(pipe.StepReport([], [], self._read_gauges(0, 0.0)))

    # --- steps ---

    def note_plan(self, plan: Plan) -> None:
        """Called by the engine with each step's plan, before it is computed."""
        now = [(c.seq.request.id, c.seq.index, c.start, c.count) for c in plan.chunks]
        self.meter.note(now)
        self.held.note(plan)
        decodes = [c.count for c in plan.chunks if not plan.prefill_only and c.seq.decoding]
        tokens, seqs = sum(decodes), len(decodes)
        prompts = sum(c[3] for c in now) - tokens
        self.shape = prompts, seqs, tokens - seqs
        budget = self.budget
        self.steps.append(
            {
                "step": self.step,
                "at": time.time(),
                "prompt_tokens": prompts,
                "decode_tokens": tokens,
                "running": len(self.engine.scheduler.running),
                "waiting": len(self.engine.scheduler.waiting),
                "chunks": now,
                "preempted": [(s.request.id, s.index) for s in plan.preempted],
                "budget": budget.prefill_tokens if plan.prefill_only else budget.tokens,
            }
        )
        for id, *_ in now:
            if id in self.unstarted:
                self.unstarted.discard(id)
                self.started.append(id)
        if self.fault is not None:
            self.fault.strike(self.step, plan, self.arrived)

    def run_step(self) -> float:
        """Computes a step, or saves a block where there is none; how many seconds it took."""
        if not self.engine.busy:
            return self._publish()
        scheduler = self.engine.scheduler
        self.budget = self.controller.budget(scheduler.load())
        self.shape = 0, 0, 0
        self.meter.begin()
        began = time.monotonic()
        try:
            events = self.driver.step(self.budget, self.note_plan)
        except Exception as error:  # a bug of ours: a server goes on
            events = self.driver.recover(error)
        took = time.monotonic() - began
        self.seconds += took
        self.meter.end(took)
        if sum(self.shape):
            self.steps[-1]["seconds"] = took
            self.step += 1
        news = [pipe.StepEvents.of(event) for event in events if not event.refused]
        self.meter.report(news)
        self._tidy([event.id for event in events if event.finish])
        started, self.started = self.started, []
        for event in events:
            if event.error is not None and event.refused:
                self.send(pipe.RequestRefused.of(event.id, event.error))
        residency = scheduler.pool.residency
        stays = residency.take() if residency is not None else []
        gauges = self._read_gauges(sum(self.shape), took, self.shape[0])
        news = self.held.hold(news)
        self.send(pipe.StepReport(news, started, gauges, stays, began + took))
        self.background.step()
        self._send_held()
        if sum(self.shape):  # sending and background work delay streams like the step
            prompts, decodes, drafts = self.shape
            self.controller.record(prompts, decodes, time.monotonic() - began, drafts)
        return took

    def _publish(self) -> float:
        """Saves a block that an answer is held for."""
        began = time.monotonic()
        self.held.save()
        self._send_held()
        return time.monotonic() - began

    def _send_held(self) -> None:
        """Sends the answers whose blocks are saved."""
        news = self.held.take_ready()
        if news:
            now = time.monotonic()
            self.send(pipe.StepReport(news, [], self._read_gauges(0, 0.0), at=now))

    def _tidy(self, ids: list[str]) -> None:
        """Forgets requests without running choices."""
        for id in ids:
            if id not in self.engine.scheduler.by_id:
                self.arrived.pop(id, None)
                self.unstarted.discard(id)
                self.meter.remove(id)

    # --- state and counters ---

    def _read_gauges(self, tokens: int, seconds: float, prompt_tokens: int = 0) -> pipe.Gauges:
        scheduler, external = self.engine.scheduler, self.engine.external
        return pipe.Gauges(
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.pool.blocks,
            len(scheduler.pool.free),
            self.engine.metrics,
            tokens,
            seconds,
            self.seconds,
            tuple(self.engine.drafts.places),
            prompt_tokens,
            external.swapped if external is not None else 0,
        )

    def _list_steps(self) -> dict[str, Any]:
        return {
            "chunk": ("request", "choice", "start", "count"),  # what a chunk's items are
            "target_step_time": self.controller.seconds,
            "steps": list(self.steps),
        }

    def _reset(self) -> dict[str, Any]:
        return {"freed": self.engine.reset_prefix_cache()}

    def _list_blocks(self) -> dict[str, Any]:
        live = [seq for group in self.engine.scheduler.by_id.values() for seq in group]
        tables = [
            {"request": s.request.id, "choice": s.index, "blocks": list(s.table.blocks),
             "tokens": len(s.tokens), "computed": s.computed, "cached": s.cached,
             "state": s.state.value}
            for s in live
        ]  # fmt: skip
        now, B = self.engine.stats(), self.limits.block_size
        filled: dict[int, int] = {}  # slots with tokens, of each block that is held
        for s in live:
            for i, block in enumerate(s.table.blocks):
                filled[block] = max(filled.get(block, 0), min(B, s.computed - i * B))
        return {
            "block_size": B,
            "held_blocks": len(filled),
            "unused_slots": B * len(filled) - sum(filled.values()),  # of held blocks
            "blocks": now.blocks,
            "free_blocks": now.free_blocks,
            "cached_blocks": now.cached_blocks,  # of the free ones
            "cached_runs": self.engine.scheduler.pool.list_cached_runs(),
            "sequences": tables,
        }


def report(error: BaseException) -> None:
    """Prints where a bug of the engine is; the exception's text may hold a prompt and is left
    out.
    """
    with suppress(OSError):  # a full disk is no reason to end
        print(f"flyweight: the engine failed: {type(error).__name__}", file=sys.stderr)
        traceback.print_tb(error.__traceback__)
