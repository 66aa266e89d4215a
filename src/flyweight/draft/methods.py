"""Makes the drafter of a method, which the method's row in `speculation_methods.METHODS` names.

Invariant: a drafter's module has `make_drafter(config, parts)`, and is imported when it is wanted.
One that reads files also has `open_source(config, base)`, which is called before anything is
loaded.  Knows no drafter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from flyweight.config import Limits
from flyweight.draft.drafter import Drafter
from flyweight.draft.spelling import Speller
from flyweight.draft.vocabulary import IdMap
from flyweight.models.decoder import Decoder
from flyweight.ops.operands import KVLayer
from flyweight.spec import ModelSpec, StoredSlots
from flyweight.speculation import SpeculationConfig
from flyweight.speculation_methods import METHODS
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.hub.names import name_checkpoint


@dataclass(frozen=True, slots=True)
class DraftBase:
    """The model that drafts are for, before it is loaded; a method that reads the model's own files
    needs its `checkpoint`.
    """

    spec: ModelSpec
    fingerprint: str
    block_size: int = 16
    checkpoint: Checkpoint | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return name_checkpoint(self.checkpoint.path) if self.checkpoint else ""


class DraftSource(Protocol):
    """What a method reads, opened and checked for its base.  `name` is what people call it."""

    @property
    def name(self) -> str: ...
    @property
    def kinds(self) -> Mapping[str, Sequence[tuple[tuple[int, ...], str]]]:
        """Shape and kind of each matrix, for the memory plan."""
        ...

    @property
    def stored(self) -> StoredSlots | None:
        """What is stored for the target's positions; None for nothing."""
        ...


@dataclass(frozen=True, slots=True)
class SecondModel:
    """A draft model, loaded, with K/V in the target's blocks; `ids` maps the target's vocabulary to
    its own where they differ, `spellers` read the target's text and write it where too few tokens
    are the same.
    """

    model: Decoder
    layers: Sequence[KVLayer]
    ids: IdMap | None
    spellers: tuple[Speller, Speller] | None = None


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """What a drafter may be made of: the engine's limits, tokens in the target's vocabulary, the
    target itself, what the method has opened, and a `second` model where the method has one.
    """

    limits: Limits
    vocab: int
    model: Decoder | None = None
    source: Any = None
    second: SecondModel | None = None


def open_source(config: SpeculationConfig, base: DraftBase) -> DraftSource | None:
    """None for a method that reads no files.  Raises `ConfigError` or `CheckpointError`."""
    module = import_module(METHODS[config.method].module)
    opened = getattr(module, "open_source", None)
    return None if opened is None else cast(DraftSource, opened(config, base))


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> Drafter:
    """Raises `ConfigError` or `CheckpointError`."""
    module = import_module(METHODS[config.method].module)
    return cast(Drafter, module.make_drafter(config, parts))
