"""The model that a command of `plan` is about, and how its outline is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.config import Settings
from flyweight.errors import CheckpointError, ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.planning.outline import ModelOutline

NAMED = "A file, a folder, org/name, or the name of a well-known model; only headers are read."
WITHOUT_HUB = "`flyweight plan memory --params 8B --bits 4` needs no file and no network"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One model, as an argument or an option."""

    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=NAMED)] = None
    named: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The same as MODEL.")
    ] = None

    def get_name(self) -> str | None:
        """Raises `ConfigError`."""
        if self.model is not None and self.named is not None:
            raise ConfigError("MODEL and model exclude each other; give one")
        return self.named if self.model is None else self.model

    def list_names(self) -> Sequence[str | None]:
        """Names between commas."""
        name = self.get_name()
        return [None] if name is None else [part.strip() for part in name.split(",")]


def read_outline(settings: Settings) -> ModelOutline:
    """Shows what is downloaded.  Raises `FlyweightError`."""
    from flyweight.cli.show import show_loading
    from flyweight.planning.outline import outline_model

    try:
        with show_loading(planned=False) as listener:
            return outline_model(settings, listener)
    except CheckpointError as error:
        from flyweight.weights.hub.faults import Unreachable

        if isinstance(error, Unreachable):
            error.hint = error.hint or WITHOUT_HUB
        raise
