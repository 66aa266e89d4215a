"""`plan capacity`: a cost model of steps, the server's limits, and the rate that they serve.

Invariant: limits are those that `flyweight serve` would start with under the same settings.
"""

from dataclasses import dataclass, replace

from flyweight.build import build, make_memory_plan
from flyweight.config import Limits, Settings
from flyweight.describe import LoadListener
from flyweight.errors import ConfigError
from flyweight.plan.machine import read_machine
from flyweight.plan.memory import Needs
from flyweight.planning.calibration import LocalEngine, calibrate_steps, require_files
from flyweight.planning.capacity import LatencyTargets, RatePoint, find_capacity
from flyweight.planning.capacityreport import make_validation_table, report_capacity
from flyweight.planning.liveload import LiveServer, ValidatedRate
from flyweight.planning.outline import ModelOutline, outline_model
from flyweight.planning.queueing import ArrivalLoad, QueueSimulator, ServerShape
from flyweight.planning.report import Report
from flyweight.server.settings import ServerSettings

LADDER = (0.5, 0.75, 1.0, 1.25, 1.5)  # of the capacity
SECONDS, LEAST, MOST = 15, 20, 500  # of a measured load, and its requests
WARM = 4  # requests before


@dataclass(frozen=True, slots=True)
class CapacityQuestion:
    """The requests that come, the targets, and the seconds between an answer and the next."""

    load: ArrivalLoad
    targets: LatencyTargets
    think: float


def predict_capacity(
    settings: Settings, asked: CapacityQuestion, tell: LoadListener, *, validate: bool
) -> Report:
    """On this machine.  Raises `ConfigError` for targets that nothing can meet."""
    outline = outline_model(settings, tell)
    if validate:
        require_files(outline, "validate")
    engine = LocalEngine.of(settings, outline)
    limits = plan_limits(settings, outline, engine)
    wanted = asked.load.prompt + asked.load.output
    if wanted > limits.max_model_len:
        raise ConfigError(
            f"and output_tokens = {asked.load.output} are more than the context of "
            f"{limits.max_model_len}",
            "prompt_tokens",
            value=asked.load.prompt,
            hint=f"nearest valid: {max(1, limits.max_model_len - asked.load.output)}",
        )
    sizes = limits.max_num_seqs, limits.max_num_batched_tokens, wanted
    costs, note = calibrate_steps(outline, engine, sizes)
    defaults = ServerSettings()
    server = ServerShape(limits, defaults.target_step_time, defaults.max_prefill_delay)
    simulator = QueueSimulator(server, costs.compute_seconds)
    found = find_capacity(simulator, asked.load, asked.targets)
    notes = (
        f"{outline.name}, from {outline.basis}; {engine.ops.threads} threads, up to "
        f"{limits.max_num_seqs} sequences and {limits.max_num_batched_tokens} tokens in a step, "
        f"{limits.blocks} K/V blocks of {limits.block_size} tokens.",
        note,
        "Simulated: the scheduler and step budgets of `flyweight serve`, Poisson arrivals, prompts "
        "that share nothing; HTTP and tokenising are not counted.",
    )
    report = report_capacity(found, asked.load, asked.targets, asked.think, notes)
    if not validate:
        return report
    rates = measure_rates(settings, simulator, asked, found.rate)
    return replace(report, tables=[*report.tables, make_validation_table(rates)])


def measure_rates(
    settings: Settings, simulator: QueueSimulator, asked: CapacityQuestion, capacity: float
) -> list[ValidatedRate]:
    """Loads the model and serves rates around the capacity; each is simulated with the same
    arrivals.
    """
    loaded, found = build(settings), []
    loaded.moving.settle()
    live = LiveServer(loaded, simulator.server)
    live.run(replace(asked.load, count=WARM), 1e9)
    for factor in LADDER:
        rate = factor * capacity
        load = replace(asked.load, count=min(max(LEAST, round(rate * SECONDS)), MOST))
        pair = simulator.run(load, rate), live.run(load, rate)
        found.append(ValidatedRate(*(RatePoint.of(rate, load, one, asked.targets) for one in pair)))
    return found


def plan_limits(settings: Settings, outline: ModelOutline, engine: LocalEngine) -> Limits:
    """What the scheduler may not exceed.  Prompts share nothing, so no prefix is looked up."""
    needs = Needs.of(outline.spec, outline.kinds, engine.ops)
    memory = make_memory_plan(settings, needs, read_machine(), served=False)
    return Limits(
        max_model_len=memory.sizing.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        blocks=memory.blocks,
        prefix_caching=False,
    )
