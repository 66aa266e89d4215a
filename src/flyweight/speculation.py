"""What `speculative_config` may hold: the methods of drafting, a row each, and one strict reader.

Invariant: a `SpeculationConfig` that exists is valid, and has a value for every key of its method.
A new drafter is a file in `draft/` and a row of METHODS.  Keys are vLLM's where it has one.  Knows
no drafter.  Standard library only.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyweight.errors import CheckpointError, ConfigError, nearest
from flyweight.validation.setting import check_choice, whole
from flyweight.validation.token_tree import TokenTree, read_token_tree
from flyweight.validation.untrusted import parse_object, shown, spell

SETTING = "speculative_config"
MOST_DRAFTS = 64  # draft tokens a step
EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'


@dataclass(frozen=True, slots=True)
class SpeculationKey:
    """A key of a method: a whole number if `low` is whole, else a number, from `low` to `high`;
    text where there is no `low`.  Without a `default` it must be given.
    """

    name: str
    help: str
    low: float | None = None
    high: float = 0
    default: int | float | str | None = None

    def check(self, value: Any) -> None:
        """Raises `ConfigError`."""
        path = f"{SETTING}.{self.name}"
        if self.low is None:
            if not isinstance(value, str) or not value:
                raise ConfigError("is not valid", path, value=value, allowed="text")
        elif isinstance(self.low, int):
            whole(path, value, self.low, int(self.high))
        else:
            allowed = f"{self.low:g} to {self.high:g}"
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError("is not valid", path, value=value, allowed=allowed)
            if not self.low <= value <= self.high:
                near = self.high if value > self.high else self.low
                hint = f"nearest valid: {near:g}"
                raise ConfigError("is out of range", path, value=value, allowed=allowed, hint=hint)


@dataclass(frozen=True, slots=True)
class SpeculationMethod:
    """A method: `module` has its `make_drafter(config, parts)`, "" where it is not built yet.
    `tokens` is the default of num_speculative_tokens (0: it must be given); `settle` fills in
    defaults that depend on other keys, and checks keys against each other.  The key `model` of one
    with a `second` model names it.  One that `draws` says how likely each of its tokens was.
    """

    name: str
    what: str
    keys: tuple[SpeculationKey, ...] = ()
    module: str = ""
    tokens: int = 0
    settle: Callable[[dict[str, Any]], None] = lambda options: None
    second: bool = False
    draws: bool = False


def _settle_ngram(options: dict[str, Any]) -> None:
    """The shortest match is at most the longest."""
    name = "prompt_lookup_min"
    if "prompt_lookup_max" not in options:
        options["prompt_lookup_max"] = max(5, options.get(name, 2))
    options.setdefault(name, min(2, options["prompt_lookup_max"]))
    whole(f"{SETTING}.{name}", options[name], 1, options["prompt_lookup_max"])


def _settle_revision(options: dict[str, Any]) -> None:
    """Without one a draft model is the newest of its name."""
    options.setdefault(REVISION, "")


def _settle_tree(options: dict[str, Any]) -> None:
    """Without a tree drafts are chains."""
    if options.setdefault(TREE, ""):
        read_token_tree(options[TREE], f"{SETTING}.{TREE}", MOST_DRAFTS)


def _settle_grown_tree(options: dict[str, Any]) -> None:
    """A tree has one shape, or grows."""
    if options.get(TREE) and WIDTH in options:
        hint = f"nearest valid: {WIDTH} or {TREE} alone"
        raise ConfigError(f"does not go with {TREE}", f"{SETTING}.{WIDTH}", hint=hint)
    _settle_tree(options)
    options.setdefault(WIDTH, "")


NGRAM_KEYS = (
    SpeculationKey("prompt_lookup_max", "Longest match, in tokens.", 1, 1024),
    SpeculationKey("prompt_lookup_min", "Shortest match, in tokens.", 1, 1024),
)
HEAD_KEYS = (SpeculationKey("model", "Folder of heads trained for the model."),)
SUFFIX_KEYS = (
    SpeculationKey("suffix_decoding_max_tree_depth", "Longest match, in tokens.", 2, 256, 24),
    SpeculationKey(
        "suffix_decoding_max_cached_requests", "Earlier answers to copy from; 0: none.",
        0, 1_000_000, 10_000,
    ),
    SpeculationKey(
        "suffix_decoding_max_spec_factor", "Most draft tokens for each token of the match.",
        0.0, 64.0, 1.0,
    ),
    SpeculationKey(
        "suffix_decoding_min_token_prob", "Least estimated probability of a draft's last token.",
        0.0, 1.0, 0.1,
    ),
)  # fmt: skip
REVISION = "revision"
DRAFT_MODEL_KEYS = (
    SpeculationKey("model", "The draft model: stories-draft, a file, a folder, a name on the Hub."),
    SpeculationKey(REVISION, "Branch, tag or commit of a draft model on the Hub."),
)
CASCADE_KEYS = (
    *DRAFT_MODEL_KEYS,
    SpeculationKey(
        "cascade_min_token_prob", "Least estimated probability of a draft's last token.",
        0.0, 1.0, 0.05,
    ),
)  # fmt: skip
TREE = "speculative_token_tree"
TREE_KEY = SpeculationKey(TREE, "Paths of a tree of draft tokens.")
WIDTH = "tree_width"
GROWN_TREE_KEYS = (
    TREE_KEY,
    SpeculationKey(WIDTH, "Likeliest paths of each level of a tree that go on; 1: a chain.", 1, 16),
)
EAGLE_KEYS = (*HEAD_KEYS, *GROWN_TREE_KEYS)
# A method is one row.
METHODS: Mapping[str, SpeculationMethod] = {
    one.name: one
    for one in (
        SpeculationMethod(
            "ngram", "copies what followed the same tokens earlier in the text", NGRAM_KEYS,
            "flyweight.draft.ngram", settle=_settle_ngram,
        ),
        SpeculationMethod(
            "suffix", "the likeliest continuation of the longest known suffix", SUFFIX_KEYS,
            "flyweight.draft.suffix", tokens=24,
        ),
        SpeculationMethod(
            "draft_model", "a small model drafts for a large one", DRAFT_MODEL_KEYS,
            "flyweight.draft.second", settle=_settle_revision, second=True, draws=True,
        ),
        SpeculationMethod(
            "medusa", "heads that predict several tokens at once", (*HEAD_KEYS, TREE_KEY),
            "flyweight.draft.medusa", settle=_settle_tree,
        ),
        SpeculationMethod(
            "eagle", "a layer that predicts from the model's hidden states", EAGLE_KEYS,
            "flyweight.draft.eagle", settle=_settle_grown_tree, draws=True,
        ),
        SpeculationMethod(
            "eagle3", "the same, from the hidden states of several layers", EAGLE_KEYS,
            "flyweight.draft.eagle3", settle=_settle_grown_tree, draws=True,
        ),
        SpeculationMethod(
            "mtp", "the prediction layer that the model's own files carry", GROWN_TREE_KEYS,
            "flyweight.draft.mtp", 1, _settle_grown_tree, draws=True,
        ),
        SpeculationMethod("mlp_speculator", "an MLP that predicts from hidden states"),
        SpeculationMethod(
            "cascade", "a small model writes while it is sure, and a large one refines",
            CASCADE_KEYS, "flyweight.draft.cascade", 16, _settle_revision, second=True, draws=True,
        ),
    )
}  # fmt: skip
ALIASES = {"deepseek_mtp": "mtp"}  # vLLM's other names
BUNDLED_HEADS = {"stories-medusa": "medusa", "stories-eagle": "eagle"}
COMMON = ("method", "num_speculative_tokens", "adaptive", "verifier")
VERIFIERS = ("coupled", "rejection")
PARALLEL = "draft_tensor_parallel_size"
# vLLM's keys that no method has here: known, so that they are refused by name, with the reason
REASONS = {
    PARALLEL: "a draft model runs in the process of the model",
    "quantization": "the draft model's own files say how they are quantised",
    "max_model_len": "a draft model sees the context of the model",
    "disable_by_batch_size": "adaptive drafts end by themselves where a batch is too large to pay",
    "disable_padded_drafter_batch": "batches of drafts are never padded",
    "parallel_drafting": "a draft model writes one token after the other",
    "tensor_parallel_size": "a draft model runs in the process of the model",
    "draft_load_config": "a draft model is loaded as the model is",
    "code_revision": "no code of a model's repository is run",
    "enforce_eager": "it is the engine's option, for both models",
    "kv_cache_dtype": "both models have K/V of the engine's type",
    "attention_backend": "both models have the engine's backend",
    "moe_backend": "both models have the engine's backend",
    "rejection_sample_method": "the key verifier chooses how drafts are verified",
    "draft_sample_method": "the key verifier chooses how drafts are drawn",
}


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """At most `num_speculative_tokens` draft tokens a step, drafted by `method`, whose own keys are
    the `options`; an `adaptive` one drafts fewer where more would not pay.  The verifier `coupled`
    keeps the very text, `rejection` its distribution.
    """

    method: str
    num_speculative_tokens: int
    options: Mapping[str, Any] = field(default_factory=dict)
    adaptive: bool = True
    verifier: str = VERIFIERS[0]

    @property
    def probs(self) -> bool:
        """Whether what each draft token was drawn from is kept."""
        return self.verifier == "rejection" and METHODS[self.method].draws

    @property
    def promise(self) -> str:
        """What is drafted, and what drafts do not change."""
        fewer = "fewer where more would not pay; " if self.adaptive else ""
        same = "have the same distribution" if self.verifier == "rejection" else "are the same"
        return f"{fewer}answers {same} with and without"

    def describe(self) -> str:
        """In few words."""
        own = "".join(f", {name} = {spell(value)}" for name, value in self._given())
        most = "up to " if self.adaptive else ""
        return f"{self.method}, {most}{self.num_speculative_tokens} tokens a step{own}"

    def write(self) -> dict[str, Any]:
        """The mapping that it is read from."""
        return {
            "method": self.method,
            "num_speculative_tokens": self.num_speculative_tokens,
            **dict(self._given()),
            **({} if self.adaptive else {"adaptive": False}),
            **({} if self.verifier == VERIFIERS[0] else {"verifier": self.verifier}),
        }

    def _given(self) -> list[tuple[str, Any]]:
        """Options without texts that are empty: those are not given."""
        return [(name, value) for name, value in self.options.items() if value != ""]


def read_shape(config: SpeculationConfig) -> TokenTree:
    """The paths of the key speculative_token_tree, () without it.  Raises `ConfigError` where they
    are not as many as the draft tokens.
    """
    text, tokens = config.options.get(TREE), config.num_speculative_tokens
    shape = read_token_tree(text, f"{SETTING}.{TREE}", MOST_DRAFTS) if text else ()
    if shape and tokens != len(shape):
        raise ConfigError(
            f"is not the number of paths in {TREE}",
            f"{SETTING}.num_speculative_tokens",
            value=tokens,
            allowed=f"{len(shape)}",
            hint=f"nearest valid: {len(shape)}",
        )
    return shape


def read_speculation(given: object) -> SpeculationConfig | None:
    """The configuration that a mapping, or the JSON text of an object, describes; None for an empty
    text.  A key that is null is as good as not given.  Raises `ConfigError`, which for broken JSON
    points at the character.
    """
    if given == "":
        return None
    if isinstance(given, str):
        given = _parse_text(given)
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            "is not valid", SETTING, value=given, allowed=f"an object such as {EXAMPLE}"
        )
    found = {name: value for name, value in given.items() if value is not None}
    if found.get(PARALLEL) == 1:  # one process, as it is here
        del found[PARALLEL]
    _refuse_unknown(found)
    if "num_speculative_tokens" in found:
        tokens = found["num_speculative_tokens"]
        whole(f"{SETTING}.num_speculative_tokens", tokens, 1, MOST_DRAFTS)
    method = _find_method(found)
    tokens = found.get("num_speculative_tokens", method.tokens)
    if not tokens:
        raise ConfigError(
            "is missing", f"{SETTING}.num_speculative_tokens", allowed=f"1 to {MOST_DRAFTS}"
        )
    adaptive, verifier = found.get("adaptive", True), found.get("verifier", VERIFIERS[0])
    if not isinstance(adaptive, bool):
        path = f"{SETTING}.adaptive"
        raise ConfigError("is not valid", path, value=adaptive, allowed="true or false")
    check_choice(f"{SETTING}.verifier", verifier, VERIFIERS)
    options = _read_options(found, method)
    return SpeculationConfig(method.name, int(tokens), options, adaptive, verifier)


def _parse_text(text: str) -> dict[str, Any]:
    example = f"an object such as {EXAMPLE}"
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        before, after = text[max(0, error.pos - 40) : error.pos], text[error.pos : error.pos + 40]
        place = shown(f"{before} >>> {after}", 90) if after.strip() else f"the end of {shown(text)}"
        problem = f": not valid JSON: {error.msg} at character {error.pos + 1}, {place}"
        raise ConfigError(problem, SETTING, allowed=example) from None
    except (ValueError, RecursionError):  # `parse_object` says why
        pass
    try:
        return parse_object(text.encode("utf-8", "replace"), "")
    except CheckpointError as error:
        raise ConfigError(str(error), SETTING, allowed=example) from None


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    """Raises where a key is none of any method."""
    known = [*COMMON, *(key.name for row in METHODS.values() for key in row.keys), *REASONS]
    strays = [
        f"{shown(name)} is unknown{nearest(name, known)}" for name in given if name not in known
    ]
    if strays:
        raise ConfigError(f": {', '.join(strays)}", SETTING)


def _find_method(given: dict[str, Any]) -> SpeculationMethod:
    """The row of the requested method.  Raises where there is none, or no drafter for it."""
    name, model = given.get("method"), given.get("model")
    if model in ("ngram", "[ngram]") and name in (None, "ngram"):  # vLLM's old name of the method
        name = given.pop("model").strip("[]")
    if name is None:
        name = "ngram" if model is None else BUNDLED_HEADS.get(str(model), "draft_model")
    path, built = f"{SETTING}.method", [row.name for row in METHODS.values() if row.module]
    row = METHODS.get(ALIASES.get(name, name)) if isinstance(name, str) else None
    if row is None:
        allowed = f"{', '.join(built)}{nearest(str(name), METHODS)}"
        raise ConfigError("is not valid", path, value=name, allowed=allowed)
    if not row.module:
        tokens = given.get("num_speculative_tokens", 4)
        of = f" (model = {shown(model)})" if model is not None else ""
        raise ConfigError(
            f"{of} is not supported yet".lstrip(), path, value=name, allowed=", ".join(built),
            hint=f'nearest valid: {{"method": "ngram", "num_speculative_tokens": {tokens}}}, which '
            "drafts from the text itself",
        )  # fmt: skip
    return row


def _read_options(given: Mapping[str, Any], method: SpeculationMethod) -> dict[str, Any]:
    """The method's own keys, each with a value.  Raises where one cannot be."""
    own = {key.name: key for key in method.keys}
    for name in given:
        if name not in own and name not in COMMON:
            allowed = ", ".join([*COMMON, *own])
            reason = f": {REASONS[name]}" if name in REASONS else ""
            raise ConfigError(
                f"does not apply to {method.name}{reason}; leave it out",
                f"{SETTING}.{name}",
                value=given[name],
                allowed=allowed,
            )
    options: dict[str, Any] = {}
    for name, key in own.items():
        value = given.get(name, key.default)
        if value is not None:
            key.check(value)
            options[name] = value
    method.settle(options)
    for name in own:
        if name not in options:
            raise ConfigError("is missing", f"{SETTING}.{name}", allowed=own[name].help)
    return options
