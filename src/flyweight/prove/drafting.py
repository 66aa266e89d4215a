"""Techniques that draft: the sides differ in `speculative_config` alone.

Knows no drafter: a technique names its config and its prompts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyweight.errors import CheckpointError, ConfigError
from flyweight.prove.engine_side import EngineSide, EngineWorkload
from flyweight.prove.technique import ProveJob, Technique


@dataclass(frozen=True, slots=True)
class DraftingSides:
    """Opens a side of a technique: `on` drafts by `config`, `off` does not draft.  Raises
    `ConfigError` where the files of the drafter are not for the model.
    """

    workload: EngineWorkload
    config: Mapping[str, Any]

    def choose_settings(self, side: str) -> dict[str, Any]:
        return {"speculative_config": dict(self.config)} if side == "on" else {}

    def __call__(self, job: ProveJob, side: str) -> EngineSide:
        try:
            return EngineSide(job, self.workload, self.choose_settings(side))
        except CheckpointError as error:
            if side == "off" or "model" not in self.config:
                raise
            raise ConfigError(f"{self.config['model']} is for another model: {error}") from None


@dataclass(frozen=True, slots=True)
class DraftingTask:
    """What the sides do, and how the tables name it."""

    title: str
    workload: EngineWorkload

    def make_technique(
        self, name: str, what: str, on: str, config: Mapping[str, Any], seed: str = ""
    ) -> Technique:
        """A technique that is compared by time between tokens, without drafts and with them."""
        return Technique(
            name=name,
            what=what,
            workload=self.title,
            off="no drafts",
            on=on,
            metric="itl",
            open=DraftingSides(self.workload, config),
            seed=seed,
            least_share=1.0,
        )
