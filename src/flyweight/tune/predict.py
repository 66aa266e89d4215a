"""What cannot meet the targets, found before anything is loaded: memory, quality, and the least
time that a step can take.

Invariant: only what is sure is left out.  The least time is the roofline's, which no engine beats.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from flyweight.backends import choose_backend
from flyweight.bench.limits import LimitSampler
from flyweight.bench.ours import find_isa
from flyweight.config import Settings
from flyweight.errors import FlyweightError
from flyweight.model_memory import make_memory_plan
from flyweight.plan.machine import Machine
from flyweight.plan.memory import Needs
from flyweight.plan.roofline import MachineLimits, StepShape, sum_work
from flyweight.planning.units import write_seconds
from flyweight.tune.files import CandidateFile, read_candidate
from flyweight.tune.load import TuningLoad
from flyweight.tune.targets import Targets
from flyweight.tune.trial import SettingsTrial

PROBE_BYTES = 256 << 20  # memory that is read to sample its speed


@dataclass(frozen=True, slots=True)
class Floor:
    """The least seconds of one user's token (`itl`) and of a prompt (`ttft`), and by these names
    what they are spent on.
    """

    itl: float
    ttft: float
    binding: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A target out of reach: the least time in targets, above 1, and the same as text."""

    ratio: float
    reason: str


class Predictor:
    """Knows the machine and the load, and the model's `files` by name; those that are not among
    them are read when they are needed.
    """

    def __init__(
        self, model: str, load: TuningLoad, targets: Targets, here: Machine, fixed: dict[str, Any]
    ) -> None:
        self.model, self.load, self.targets, self.here = model, load, targets, here
        self.fixed = fixed
        self.files: dict[str, CandidateFile] = {}

    def find_obstacle(self, candidate: SettingsTrial) -> str:
        """Why memory or quality rules a candidate out, in one line; empty where they do not."""
        try:
            settings = self.make_settings(candidate)
            file = self.find_file(settings)
            if file.obstacle:
                return file.obstacle
            file.check_loss(settings)
            needs = Needs.of(file.spec, file.kinds, choose_backend(settings, self.here.cores))
            plan = make_memory_plan(settings, needs, self.here)
        except FlyweightError as error:
            return self._name_option(str(error))
        if plan.sizing.max_model_len < self.load.longest:
            return f"memory is enough for {plan.sizing.max_model_len} tokens of context"
        return ""

    def _name_option(self, reason: str) -> str:
        """A reason that names the setting, with the option that gave it."""
        return reason.replace("memory_limit", "--memory") if self.targets.memory else reason

    def find_shortfall(self, candidate: SettingsTrial) -> Shortfall | None:
        """The target of latency that a candidate misses most by its least time, if any."""
        wanted = {"itl": self.targets.itl, "ttft": self.targets.ttft}
        if all(want is None for want in wanted.values()):
            return None
        floor = self.compute_floor(candidate)
        least = {"itl": floor.itl, "ttft": floor.ttft}
        ratios = {name: least[name] / want for name, want in wanted.items() if want is not None}
        worst = max(ratios, key=lambda name: ratios[name])
        if ratios[worst] <= 1:
            return None
        return Shortfall(
            ratios[worst],
            f"{worst} of at least {write_seconds(least[worst])} by the machine's limits "
            f"({floor.binding[worst]} binds)",
        )

    @cached_property
    def limits(self) -> MachineLimits:
        """Sampled once, where a target needs them."""
        return sample_limits(Settings.of(model=self.model, **self.fixed), self.here)

    def make_settings(self, candidate: SettingsTrial) -> Settings:
        chosen = {"model": self.model} | self.fixed | self.targets.bounds
        return Settings.of(**(chosen | dict(candidate.changes)))

    def list_bounds(self, candidate: SettingsTrial) -> dict[str, Any]:
        """The targets that a server of a candidate can keep: one of a model in full precision that
        has no passport would refuse any `max_kld`.
        """
        settings = self.make_settings(candidate)
        exempt = self.find_file(settings).is_exempt(settings)
        bounds = self.targets.bounds
        return {name: bounds[name] for name in bounds if name != "max_kld" or not exempt}

    def compute_floor(self, candidate: SettingsTrial) -> Floor:
        """Of one user alone: others only add to it."""
        settings = self.make_settings(candidate)
        stored = "bf16" if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype
        shape = self.find_file(settings).make_shape(settings.activations, stored)
        context, prompt = self.load.prompt, max(1, self.load.prompt - self.load.shared)
        token = sum_work(shape, [StepShape(((1, context),), 1, context)], self.limits)
        whole = sum_work(shape, [StepShape(((prompt, context),), 1, context)], self.limits)
        drafted = 1 + settings.draft_tokens  # tokens that a step may accept
        steps = {"itl": token, "ttft": whole}
        reading = {
            name: one.nbytes / self.limits.read > 0.5 * one.seconds for name, one in steps.items()
        }
        binding = {name: "reading memory" if so else "arithmetic" for name, so in reading.items()}
        return Floor(token.seconds / drafted, whole.seconds, binding)

    def find_file(self, settings: Settings) -> CandidateFile:
        name = str(settings.model)
        if name not in self.files:
            self.files[name] = read_candidate(settings)
        return self.files[name]


def sample_limits(settings: Settings, here: Machine) -> MachineLimits:
    """The machine's limits now; of two units that multiply the faster counts."""
    sampler = LimitSampler(settings.threads or here.cores, find_isa(settings), PROBE_BYTES)
    seen = sampler.sample()
    if seen.tile is None:
        return seen.vector
    return replace(
        seen.vector,
        int8=max(seen.vector.int8, seen.tile.int8),
        bf16=max(seen.vector.bf16, seen.tile.bf16),
    )
