"""The methods of drafting, a row each, with the keys of `speculative_config` that each of them has.

Invariant: a method that is named is a row of METHODS, and a key of it has a range and a meaning.  A
new drafter is a file in `draft/` and a row.  Keys are vLLM's where it has one.  Knows no drafter.
Standard library only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any

from flyweight.errors import ConfigError
from flyweight.validation.setting import whole
from flyweight.validation.token_tree import read_token_tree

SETTING = "speculative_config"
MOST_DRAFTS = 64  # draft tokens a step
DRAFT_INSIDE = "stories-draft"  # the draft model in the package
BUNDLED_HEADS = {"stories-medusa": "medusa", "stories-eagle": "eagle", "stories-eagle3": "eagle3"}
EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'


@dataclass(frozen=True, slots=True)
class SpeculationKey:
    """A key of a method: a whole number if `low` is whole, else a number, from `low` to `high`;
    text where there is no `low`, of which `allowed` says what it may be.  Without a `default` it
    must be given.
    """

    name: str
    help: str
    low: float | None = None
    high: float = 0
    default: int | float | str | None = None
    allowed: str = "text"

    def check(self, value: Any) -> None:
        """Raises `ConfigError`."""
        path = f"{SETTING}.{self.name}"
        if self.low is None:
            if not isinstance(value, str) or not value:
                raise ConfigError("is not valid", path, value=value, allowed=self.allowed)
        elif isinstance(self.low, int):
            whole(path, value, self.low, int(self.high))
        else:
            allowed = f"{self.low:g} to {self.high:g}"
            if isinstance(value, bool) or not isinstance(value, int | float) or isnan(value):
                raise ConfigError("is not valid", path, value=value, allowed=allowed)
            if not self.low <= value <= self.high:
                near = self.high if value > self.high else self.low
                hint = f"nearest valid: {near:g}"
                raise ConfigError("is out of range", path, value=value, allowed=allowed, hint=hint)


@dataclass(frozen=True, slots=True)
class SpeculationMethod:
    """A method: `module` has its `make_drafter(config, parts)`, "" where it is not built yet.
    `tokens` is the default of num_speculative_tokens (0: it must be given); `settle` fills in
    defaults that depend on other keys, and checks keys that depend on each other.  The key `model`
    of one with a `second` model names it.  One that `draws` says how likely each of its tokens was;
    one with `states` keeps one for each computed token, besides K/V.
    """

    name: str
    what: str
    keys: tuple[SpeculationKey, ...] = ()
    module: str = ""
    tokens: int = 0
    settle: Callable[[dict[str, Any]], None] = lambda options: None
    second: bool = False
    draws: bool = False
    states: bool = False


def _settle_ngram(options: dict[str, Any]) -> None:
    """The shortest match is at most the longest."""
    name = "prompt_lookup_min"
    if "prompt_lookup_max" not in options:
        options["prompt_lookup_max"] = max(5, options.get(name, 2))
    options.setdefault(name, min(2, options["prompt_lookup_max"]))
    whole(f"{SETTING}.{name}", options[name], 1, options["prompt_lookup_max"])


def _check_tree(options: dict[str, Any]) -> None:
    if options[TREE]:
        read_token_tree(options[TREE], f"{SETTING}.{TREE}", MOST_DRAFTS)


def _check_grown_tree(options: dict[str, Any]) -> None:
    """A tree has one shape, or grows."""
    if options[TREE] and options[WIDTH]:
        hint = f"nearest valid: {WIDTH} or {TREE} alone"
        raise ConfigError(f"does not go with {TREE}", f"{SETTING}.{WIDTH}", hint=hint)
    _check_tree(options)


NGRAM_KEYS = (
    SpeculationKey("prompt_lookup_max", "Longest match, in tokens.", 1, 1024),
    SpeculationKey("prompt_lookup_min", "Shortest match, in tokens.", 1, 1024),
)
REVISION = "revision"
REVISION_KEY = SpeculationKey(
    REVISION, "Branch, tag or commit of the `model`, where that is a name on the Hub.", default=""
)
SUFFIX_KEYS = (
    SpeculationKey("suffix_decoding_max_tree_depth", "Longest match, in tokens.", 2, 256, 24),
    SpeculationKey(
        "suffix_decoding_max_cached_requests", "Earlier answers to copy from; 0: none.",
        0, 1_000_000, 10_000,
    ),
    SpeculationKey(
        "suffix_decoding_max_spec_factor", "Most draft tokens for each token of the match.",
        0.01, 64.0, 1.0,
    ),
    SpeculationKey(
        "suffix_decoding_min_token_prob", "Least estimated probability of a draft's last token.",
        0.0, 1.0, 0.1,
    ),
)  # fmt: skip
DRAFT_MODEL_KEYS = (
    SpeculationKey(
        "model", "The draft model.",
        allowed=f"{DRAFT_INSIDE}, a .gguf file, a folder or a name on the Hub",
    ),
    REVISION_KEY,
)  # fmt: skip
CASCADE_KEYS = (
    *DRAFT_MODEL_KEYS,
    SpeculationKey(
        "cascade_min_token_prob", "Least estimated probability of a draft's last token.",
        0.0, 1.0, 0.05,
    ),
)  # fmt: skip
TREE = "speculative_token_tree"
TREE_KEY = SpeculationKey(TREE, "Paths of a tree of draft tokens.", default="")
WIDTH = "tree_width"
GROWN_TREE_KEYS = (
    TREE_KEY,
    SpeculationKey(
        WIDTH, "Likeliest paths of each level of a tree that go on; 1: a chain.", 1, 16, ""
    ),
)


def _list_head_keys(method: str) -> tuple[SpeculationKey, ...]:
    """The keys that say where the heads of a method are."""
    inside = [name for name, of in BUNDLED_HEADS.items() if of == method]
    allowed = ", ".join([*inside, "a folder of heads or a name on the Hub"])
    help = "Heads trained for the model."
    return SpeculationKey("model", help, allowed=allowed), REVISION_KEY


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
            "flyweight.draft.second", second=True, draws=True,
        ),
        SpeculationMethod(
            "medusa", "heads that predict several tokens at once",
            (*_list_head_keys("medusa"), TREE_KEY), "flyweight.draft.medusa", settle=_check_tree,
        ),
        SpeculationMethod(
            "eagle", "a layer that predicts from the model's hidden states",
            (*_list_head_keys("eagle"), *GROWN_TREE_KEYS), "flyweight.draft.eagle",
            settle=_check_grown_tree, draws=True, states=True,
        ),
        SpeculationMethod(
            "eagle3", "the same, from the hidden states of several layers",
            (*_list_head_keys("eagle3"), *GROWN_TREE_KEYS), "flyweight.draft.eagle3",
            settle=_check_grown_tree, draws=True, states=True,
        ),
        SpeculationMethod(
            "mtp", "the prediction layer that the model's own files carry", GROWN_TREE_KEYS,
            "flyweight.draft.mtp", 1, _check_grown_tree, draws=True, states=True,
        ),
        SpeculationMethod("mlp_speculator", "an MLP that predicts from hidden states"),
        SpeculationMethod(
            "cascade", "a small model writes while it is sure, and a large one refines",
            CASCADE_KEYS, "flyweight.draft.cascade", tokens=16, second=True, draws=True,
        ),
    )
}  # fmt: skip
ALIASES = {"deepseek_mtp": "mtp"}  # vLLM's other names
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
