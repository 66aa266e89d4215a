"""From options that were given to what is to be done for each, and to settings.

Invariant: every option has a meaning, asks for what is so anyway, sets a field, or is refused; all
refusals are collected.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from flyweight.arguments.draft import DraftArguments
from flyweight.arguments.meanings import Meaning
from flyweight.arguments.stance import Support, Value, said
from flyweight.errors import OWN_NAMES, ConfigError, FieldNames

Made = TypeVar("Made")


def steps(
    draft: DraftArguments,
    stances: Sequence[Support],
    meanings: Mapping[str, Meaning],
    sets: Callable[[str, Value], Meaning | None],
    refusals: list[str],
) -> list[Meaning]:
    """What is to be done for each option; refuses those of `stances` that is not supported.
    `sets` is what puts an option into a field as it is, if anything does.
    """
    found: list[Meaning] = []
    fixed = {stance.name: stance for stance in stances}
    for name, value in draft.options.items():
        stance = fixed.get(name)
        if stance is not None:
            refusal = stance.refusal(value)
            if refusal is None or (name == "tokenizer" and said(value) in _models(draft)):
                draft.wish(name, stance.active, stance.why)
            else:
                refusals.append(refusal)
            continue
        step = sets(name, value) or meanings.get(name)
        if step is not None:
            found.append(step)
    return found


def _models(draft: DraftArguments) -> list[str]:
    """What is to be used, in its own words: its vocabulary may be asked for by the same."""
    model = draft.options.get("model")
    return [*draft.models, model] if isinstance(model, str) else [*draft.models]


def tried(work: Callable[[], Any], refusals: list[str]) -> None:
    """Does it, or collects why not."""
    try:
        work()
    except ConfigError as error:
        refusals += error.lines


def made(
    make: Callable[[dict[str, Any]], Made],
    given: Mapping[str, Any],
    refusals: list[str],
    names: FieldNames = OWN_NAMES,
) -> Made | None:
    """Settings out of what was given.  What is refused is left out, so that the next that cannot be
    is seen too; errors have the `names` of options.
    """
    left = dict(given)
    while True:
        try:
            return make(left)
        except ConfigError as error:
            path = error.path
            refusals += error.renamed(names).lines
            if left.pop(path, None) is None:
                return None
