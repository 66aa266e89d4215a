"""The token budget of a step, learned on simulated machines: steps take about as long as wanted."""

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from flyweight.config import Limits
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.step import Load, Produced
from flyweight.kv.blocks import BlockPool
from flyweight.server.worker.budget import LEAST, STEEPEST, BudgetController
from flyweight.types import Request, SamplingParams

TARGET, MOST = 0.2, 4096
SETTLED = 25  # steps after which it should know the machine


@dataclass
class Machine:
    """A step streams the weights once (`weights` seconds), computes each token (`token`), and reads
    the K/V of each sequence that decodes (`depth`); weights are opened for prompts (`opening`).
    """

    weights: float
    token: float
    depth: float = 0.0
    noise: float = 0.0
    opening: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(3)

    def step(self, prompt: int, decodes: int) -> float:
        computed = max(self.weights, self.token * (prompt + decodes)) + self.depth * decodes
        computed += self.opening if prompt else 0.0
        return computed * (1 + self.noise * self.rng.uniform(-1, 1))

    def fits(self, decodes: int) -> float:
        """Prompt tokens a step of `TARGET` has room for."""
        return (TARGET - self.depth * decodes) / self.token - decodes


MACHINES = {
    "small model": Machine(0.001, 0.00005),
    "0.6B": Machine(0.015, 0.0013, 0.0004),
    "1B": Machine(0.03, 0.003, 0.0005),
    "7B": Machine(0.15, 0.01, 0.0005),
}


def tokens(controller: BudgetController, running: int, *, decoding: bool = True) -> int:
    """The most tokens of the next step."""
    return controller.budget(Load(running, decoding)).tokens


@pytest.mark.parametrize("name", MACHINES)
def test_the_time_of_a_prompt_is_estimated(name: str) -> None:
    controller, machine = BudgetController(TARGET, MOST), MACHINES[name]
    assert controller.estimate_prefill(100) is None
    for _ in range(SETTLED):
        count = tokens(controller, 0, decoding=False)
        controller.record(count, 0, machine.step(count, 0))
    each = tokens(controller, 0, decoding=False)
    whole, rest = divmod(3000, each)
    real = whole * machine.step(each, 0) + machine.step(rest, 0)
    assert controller.estimate_prefill(3000) == pytest.approx(real, rel=0.1)
    assert controller.estimate_prefill(each) == pytest.approx(machine.step(each, 0), rel=0.1)


def prefill_only(controller: BudgetController, startable: int, started: int) -> bool:
    """Whether the next step may be prefill-only."""
    return controller.budget(Load(1, True, startable, started)).prefill_tokens > 0


def drive(
    controller: BudgetController, machine: Machine, decodes: int, steps: int
) -> list[tuple[int, float]]:
    """Steps full of prompt tokens next to `decodes` sequences: (prompt tokens, seconds)."""
    found = []
    for _ in range(steps):
        prompt = tokens(controller, decodes, decoding=decodes > 0) - decodes
        seconds = machine.step(prompt, decodes)
        controller.record(prompt, decodes, seconds)
        found.append((prompt, seconds))
    return found


def near(machine: Machine, decodes: int, prompt: int, seconds: float) -> bool:
    """Whether a step took about as long as wanted, or no more or fewer tokens could be had."""
    if prompt + decodes >= MOST:
        return seconds < 1.3 * TARGET
    if prompt <= LEAST:
        return machine.fits(decodes) < 2 * LEAST
    return 0.6 * TARGET < seconds < 1.3 * TARGET


@pytest.mark.parametrize("decodes", [0, 1, 16, 64])
@pytest.mark.parametrize("name", MACHINES)
def test_steps_come_to_take_what_is_wanted(name: str, decodes: int) -> None:
    machine = MACHINES[name]
    controller = BudgetController(TARGET, MOST)
    for _ in range(8 if decodes else 0):  # they decoded before the prompt came
        controller.record(0, decodes, machine.step(0, decodes))
    found = drive(controller, machine, decodes, 60)
    assert all(near(machine, decodes, *one) for one in found[SETTLED:]), found[SETTLED:][:9]
    if machine.fits(decodes) > LEAST:
        assert found[0][1] < 2 * TARGET  # while it knows nothing
    for (before, _), (after, _) in pairwise(found):  # not by a leap
        assert after <= max(LEAST, STEEPEST * before)


