"""Opens engines for the drafters to be compared, and measures them one engine after the other.

Invariant: the drafters of an engine are a group of `group_drafters`; off is the same engine without
a drafter, and off again is measured on the first engine only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flyweight.build import build
from flyweight.config import Settings
from flyweight.describe import LoadListener
from flyweight.draft.methods import DrafterParts, make_drafter
from flyweight.prove.spec_drafters import Drafters, group_drafters
from flyweight.prove.spec_runs import OFF, PLAIN, SpecBench, SpecRun, SpecSide
from flyweight.prove.spec_texts import SpecWorkload, TextLimits

SEQS = 8  # computed at once


@dataclass(frozen=True, slots=True)
class SpecEngine:
    """What the engines of a comparison have in common: the model, settings of the engine, most
    tokens of a prompt, tokens of an answer, and whether answers are the workload's own text.
    """

    model: str
    settings: Mapping[str, Any]
    prompt: int
    answer: int
    replayed: bool = False


def measure_drafters(
    drafters: Drafters, engine: SpecEngine, works: Sequence[SpecWorkload], rounds: int,
    listener: LoadListener | None = None,
) -> dict[str, dict[str, list[SpecRun]]]:  # fmt: skip
    """By workload and side; sides without drafts are those of the first engine."""
    found: dict[str, dict[str, list[SpecRun]]] = {work.name: {} for work in works}
    plain: Sequence[str] = PLAIN
    for group in group_drafters(drafters):
        bench = open_bench(engine, group, listener, plain)
        for work in works:
            found[work.name] = bench.run(work, rounds) | found[work.name]
        plain = (OFF,)
    order = [*PLAIN, *drafters]
    return {name: {side: sides[side] for side in order} for name, sides in found.items()}


def open_bench(
    engine: SpecEngine, drafters: Drafters, listener: LoadListener | None = None,
    plain: Sequence[str] = PLAIN,
) -> SpecBench:  # fmt: skip
    """The engine with its sides, the `plain` ones without drafts first."""
    first, *others = drafters.values()
    settings = Settings.of(
        model=engine.model, max_num_seqs=SEQS, speculative_config=first.write(), **engine.settings
    )
    loaded = build(settings, listener)
    loaded.moving.settle()
    parts = DrafterParts(loaded.limits, loaded.spec.vocab)
    made = [loaded.engine.drafts.calls.drafter, *(make_drafter(one, parts) for one in others)]
    sides = [SpecSide(name, None, loaded.engine, False) for name in plain]
    sides += [
        SpecSide(label, drafter, loaded.engine, config.adaptive)
        for (label, config), drafter in zip(drafters.items(), made, strict=True)
    ]
    context = min(loaded.limits.max_model_len, engine.prompt + engine.answer)
    limits = TextLimits(loaded.tokenizer, loaded.spec.vocab, context, engine.answer)
    return SpecBench(loaded, sides, limits, engine.replayed)
