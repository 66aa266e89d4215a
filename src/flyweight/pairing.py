"""Finds the draft model of a `speculative_config`, and judges whether it can draft for the target.

Invariant: reads headers and vocabularies, no weights; what is refused is refused before any is
read.
"""

from dataclasses import dataclass, replace

from flyweight.config import Settings
from flyweight.describe import LoadListener, ModelDescription, describe, find
from flyweight.draft.vocabulary import LEAST_SHARE, IdMap, Token, is_same, map_ids
from flyweight.errors import ConfigError
from flyweight.speculation import METHODS, SETTING

SETTING_MODEL = f"{SETTING}.model"


@dataclass(frozen=True, slots=True)
class DraftDescription:
    """A draft model looked at, not loaded; `ids` maps the vocabularies where they differ."""

    found: ModelDescription
    ids: IdMap | None


def find_draft(
    settings: Settings, target: ModelDescription, tell: LoadListener
) -> DraftDescription | None:
    """The draft model that the method needs, None where it needs none.  Raises `ConfigError` or
    `CheckpointError`.
    """
    config = settings.speculation
    if config is None or not METHODS[config.method].second:
        return None
    name = str(config.options["model"])
    own = replace(
        settings,
        model=name,
        revision=None,
        adapters={},
        quantization={},
        max_kld=None,
        speculative_config="",
    )
    found = describe(find(own, tell))
    ids = match_vocabularies(name, target, found)
    if ids is not None:
        target_share, draft_share = ids.shares
        tell.note(
            f"the draft model has {target_share:.0%} of the model's tokens and shares "
            f"{draft_share:.0%} of its own; a token that it lacks ends a draft"
        )
    return DraftDescription(found, ids)


def match_vocabularies(
    name: str, target: ModelDescription, draft: ModelDescription
) -> IdMap | None:
    """The map between two vocabularies, None where ids mean the same.  Raises `ConfigError` where
    most of the draft model's tokens are not the target's.
    """
    ours, theirs = list_tokens(target), list_tokens(draft)
    if is_same(ours, theirs) and len(theirs) >= len(ours):
        return None
    ids = map_ids(ours, theirs)
    share = ids.shares[1]
    if share < LEAST_SHARE:
        raise ConfigError(
            f"has another vocabulary: {share:.0%} of its {len(theirs)} tokens are tokens of the "
            "model",
            SETTING_MODEL,
            value=name,
            allowed=f"a share of {LEAST_SHARE:.0%} or more",
            hint="nearest valid: a draft model with the model's tokenizer",
        )
    return ids


def list_tokens(found: ModelDescription) -> list[Token]:
    """Every token of a model, those that its tokenizer leaves unused as empty."""
    tokenizer, known = found.tokenizer, found.tokenizer.vocab_size
    return [
        (tokenizer.piece(i), tokenizer.token_bytes(i, special=True)) if i < known else ("", b"")
        for i in range(found.spec.vocab)
    ]


def judge_draft_length(draft: DraftDescription, length: int, tell: LoadListener) -> None:
    """Raises `ConfigError` where a context is longer than the draft model can see."""
    spec = draft.found.spec
    if spec.positions and length > spec.positions:
        raise ConfigError(
            f"is above the {spec.positions} positions that the draft model has learned",
            "max_model_len",
            value=length,
            hint=f"nearest valid: {spec.positions}",
        )
    if length > spec.context:
        tell.warn(
            f"max_model_len = {length} is above the {spec.context} tokens the draft model was made "
            "for; fewer of its drafts may be accepted beyond them"
        )