def test_what_a_step_costs_at_all_is_learned_within_a_few() -> None:
    """Larger steps are cheaper by the token, and that is foreseen from the first ones."""
    machine = Machine(0.013, 0.00085, opening=0.035, noise=0.05)
    found = drive(BudgetController(TARGET, MOST), machine, 0, 40)
    assert all(0.8 * TARGET < seconds < 1.15 * TARGET for _, seconds in found[4:]), found[:9]


@pytest.mark.parametrize("factor", [8.0, 3.0, 1 / 3, 1 / 8])
def test_a_machine_that_changes_is_learned_again_from_both_sides(factor: float) -> None:
    controller = BudgetController(TARGET, MOST)
    drive(controller, Machine(0.002, 0.0008), 8, 40)
    other = Machine(0.002, 0.0008 * factor)
    for _ in range(4):
        controller.record(0, 8, other.step(0, 8))
    found = drive(controller, other, 8, 60)
    assert all(near(other, 8, *one) for one in found[SETTLED:]), found[SETTLED:][:9]


@pytest.mark.parametrize("seed", range(5))
def test_mixed_traffic_on_a_noisy_machine_stays_near(seed: int) -> None:
    """Prompts come and go, and so do sequences; a step is rarely much too long."""
    rng = random.Random(seed)
    machine = Machine(0.015, 0.0013, 0.0004, noise=0.2)
    controller = BudgetController(TARGET, MOST)
    times = []
    waiting, running = 0, 4
    for _ in range(600):
        if rng.random() < 0.1:
            waiting += rng.choice((30, 300, 2000))
        running = min(64, max(1, running + rng.choice((-1, 0, 1))))
        budget = tokens(controller, running)
        prompt = min(waiting, budget - running)
        waiting -= prompt
        seconds = machine.step(prompt, running)
        if prompt or running:
            controller.record(prompt, running, seconds)
        times.append(seconds)
    late = [t for t in times[SETTLED:] if t > 1.6 * TARGET]
    assert len(late) < 0.02 * len(times), sorted(late)
    full = [t for t in times[SETTLED:] if t > 0.6 * TARGET]
    assert len(full) > 0.2 * len(times)


@pytest.mark.parametrize("seconds", [1e-4, 0.01, 5.0, 1e6])
@pytest.mark.parametrize("running", [0, 1, 64, 4000])
def test_every_sequence_has_a_token_whatever_was_learned(seconds: float, running: int) -> None:
    controller = BudgetController(TARGET, MOST)
    for prompt in (0, 1, 16, 500, 0):
        for _ in range(20):
            controller.record(prompt, 1, seconds)
    assert running < tokens(controller, running) <= MOST
    assert tokens(controller, running) >= min(MOST, running + LEAST)


def test_the_memory_plan_is_never_exceeded() -> None:
    controller = BudgetController(TARGET, 100)
    for _ in range(50):
        controller.record(64, 1, 1e-6)
    assert tokens(controller, 10) == 100 == tokens(controller, 100)
    assert tokens(BudgetController(TARGET, 20), 0) <= 20


def test_the_budget_follows_a_prompt_that_costs_more_with_depth() -> None:
    controller = BudgetController(TARGET, MOST)
    at, times = 0, []
    while at < 30_000:
        prompt = tokens(controller, 0, decoding=False)
        seconds = prompt * 0.0005 * (1 + at / 6000)
        controller.record(prompt, 0, seconds)
        at += prompt
        times.append(seconds)
    assert all(0.5 * TARGET < t < 1.4 * TARGET for t in times[SETTLED:]), times


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_decodes_never_wait_for_a_long_prefill_by_more_than_a_step(machine: Machine) -> None:
    """Long prompts keep coming, and every decode has a token in every step, which takes about as
    long as wanted.
    """
    limits = Limits(
        max_model_len=20_000, max_num_seqs=16, max_num_batched_tokens=MOST, block_size=32,
        blocks=5_000,
    )  # fmt: skip
    scheduler = Scheduler(limits, BlockPool(limits.blocks, limits.block_size))
    controller = BudgetController(TARGET, MOST)

    def add(id: str, prompt: int, answer: int) -> None:
        tokens = tuple(hash((id, i)) & 0xFFFF for i in range(prompt))
        scheduler.add(Request(id, tokens, SamplingParams(), max_tokens=answer))

    for i in range(4):
        add(f"talk{i}", 20, 10_000)
    times = []
    for step in range(300):
        if step % 40 == 20:
            add(f"document{step}", 6_000, 5)
        decoding = {s.request.id for s in scheduler.running if s.decoding}
        plan = scheduler.schedule(controller.budget(scheduler.load()))
        planned = {c.seq.request.id: c for c in plan.chunks}
        assert decoding <= planned.keys(), "somebody who decodes has no token in this step"
        prompt = sum(c.count for c in plan.chunks if not c.seq.decoding)
        decodes = len(decoding)
        seconds = machine.step(prompt, len(plan.chunks))
        scheduler.commit(plan, [Produced([1] * min(1, c.rows)) for c in plan.chunks])
        controller.record(prompt, decodes, seconds)
        times.append((prompt, seconds))
    assert any(prompt >= LEAST for prompt, _ in times[SETTLED:]), "no prompt was computed"
    roomy = machine.fits(16) > 2 * LEAST
    slow = [t for _, t in times[SETTLED:] if t > 1.5 * TARGET]
    assert not roomy or len(slow) <= 3, slow


