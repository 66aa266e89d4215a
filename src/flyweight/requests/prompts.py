"""What callers give as prompts, checked before any work: text, token ids, or both.

Invariant: a `PreparedPrompt` can be served, as far as vocabulary, context and options tell.
Knows no engine and no chat template.
"""

import os
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from numbers import Integral
from operator import index
from typing import Any, TypeVar

from flyweight.errors import RequestError
from flyweight.inputs import LoRARequest, LoRARequests, PromptType
from flyweight.params.tasks import BeamSearchParams, PoolingParams
from flyweight.text.tokenizer import Tokenizer
from flyweight.text.tools.formats import ReasoningMarks
from flyweight.text.words import Lexicon
from flyweight.types import ALL, Request, RequestWords, SamplingParams, ThinkingBudget
from flyweight.validation.ranges import check_loaded, require

T = TypeVar("T")
PIECE = 8  # characters of a token, generously: text of so many is read in one go
LONGEST_PIECE = 512  # characters
TAIL = 64  # ids of a prompt, in whose text a mark that ends it stands
Prompt = PromptType


@dataclass(frozen=True, slots=True)
class RequestContext:
    """How a request runs among others: whose cache it shares (`salt`), its turn (lower `priority`
    goes first), the adapter it goes through, "" for none, and whether it reports what it got from
    the cache, and what its steps took.  `start_by` and `drafted` are those of `Request`.
    """

    salt: str = ""
    priority: int = 0
    adapter: str = ""
    explain: bool = False
    measure: bool = False
    start_by: float = inf
    drafted: bool = True


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt, checked; its tokens four bytes each until the engine gets to it."""

    text: str | None
    tokens: "array[int]"
    params: SamplingParams
    lane: RequestContext
    words: RequestWords
    arrival: float = field(default_factory=time.monotonic)
    pooling: PoolingParams | None = None
    beam: BeamSearchParams | None = None


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Reads prompts for a model of `vocab` pieces and at most `longest` tokens a sequence; `scored`
    rows of a step may be for prompts' log-probabilities, of which `best` may be listed with a
    token's own; `marks` are those of reasoning.
    """

    tokenizer: Tokenizer
    vocab: int
    longest: int
    scored: int = 256
    adapters: tuple[str, ...] = ()
    best: int = 64
    marks: ReasoningMarks | None = None
    lexicon: Lexicon = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lexicon", Lexicon(self.tokenizer, self.vocab))

    def read(
        self, prompt: Prompt, params: SamplingParams, lane: RequestContext, *, answer: int = 1
    ) -> PreparedPrompt:
        """Raises `RequestError` where the request could not be served, with at least `answer`
        tokens after the prompt.
        """
        text, tokens = self._read_tokens(prompt)
        self._check(text, tokens, params, answer)
        self._judge(lane)
        words = self.lexicon.encode_words(params)
        if params.thinking_token_budget is not None:
            continued = prompt.get("continued") if isinstance(prompt, Mapping) else None
            shown = self.tokenizer.decode(tokens[-TAIL:], False) if text is None else text
            words = replace(words, thought=self._make_thinking_budget(params, shown, continued))
        return PreparedPrompt(text, array("i", tokens), params, lane, words)

    def _make_thinking_budget(
        self, params: SamplingParams, prompt: str, continued: object
    ) -> ThinkingBudget:
        """How what the model thinks comes to its end.  Raises `RequestError`."""
        name, budget = "thinking_token_budget", params.thinking_token_budget
        if self.marks is None:
            raise RequestError(
                "is not supported: this model's answers have no reasoning; leave it out",
                name,
                value=budget,
            )
        inside = self.marks.find_open_reasoning(
            prompt, continued if isinstance(continued, str) else None
        )
        form = params.structured_outputs
        if inside is not None and form is not None and form.kind in ("json", "json_object"):
            raise RequestError(
                "cannot be combined with JSON output here: the prompt ends within "
                "reasoning; leave one of them out",
                name,
                value=budget,
            )
        spent = None if inside is None else len(self._encode(inside.strip()))
        return self.lexicon.encode_marks(self.marks).make_budget(budget or 0, spent)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False) if text else []

    def _judge(self, lane: RequestContext) -> None:
        # a request refuses a bad salt or priority
        Request("", (), SamplingParams(), salt=lane.salt, priority=lane.priority)
        check_loaded(lane.adapter, self.adapters)

    def _read_tokens(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        """The prompt as text, where it has any, and as ids."""
        text: object = prompt
        if isinstance(prompt, Mapping):
            text = prompt.get("prompt")
            ids: object = prompt.get("prompt_token_ids")
            if ids is not None:
                return (text if isinstance(text, str) else None), _to_ids(ids)
        if isinstance(text, str):
            return text, tuple(encode_prompt(self.tokenizer, text, self.longest))
        if isinstance(prompt, Mapping):
            raise RequestError(
                f"has the keys {sorted(map(str, prompt))}; required: prompt (text) or "
                "prompt_token_ids",
                "prompt",
            )
        return None, _to_ids(prompt)

    def _check(
        self, text: str | None, tokens: Sequence[int], params: SamplingParams, answer: int
    ) -> None:
        most = self.longest - answer
        if not tokens:
            bare = ": this vocabulary adds no BOS token"
            why = "" if text is None else bare
            raise RequestError(f"is empty{why}", "prompt", allowed="1 token or more")
        if len(tokens) > most:
            left = ", with one token left for the answer" if answer else ""
            raise RequestError(
                f"has {len(tokens)} tokens",
                "prompt",
                code="context_length_exceeded",
                allowed=f"1 to {most} (max_model_len = {self.longest}{left})",
            )
        if params.prompt_logprobs is not None and not self.scored:
            raise RequestError(
                "is not supported with prompt_logprob_rows = 0, which leaves no memory for "
                "their logits",
                "prompt_logprobs",
                value=params.prompt_logprobs,
                hint="nearest valid: none",
            )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(params, name) or 0
            if count == ALL != self.best:
                raise self._make_all_error(name)
            if self.best == ALL:
                continue
            allowed = f"0 to {self.best} (max_logprobs)"
            require(count <= self.best, name, count, allowed, self.best)
        listed = len(params.logprob_token_ids)
        if listed > self.best != ALL:
            raise RequestError(
                f"has {listed} ids",
                "logprob_token_ids",
                allowed=f"up to {self.best} (max_logprobs)",
            )
        check_id_range("prompt", tokens, self.vocab)
        self.check_ids(params)

    def _make_all_error(self, name: str) -> RequestError:
        return RequestError(
            f"requests all {self.vocab} tokens of the vocabulary",
            name,
            value=-1,
            allowed=f"0 to {self.best} (max_logprobs)",
            hint="max_logprobs = -1 allows it if memory does",
        )

    def check_ids(self, params: SamplingParams) -> None:
        """Raises `RequestError` where an option names a token that the vocabulary lacks."""
        check_id_range("stop_token_ids", params.stop_token_ids, self.vocab)
        check_id_range("allowed_token_ids", params.allowed_token_ids or (), self.vocab)
        check_id_range("logprob_token_ids", params.logprob_token_ids, self.vocab)
        check_id_range("logit_bias", params.logit_bias, self.vocab)


def check_id_range(name: str, ids: Iterable[int], vocab: int) -> None:
    bad = next((i for i in ids if not 0 <= i < vocab), None)
    if bad is not None:
        raise RequestError(f": token id {bad} is out of range", name, allowed=f"0 to {vocab - 1}")


def encode_prompt(
    tokenizer: Tokenizer, text: str, longest: int | None, add_special: bool = True
) -> list[int]:
    """Ids of a prompt.  Where its beginning alone is more than `longest` tokens, the rest is not
    read: `RequestError`.
    """
    if longest is not None:
        check_fits(tokenizer, text, longest)
    return tokenizer.encode(text, add_special=add_special)


def check_fits(tokenizer: Tokenizer, text: str, longest: int, name: str = "prompt") -> None:
    """Raises `RequestError` where `text` is more than `longest` tokens, having read little more
    than these.  (A cut may fall within a word, which the words after it never undo.)
    """
    size = PIECE * longest
    while size < len(text):
        begun = len(tokenizer.encode(text[:size], add_special=False)) - LONGEST_PIECE
        if begun > longest:
            raise make_length_error(begun, longest, name)
        size *= 4


def make_length_error(begun: int, longest: int, name: str = "prompt") -> RequestError:
    return RequestError(
        f"has {begun} tokens or more",
        name,
        code="context_length_exceeded",
        allowed=f"1 to {longest - 1} (max_model_len = {longest}, with one token left for the "
        "answer)",
    )


def encode_beginning(tokenizer: Tokenizer, text: str, most: int) -> list[int]:
    """The first `most` ids of a prompt, which is read little further than that."""
    size = PIECE * most + LONGEST_PIECE
    while size < len(text):
        ids = tokenizer.encode(text[:size])
        if len(ids) - LONGEST_PIECE >= most:  # what a cut may change is behind them
            return ids[:most]
        size *= 4
    return tokenizer.encode(text)[:most]


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt (text, a mapping, or a list of ids) or several."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    prompts = getattr(prompts, "tolist", lambda: prompts)()  # a NumPy array
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise RequestError(
            "is not valid",
            "prompts",
            value=prompts,
            allowed="text, token ids, a mapping, or a list of these",
        )
    many: list[Any] = list(prompts)
    return [many] if many and all(isinstance(x, Integral) for x in many) else many


def spread_options(name: str, given: object, kind: type[T], wanted: int) -> Sequence[T]:
    """Options given as one for all prompts, as a list with one for each, or (None) as they are by
    themselves.
    """
    if given is None:
        given = kind()
    if isinstance(given, kind):
        return [given] * wanted
    if not isinstance(given, Sequence) or not all(isinstance(p, kind) for p in given):
        raise RequestError(
            "is not valid",
            name,
            value=given,
            allowed=f"one {kind.__name__}, or a list with one for each prompt",
        )
    _check_count(name, kind.__name__, len(given), wanted)
    return given


def _check_count(name: str, kind: str, found: int, wanted: int) -> None:
    """Raises `RequestError` where a list has not one for each prompt."""
    if found != wanted:
        many = "1 prompt" if wanted == 1 else f"{wanted} prompts"
        raise RequestError(
            f"is a list of {found} for {many}",
            name,
            allowed=f"one {kind}, or a list with one for each",
        )


@dataclass(frozen=True, slots=True)
class ContextFactory:
    """How the requests of one call run, as its caller said: one value for all, or a list with one
    for each.
    """

    salt: str = ""
    priority: int | Sequence[int] | None = 0
    adapter: str | Sequence[str] = ""
    lora_request: LoRARequests = None
    explain: bool = False

    def make_each(
        self, wanted: int, known: Mapping[str, str | os.PathLike[str]]
    ) -> Sequence[RequestContext]:
        """A lane for each prompt; `known` are the adapters that are loaded.  Raises
        `RequestError`.
        """
        names = spread_options("adapter", self.adapter, str, wanted)
        if self.lora_request is not None:
            if self.adapter:
                raise RequestError("adapter and lora_request exclude each other; give one of them")
            given: Any = self.lora_request
            absent = LoRARequest | None
            if isinstance(given, list | tuple) and all(isinstance(x, absent) for x in given):
                _check_count("lora_request", "LoRARequest", len(given), wanted)
            else:
                given = spread_options("lora_request", given, LoRARequest, wanted)
            names = [one.adapter(known) if one is not None else "" for one in given]
        order: Any = 0 if self.priority is None else self.priority
        if isinstance(order, list | tuple):
            _check_count("priority", "number", len(order), wanted)
        else:
            order = [order] * wanted
        pairs = zip(order, names, strict=True)
        return [RequestContext(self.salt, at, name, self.explain) for at, name in pairs]


def add_salt(prompt: Prompt, lane: RequestContext) -> RequestContext:
    """The lane of a prompt that may have a salt of its own."""
    own = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
    if own is None:
        return lane
    require(isinstance(own, str), "cache_salt", own, "text")
    return replace(lane, salt=str(own))


def _to_ids(given: object) -> tuple[int, ...]:
    """Token ids from whatever counts as a list of whole numbers."""
    try:
        if isinstance(given, str | bytes):
            raise TypeError
        listed: list[object] = list(given)  # type: ignore[call-overload]
        if any(isinstance(i, bool) for i in listed):
            raise TypeError
        return tuple(index(i) for i in listed)  # type: ignore[arg-type]
    except TypeError:
        raise RequestError(
            "is neither text nor a list of token ids", "prompt", value=str(given)[:80]
        ) from None
