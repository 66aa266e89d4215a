"""An engine's side that also reports what its steps would take at the machine's limits.

Invariant: both sides of a technique are judged by the same limits, which the first of them samples
and leaves in their folder.  They are the best of some samples: other processes only lower them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flyweight.bench.facts import measure_size
from flyweight.bench.limits import LimitSampler
from flyweight.bench.ours import find_isa, record_steps
from flyweight.config import Settings
from flyweight.describe import describe
from flyweight.plan.machine import read_machine
from flyweight.plan.roofline import MachineLimits, make_shape, sum_work
from flyweight.prove.engine_side import BLOCK, EngineSide, EngineWorkload
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import LIMIT, Measurement, ProveJob

SAMPLES = 3  # of the limits


class BoundedSide(EngineSide):
    """Its figure `LIMIT` is in seconds."""

    def __init__(
        self, job: ProveJob, workload: EngineWorkload, settings: Mapping[str, Any]
    ) -> None:
        given = Settings.of(model=job.model, **settings)
        self._at_most = find_limits(job, find_isa(given))
        super().__init__(job, workload, settings)
        found, kv_dtype = describe(job.model), self.loaded.memory.sizing.kv_dtype
        self._shape = make_shape(
            found.checkpoint, found.plan, found.spec, given.activations, kv_dtype
        )
        found.checkpoint.close()

    def replay(self, prompts: Sequence[TimedPrompt]) -> Measurement:
        with record_steps(self.loaded.engine) as recorder:
            measured = super().replay(prompts)
        least = sum_work(self._shape, recorder.make_shapes(BLOCK), self._at_most)
        return replace(measured, figures={LIMIT: least.seconds})


def find_limits(job: ProveJob, isa: str) -> MachineLimits:
    """Sampled, or what the other side has sampled."""
    file = Path(job.folder / "limits.json")
    if not file.exists():
        threads = job.threads or read_machine().cores
        sampler = LimitSampler(threads, isa, measure_size(job.model))
        file.write_text(json.dumps(asdict(sampler.sample_best(SAMPLES))))
    return MachineLimits(**json.loads(file.read_text()))