def test_prefill_only_steps_have_a_budget_of_their_own() -> None:
    """Without decodes there is room for more, and neither kind disturbs what is known of the
    other.
    """
    controller = BudgetController(TARGET, MOST)
    machine = Machine(0.015, 0.001, 0.004)
    controller.record(0, 24, machine.step(0, 24))
    for step in range(60):
        for prompt, decodes in ((tokens(controller, 24) - 24, 24), (controller.prefill_tokens, 0)):
            seconds = machine.step(prompt, decodes)
            controller.record(prompt, decodes, seconds)
            assert step < SETTLED or 0.75 * TARGET < seconds < 1.15 * TARGET
    assert controller.prefill_tokens > 1.5 * (tokens(controller, 24) - 24)


@pytest.mark.parametrize("cold", [0.0, 3.0])
def test_what_is_learned_of_one_kind_is_where_the_other_begins(cold: float) -> None:
    """Of all its steps, not the first."""
    controller, machine = (
        BudgetController(TARGET, MOST, 5.0),
        Machine(0.015, 0.001, 0.004, opening=0.035),
    )
    if cold:
        controller.record(32, 0, cold)
    drive(controller, machine, 0, 60)
    first = tokens(controller, 8) - 8
    assert near(machine, 8, first, machine.step(first, 8))
    assert not prefill_only(controller, 0, 10**9), "no step has shown that decodes leave too little"


def test_prompts_that_would_lose_more_than_the_delay_to_decodes_get_prefill_only_steps() -> None:
    controller = BudgetController(TARGET, MOST, 4.0)
    assert not prefill_only(controller, 10**9, 10**9), "nothing is known yet"
    machine = Machine(0.001, 0.001, 0.005)
    drive(controller, machine, 0, 40)
    assert not prefill_only(controller, 10**9, 10**9), "nobody decodes"
    controller.record(0, 16, machine.step(0, 16))
    drive(controller, machine, 16, 40)
    each = TARGET / (tokens(controller, 16) - 16)  # what decodes leave of a step
    lost = each - TARGET / controller.prefill_tokens
    assert 0.5 * machine.token < lost < 0.6 * each
    assert [prefill_only(controller, int(wait / lost), 10**9) for wait in (3.0, 5.0)] == [
        False,
        True,
    ]
    assert not prefill_only(BudgetController(TARGET, MOST), 10**9, 10**9)


@pytest.mark.parametrize("decoded", [False, True])
def test_few_decodes_skip_no_step_however_long_prompts_wait(decoded: bool) -> None:
    """Nobody's tokens come late for what gains next to nothing; nor need a step of decodes by
    themselves have been seen.
    """
    for decodes, skipped in ((4, False), (60, True)):
        controller, machine = (
            BudgetController(TARGET, MOST, 3.0),
            Machine(0.015, 0.0017, 0.002, opening=0.03),
        )
        drive(controller, machine, 0, 10)
        if decoded:
            controller.record(0, decodes, machine.step(0, decodes))
        drive(controller, machine, decodes, 40)
        assert prefill_only(controller, 5_000, 0) is skipped, decodes


def test_what_decodes_cost_is_known_though_no_step_was_theirs_alone() -> None:
    """A burst of prompts: ever more sequences decode next to the rest.  What the first step without
    prompts then reports of them is not counted once more.
    """
    machine = Machine(0.016, 0.0023, 0.004, opening=0.015, noise=0.03)
    controller = BudgetController(TARGET, MOST, 3.0)
    drive(controller, machine, 0, 6)
    for decodes in range(1, 17):
        burst = drive(controller, machine, decodes, 5)
    for _ in range(20):
        controller.record(0, 16, machine.step(0, 16))
    assert not prefill_only(controller, 0, 600), "nobody is starved"
    for prompt, seconds in [*burst[-3:], *drive(controller, machine, 16, 20)]:
        assert 0.85 * TARGET < seconds < 1.15 * TARGET, (prompt, seconds)


