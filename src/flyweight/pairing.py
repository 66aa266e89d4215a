"""Finds the draft model or the heads of a `speculative_config`, and judges whether a draft model
can draft for the target.

Invariant: reads headers and vocabularies, no weights; what is refused is refused before any is
read.
"""

from dataclasses import dataclass, replace

from flyweight.config import Settings
from flyweight.describe import INSIDE, LoadListener, ModelDescription, describe, find, find_here
from flyweight.draft.headfolder import NAMES, read_head_method
from flyweight.draft.spelling import Speller
from flyweight.draft.vocabulary import LEAST_SHARE, IdMap, Token, is_same, map_ids
from flyweight.errors import CheckpointError, ConfigError, nearest
from flyweight.speculation import SpeculationConfig
from flyweight.speculation_methods import (
    BUNDLED_HEADS,
    DRAFT_INSIDE,
    METHODS,
    REVISION,
    SETTING,
)
from flyweight.validation.untrusted import spell
from flyweight.weights.hub.cache import find_repo_folder, find_snapshot
from flyweight.weights.hub.heads import fetch_heads
from flyweight.weights.hub.names import parse_hub_name


@dataclass(frozen=True, slots=True)
class DraftDescription:
    """A draft model looked at, not loaded.  Where the vocabularies differ, `ids` maps them, or
    `spellers` read the target's text and write it.
    """

    found: ModelDescription
    ids: IdMap | None = None
    spellers: tuple[Speller, Speller] | None = None


def find_draft(
    settings: Settings, target: ModelDescription, tell: LoadListener
) -> DraftDescription | None:
    """The draft model that the method needs, None where it needs none.  Raises `ConfigError` or
    `CheckpointError`.
    """
    config = settings.speculation
    if config is None or not METHODS[config.method].second:
        return None
    _check_revision(config)
    _check_name(str(config.options["model"]))
    own = replace(
        settings,
        model=str(config.options["model"]),
        revision=config.options[REVISION] or None,
        load_format="auto",
        adapters={},
        quantization={},
        max_kld=None,
        speculative_config="",
    )
    try:
        found = describe(find(own, tell))
    except CheckpointError as error:
        _refuse_heads(own)
        raise CheckpointError(f"{SETTING}.model: {error}") from None
    ours, theirs = list_tokens(target), list_tokens(found)
    if is_same(ours, theirs) and len(theirs) >= len(ours):
        return DraftDescription(found)
    ids = map_ids(ours, theirs)
    share = ids.share
    if share >= LEAST_SHARE:
        tell.note(f"the draft model has {share:.1%} of the model's tokens; drafts end at others")
        return DraftDescription(found, ids)
    _refuse_rejection(config)
    _check_text(own.model, found)
    tell.note(f"the draft model has {share:.1%} of the model's tokens; drafts go through text")
    spellers = (
        Speller(target.tokenizer, found.tokenizer),
        Speller(found.tokenizer, target.tokenizer),
    )
    return DraftDescription(found, spellers=spellers)


def find_heads(settings: Settings, tell: LoadListener) -> SpeculationConfig | None:
    """The configuration of drafts, with the folder of heads in place of a name on the Hub.  Raises
    `ConfigError` or `CheckpointError`.
    """
    config = settings.speculation
    if config is None or METHODS[config.method].second or "model" not in config.options:
        return config
    _check_revision(config)
    model = str(config.options["model"])
    name = None if _is_here(model) else parse_hub_name(model, config.options[REVISION] or None)
    if name is None:  # opening it says what is wrong
        return config
    path = fetch_heads(name, NAMES, tell, offline=settings.offline)
    return replace(config, options={**config.options, "model": str(path)})


def _is_here(model: str) -> bool:
    return find_here(model) is not None or model in BUNDLED_HEADS


def _check_name(model: str) -> None:
    """Raises `ConfigError` for what can be no draft model."""
    if model in BUNDLED_HEADS:
        raise _make_heads_error(model, BUNDLED_HEADS[model])
    if _is_here(model) or parse_hub_name(model) is not None:
        return
    near = nearest(model, [*INSIDE, *BUNDLED_HEADS])
    raise ConfigError(
        "does not exist", f"{SETTING}.model", value=model,
        allowed=f"{DRAFT_INSIDE}, a .gguf file, a folder, a name on the Hub, or heads: "
        f"{', '.join(BUNDLED_HEADS)}{near}",
    )  # fmt: skip


def _refuse_heads(settings: Settings) -> None:
    """Raises `ConfigError` where a model that cannot draft is a folder of heads."""
    model = str(settings.model)
    path, name = find_here(model), parse_hub_name(model, settings.revision)
    if path is None and name is not None:  # the config was fetched, if nothing else
        path = find_snapshot(name) or next(find_repo_folder(name.repo).glob("snapshots/*"), None)
    method = read_head_method(path) if path is not None and path.is_dir() else ""
    if method in METHODS and not METHODS[method].second:
        raise _make_heads_error(model, method)


def _make_heads_error(model: str, method: str) -> ConfigError:
    return ConfigError(
        f"has heads for method {method}, and is no draft model", f"{SETTING}.model", value=model,
        hint=f'nearest valid: "method": "{method}"',
    )  # fmt: skip


def _check_revision(config: SpeculationConfig) -> None:
    """Raises `ConfigError` for a revision of what is not on the Hub."""
    revision, model = config.options.get(REVISION), str(config.options["model"])
    if revision and _is_here(model):
        raise ConfigError(
            f"is a branch, tag or commit of a model on the Hub, and {spell(model)} is here; leave "
            "it out",
            f"{SETTING}.{REVISION}", value=revision,
        )  # fmt: skip


def _refuse_rejection(config: SpeculationConfig) -> None:
    """Raises `ConfigError`: a token may be drawn in several pieces, so that nothing says how likely
    it was.
    """
    if config.verifier == "rejection":
        raise ConfigError(
            "is not supported where draft tokens are mapped through text",
            f"{SETTING}.verifier", value="rejection", allowed="coupled",
        )  # fmt: skip


def _check_text(name: object, draft: ModelDescription) -> None:
    """Raises `ConfigError` where a draft model has no vocabulary to read text with."""
    if not any(raw for _, raw in list_tokens(draft)):
        raise ConfigError(
            "has no vocabulary",
            f"{SETTING}.model",
            value=str(name),
            hint="nearest valid: a draft model with a tokenizer",
        )


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
