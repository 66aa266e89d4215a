"""`plan capacity --replicas`: a trace, costs of steps, and the replicas that it needs.

Invariant: limits are those that `flyweight serve` would start with under the same settings, on this
machine or on the device.  Everything but the router's time follows from the trace, the costs and
the settings.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from flyweight.bench.kernels import RunListener
from flyweight.bench.serving.traces import TraceRequest, read_trace
from flyweight.config import Limits, Settings
from flyweight.errors import ConfigError
from flyweight.model_memory import make_memory_plan
from flyweight.plan.machine import Machine, read_machine
from flyweight.plan.memory import Needs
from flyweight.planning.calibration import LocalEngine
from flyweight.planning.capacity import LatencyTargets
from flyweight.planning.devices import Device, find_device, read_devices
from flyweight.planning.outline import ModelOutline, outline_model
from flyweight.planning.queueing import Cost, ServerShape
from flyweight.planning.replica_limits import measure_router
from flyweight.planning.replica_load import TraceLoad
from flyweight.planning.replica_points import ReplicaPoint, ReplicaSettings, simulate_point
from flyweight.planning.replica_report import Recommendation, ReplicaFacts, report_replicas
from flyweight.planning.replica_run import FailurePlan, QueueBound
from flyweight.planning.replica_search import ReplicaNumbers, ReplicaSearch
from flyweight.planning.replicas import TraceScale
from flyweight.planning.report import Report
from flyweight.planning.timed_costs import (
    ROUNDS,
    TimedCosts,
    make_device_costs,
    read_costs,
    save_costs,
    time_costs,
)
from flyweight.routing.policies import make_policy
from flyweight.server.settings import ServerSettings

MOST_TRACE = 1_000_000  # requests that are read


@dataclass(frozen=True, slots=True)
class ReplicaQuestion:
    """`rate` requests a second (None: the trace's), `hourly` dollars a replica; costs of steps are
    timed here, or those of the file `costs` or of the `device`.
    """

    numbers: ReplicaNumbers
    trace: Path
    factor: int
    rate: float | None
    requests: int
    routing: str
    failures: FailurePlan
    targets: LatencyTargets
    hourly: float
    costs: Path | None = None
    device: str | None = None


def predict_replicas(settings: Settings, asked: ReplicaQuestion, tell: RunListener) -> Report:
    """Raises `ConfigError`."""
    scale = TraceScale(asked.factor)
    make_policy(asked.routing)
    trace = read_requests(asked.trace)
    outline = outline_model(settings, tell)
    engine = LocalEngine.of(settings, outline)
    device = None if asked.device is None else find_device(asked.device, read_devices())
    limits = plan_limits(settings, outline, engine, device)
    load = TraceLoad.of(trace, scale, limits.max_model_len, asked.rate)
    timed = find_costs(outline, engine, limits, (asked.costs, device), tell)
    defaults = ServerSettings()
    ready = ReplicaSettings(
        ServerShape(limits, defaults.target_step_time, defaults.max_prefill_delay),
        lambda: make_policy(asked.routing),
        QueueBound(defaults.max_queued_requests, defaults.max_queued_tokens),
        asked.targets, asked.requests, asked.failures,
    )  # fmt: skip
    found, points = search_replicas(asked.numbers, load, timed, ready, tell)
    lengths = [scale.count_tokens(one)[0] for one in load.requests]
    router = measure_router(asked.routing, limits.blocks, lengths, limits.block_size)
    where = f"on {device.title}" if device else f"{engine.ops.threads} threads"
    facts = ReplicaFacts(
        asked.trace.name, load, limits, asked.targets, asked.hourly, asked.failures, router,
        asked.routing, f"{outline.name}, from {outline.basis}; {where}", timed,
    )  # fmt: skip
    return report_replicas(points, found, facts)


def read_requests(path: Path) -> list[TraceRequest]:
    """Raises `ConfigError` for a file that is no trace."""
    try:
        found = [*islice(read_trace(path.expanduser()), MOST_TRACE + 1)]
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", "trace", value=str(path)) from None
    if len(found) > MOST_TRACE:
        raise ConfigError(f"has more than {MOST_TRACE:,} requests", "trace", value=str(path))
    return found


def plan_limits(
    settings: Settings, outline: ModelOutline, engine: LocalEngine, device: Device | None
) -> Limits:
    """What the scheduler may not exceed."""
    needs = Needs.of(outline.spec, outline.kinds, engine.ops)
    here = read_machine()
    if device is not None:
        here = Machine(here.cores, device.memory, device.memory)
    memory = make_memory_plan(settings, needs, here, served=False)
    return Limits(
        max_model_len=memory.sizing.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        blocks=memory.blocks,
    )


def find_costs(
    outline: ModelOutline,
    engine: LocalEngine,
    limits: Limits,
    given: tuple[Path | None, Device | None],
    tell: RunListener,
) -> TimedCosts:
    """Of the device or the file, or timed here; these are saved where there is no such file yet."""
    file, device = given
    if device is not None:
        return make_device_costs(device, engine.shape)
    file = file and file.expanduser()
    if file is not None and file.exists():
        return read_costs(file, outline.name)
    sizes = limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len
    costs, timed = time_costs(
        outline, engine, sizes, lambda done: tell.round("steps are timed", done, ROUNDS)
    )
    if file is not None:
        save_costs(file, outline.name, costs, timed)
    return timed


def search_replicas(
    asked: ReplicaNumbers,
    load: TraceLoad,
    timed: TimedCosts,
    ready: ReplicaSettings,
    tell: RunListener,
) -> tuple[Recommendation, list[ReplicaPoint]]:
    """The requested points, and those that are recommended: with the median costs, and
    with those of the quickest and of the slowest round.
    """
    done = 0

    def open_search(cost: Cost) -> ReplicaSearch:
        def simulate(replicas: int) -> ReplicaPoint | None:
            nonlocal done
            tell.round(f"{replicas} replicas", done, max(count_expected(asked), done + 1))
            done += 1
            return simulate_point(replicas, load, cost, ready)

        return ReplicaSearch(simulate)

    middle = open_search(timed.compute)
    for number in asked.numbers:
        middle.see(number)
    least = middle.find_least(asked)
    ends = (
        least if by == 1.0 else open_search(timed.scale(by)).find_least(asked)
        for by in (timed.low, timed.high)
    )
    found = Recommendation(least, *ends)
    shown = {*asked.numbers, *([least] if least else [])}
    points = [point for number in sorted(shown) if (point := middle.see(number)) is not None]
    return found, points


def count_expected(asked: ReplicaNumbers) -> int:
    """Simulations, about: a bisection takes some for each of the three costs."""
    return len(asked.numbers) + (3 * 8 if asked.between else 2 * 3)