def test_a_first_step_that_finds_everything_cold_is_soon_forgotten() -> None:
    machine = Machine(0.015, 0.0022, 0.001)
    controller = BudgetController(TARGET, MOST)
    controller.record(32, 0, 3 * machine.step(32, 0))
    found = drive(controller, machine, 0, 20)
    assert all(0.8 * TARGET < seconds < 1.15 * TARGET for _, seconds in found[7:]), found


def test_where_decodes_leave_hardly_anything_what_has_begun_counts_too() -> None:
    """A newcomer next to them would otherwise come in sixteen tokens a step."""
    controller = BudgetController(TARGET, MOST, 4.0)
    machine = Machine(0.001, 0.001, 0.0038)
    drive(controller, machine, 0, 40)
    for decodes, counts in ((16, False), (50, True)):
        for _ in range(20):
            controller.record(0, decodes, machine.step(0, decodes))
        drive(controller, machine, decodes, 40)
        assert prefill_only(controller, 0, 2_000) is counts
        assert not prefill_only(controller, 0, 0)


@pytest.mark.parametrize("decodes", [4, 24, 60])
@pytest.mark.parametrize("token", [0.001, 0.004])
def test_with_prefill_only_steps_every_second_step_has_its_decodes_and_none_is_too_long(
    token: float, decodes: int
) -> None:
    """Scheduler and controller together, as a worker joins them."""
    limits = Limits(
        max_model_len=20_000, max_num_seqs=200, max_num_batched_tokens=MOST, block_size=32,
        blocks=5_000,
    )  # fmt: skip
    scheduler = Scheduler(limits, BlockPool(limits.blocks, limits.block_size))
    controller = BudgetController(TARGET, MOST, 1.0)
    machine = Machine(0.01, token, 0.001)
    for i in range(decodes):
        scheduler.add(Request(f"talk{i}", (i, 1, 2), SamplingParams(), max_tokens=10_000))
    count, long, before = 0, 0, False
    for step in range(160):
        if step == 20:
            for i in range(40):
                prompt = tuple(hash((i, at)) & 0xFFFF for at in range(1_000))
                scheduler.add(Request(f"new{i}", prompt, SamplingParams(), max_tokens=2))
        decoding = {s.request.id for s in scheduler.running if s.decoding}
        plan = scheduler.schedule(controller.budget(scheduler.load()))
        planned = {c.seq.request.id for c in plan.chunks}
        assert decoding <= planned or (plan.prefill_only and not before and not decoding & planned)
        before = plan.prefill_only
        count += plan.prefill_only
        prompt_tokens = sum(c.count for c in plan.chunks if c.seq.request.id not in decoding)
        seconds = machine.step(prompt_tokens, 0 if plan.prefill_only else len(decoding))
        scheduler.commit(plan, [Produced([1] * min(1, c.rows)) for c in plan.chunks])
        controller.record(prompt_tokens, 0 if plan.prefill_only else len(decoding), seconds)
        long += step > 45 and plan.prefill_only and seconds > 1.15 * TARGET
    assert count >= 20 and not long


@pytest.mark.parametrize("drafts", [1, 8, 24])
@pytest.mark.parametrize("name", MACHINES)
def test_drafts_leave_prompts_their_share(name: str, drafts: int) -> None:
    """They make steps longer; what prompts get is that of steps without."""
    machine, found = MACHINES[name], []
    for each in (0, drafts):
        controller = BudgetController(TARGET, MOST)
        for _ in range(8):
            controller.record(0, 4, machine.step(0, 4))
        for step in range(60):
            prompt = tokens(controller, 4) - 4 if step % 3 else 0
            seconds = machine.step(prompt + 4 * each, 4)
            controller.record(prompt, 4, seconds, 4 * each)
        found.append(tokens(controller, 4) - 4)
    assert found[1] == pytest.approx(found[0], rel=0.15)


def test_decodes_are_known_though_every_step_has_drafts() -> None:
    """As the quickest of these steps."""
    controller = BudgetController(TARGET, MOST)
    for seconds in (0.09, 0.05, 0.12, 0.05, 0.05) * 3:
        controller.record(0, 4, seconds, 8)
    assert controller._decode == pytest.approx(0.05, rel=0.05)
