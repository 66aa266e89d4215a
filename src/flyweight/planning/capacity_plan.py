"""`plan capacity`: a cost model of steps, the server's limits, and the rate that they serve.

Invariant: limits are those that `flyweight serve` would start with under the same settings.
"""

from dataclasses import dataclass, replace

from flyweight.bench.kernels import RunListener
from flyweight.config import Limits, Settings
from flyweight.errors import ConfigError
from flyweight.model_memory import make_memory_plan
from flyweight.plan.machine import read_machine
from flyweight.plan.memory import Needs
from flyweight.planning.calibration import LocalEngine, calibrate_steps, require_files
from flyweight.planning.capacity import Capacity, LatencyTargets, find_capacity
from flyweight.planning.capacity_check import (
    WARM,
    RateCheck,
    ValidatedRate,
    choose_count,
    measure_around,
)
from flyweight.planning.capacity_report import make_validation_table, report_capacity
from flyweight.planning.local_server import serve_locally
from flyweight.planning.outline import ModelOutline, outline_model
from flyweight.planning.queueing import ArrivalLoad, QueueSimulator, ServerShape
from flyweight.planning.report import Report
from flyweight.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class CapacityQuestion:
    """The requests that come, the targets, and the seconds between an answer and the next."""

    load: ArrivalLoad
    targets: LatencyTargets
    think: float


def predict_capacity(
    settings: Settings, asked: CapacityQuestion, tell: RunListener, *, validate: bool
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
    rates = measure_rates(settings, simulator, asked, found, tell)
    again, _ = calibrate_steps(outline, engine, sizes)
    drift = again.measure_drift(costs)
    table = make_validation_table(rates, found.rate, drift)
    return replace(report, tables=[*report.tables, table])


def measure_rates(
    settings: Settings,
    simulator: QueueSimulator,
    asked: CapacityQuestion,
    found: Capacity,
    tell: RunListener,
) -> list[ValidatedRate]:
    """Starts a server and sends it loads around the capacity; each is simulated as well."""
    load, targets = asked.load, asked.targets
    tell.round("the server starts", 0, WARM)
    with serve_locally(settings) as server:
        check = RateCheck(server, simulator, targets, tell.note, tell.round)
        check.play(replace(load, count=WARM), found.rate)

        def measure(rate: float) -> ValidatedRate:
            count = choose_count(rate, found, load, targets)
            return check.measure(replace(load, count=count), rate)

        return measure_around(found.rate, measure)


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
