"""From what a caller requests to a checked request and what gathers its answer; the same for `LLM`
and for the server, whose front end has no engine.

Invariant: a request made here can be served, as far as vocabulary, context and options tell.  Knows
the model by its facts alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from random import Random, SystemRandom
from typing import Any

from flyweight.arguments.objects import DEFAULTS
from flyweight.errors import CheckpointError, RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.params.tasks import BeamSearchParams, PoolingParams
from flyweight.requests.attempts import Attempts, CheckedCollector, check_validated, is_validated
from flyweight.requests.collector import Collector, VectorCollector, make_drawn_params
from flyweight.requests.prompts import (
    PreparedPrompt,
    Prompt,
    PromptReader,
    RequestContext,
    encode_prompt,
)
from flyweight.text.meter import USUAL, RenderBounds
from flyweight.text.tokenizer import Tokenizer, replace_surrogates
from flyweight.text.tools.formats import AUTO, find_marks
from flyweight.types import Request, SamplingParams

Message = Mapping[str, Any]
Params = SamplingParams | BeamSearchParams | PoolingParams
UNSAMPLED = SamplingParams(temperature=0)  # of requests that draw no tokens


def read_generation_options(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """A generation_config.json as `SamplingParams`' options; `CheckpointError` where one is out of
    range.
    """
    given = {ours: theirs[name] for name, ours in DEFAULTS.items() if name in theirs}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        SamplingParams(**given)
    except RequestError as error:
        raise CheckpointError(f"generation_config.json: {error}") from None
    return given


@dataclass(frozen=True, slots=True)
class RequestChecks:
    """What a request is checked against: the vocabulary's size, the longest sequence, how many
    prompt tokens a step may score, the ids that end a sequence, adapters by name, and how many
    log-probabilities may be listed with a token's own.
    """

    vocab: int
    max_model_len: int
    scored: int
    stop_ids: frozenset[int]
    adapters: tuple[str, ...] = ()
    best: int = 64


class RequestPreparer:
    """Makes requests for one model.  `seed` seeds those that have none of their own; None: by
    chance.  `judge` refuses constraints that cannot be kept to; None: that is done elsewhere.
    `reasoning` names the marks of it, see `text.tools.formats`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        facts: RequestChecks,
        seed: int | None = None,
        judge: Callable[[StructuredOutputs], None] | None = None,
        reasoning: str = AUTO,
    ) -> None:
        self.tokenizer, self.facts, self._judge = tokenizer, facts, judge
        self.reader = PromptReader(
            tokenizer, facts.vocab, facts.max_model_len, facts.scored, facts.adapters, facts.best,
            find_marks(reasoning, tokenizer.marks.fullest_template),
        )  # fmt: skip
        self._ids = count()
        self._seeds = SystemRandom() if seed is None else Random(seed)

    def make_id(self) -> str:
        return f"request-{next(self._ids)}"

    def prepare(self, prompt: Prompt, params: Params, lane: RequestContext) -> PreparedPrompt:
        """A checked prompt with what is wanted of it.  Raises `RequestError`."""
        if isinstance(params, SamplingParams):
            if params.structured_outputs is not None and self._judge is not None:
                self._judge(params.structured_outputs)
            check_validated(params)
            return self.reader.read(prompt, params, lane)
        if isinstance(params, PoolingParams):
            return replace(self.reader.read(prompt, UNSAMPLED, lane, answer=0), pooling=params)
        ends = frozenset() if params.ignore_eos else self.facts.stop_ids
        params.check_ends(len(ends), self.facts.vocab)
        return replace(self.reader.read(prompt, UNSAMPLED, lane), beam=params)

    def make_collector(
        self, prepared: PreparedPrompt, id: str, arrival: float | None = None
    ) -> Collector:
        """Of a request for tokens; `arrival` where its clock starts later than it was read."""
        if prepared.beam is not None:
            return self._search(prepared, id)
        found = self._draw(prepared, id, arrival)
        if self._judge is not None and is_validated(prepared.params):
            return CheckedCollector(prepared, found, self._draw)
        return found

    def attempts(self, prepared: PreparedPrompt, first: Collector) -> Attempts | None:
        """At an answer that is checked elsewhere; None where it is not."""
        checked = (
            prepared.beam is None and prepared.pooling is None and is_validated(prepared.params)
        )
        return Attempts(prepared, first, self._draw) if checked else None

    def _draw(self, prepared: PreparedPrompt, id: str, arrival: float | None = None) -> Collector:
        params = prepared.params
        ends = frozenset() if params.ignore_eos else self.facts.stop_ids
        seed = params.seed
        request = Request(
            id=id,
            tokens=tuple(prepared.tokens),
            params=make_drawn_params(params),
            stop_ids=ends | frozenset(params.stop_token_ids),
            max_tokens=max(1, self._count_left(prepared, params.max_tokens)),
            seed=self._seeds.getrandbits(64) if seed is None else seed % 2**64,
            arrival=prepared.arrival if arrival is None else arrival,
            **asdict(prepared.lane),
            words=prepared.words,
        )
        return Collector(request, self.tokenizer, prepared.text, requested=params)

    def make_vector(self, prepared: PreparedPrompt, id: str) -> VectorCollector:
        """Of a request for the prompt's vector."""
        pooling = prepared.pooling
        # What a decoder makes of its first token does not depend on the others.
        seen = 1 if pooling is not None and pooling.pooling == "cls" else len(prepared.tokens)
        request = Request(
            id=id,
            tokens=tuple(prepared.tokens[:seen]),
            params=UNSAMPLED,
            max_tokens=0,
            arrival=prepared.arrival,
            **asdict(prepared.lane),
            pooling=pooling,
        )
        return VectorCollector(request, prepared.text, prepared.tokens)

    def _search(self, prepared: PreparedPrompt, id: str) -> Collector:
        beam = prepared.beam
        assert beam is not None
        shown = replace(UNSAMPLED, include_stop_str_in_output=beam.include_stop_str_in_output)
        request = Request(
            id=id,
            tokens=tuple(prepared.tokens),
            params=shown,
            stop_ids=frozenset() if beam.ignore_eos else self.facts.stop_ids,
            max_tokens=self._count_left(prepared, beam.max_tokens),
            arrival=prepared.arrival,
            **asdict(prepared.lane),
            beam=beam,
        )
        every = replace(shown, n=beam.beam_width)
        return Collector(request, self.tokenizer, prepared.text, requested=every)

    def _count_left(self, prepared: PreparedPrompt, wanted: int | None) -> int:
        """Tokens an answer may have."""
        left = self.facts.max_model_len - len(prepared.tokens)
        return left if wanted is None else min(left, wanted)


def list_special_tokens(tokenizer: Tokenizer) -> list[bytes]:
    """The special tokens, as a grammar names them."""
    found = (tokenizer.token_bytes(i, special=True) for i in sorted(tokenizer.special_ids))
    return [spelling for spelling in found if spelling]


def render_conversation(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    chat_template: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    longest: int | None = None,
    add_special: bool = False,
    bounds: RenderBounds = USUAL,
    **variables: Any,
) -> dict[str, Any]:
    """The prompt a chat template makes of messages: the model's, or the one that is given as text
    or by name; of a model without one, the messages line by line.  `variables` are documents,
    add_generation_prompt, continue_final_message, and the template's own switches.  Templates
    write BOS themselves; `add_special` adds it.  A prompt of more than `longest` tokens is refused,
    unread for the most part.
    """
    from flyweight.text.chat import PLAIN, choose, render  # Jinja is for chats alone
    from flyweight.text.messages import (
        check_calls,
        check_depth,
        check_mappings,
        join_text,
        prepare_messages,
        require_text,
    )

    listed = check_mappings("tools", tools)
    if variables.get("documents") is not None:
        variables["documents"] = check_mappings("documents", variables["documents"])
    bare = chat_template is None and not tokenizer.marks.templates
    if bare:
        _refuse_template_options(listed, variables)
    template = (
        PLAIN if bare else choose(tokenizer.marks.templates, chat_template, tools=bool(listed))
    )
    require_text(messages)
    check_calls(messages)
    conversation = prepare_messages(messages, template)
    for name, value in (("messages", conversation), ("tools", listed), *variables.items()):
        check_depth(name, value)
    text = render(template, conversation, tokenizer, tools=listed, bounds=bounds, **variables)
    text = replace_surrogates(text)
    ids = encode_prompt(tokenizer, text, longest, add_special=add_special or bare)
    made: dict[str, Any] = {"prompt": text, "prompt_token_ids": ids}
    if variables.get("continue_final_message") is True:
        made["continued"] = join_text(messages[-1].get("content"))
    return made


def _refuse_template_options(tools: object, variables: Mapping[str, Any]) -> None:
    """Raises `RequestError` where something is given that only a template could show a model."""
    plain = ("add_generation_prompt", "continue_final_message")
    given = ["tools"] if tools else []
    given += [name for name, value in variables.items() if name not in plain and value is not None]
    if given:
        raise RequestError(
            "has no effect: this model has no chat template; leave it out, or give a chat_template",
            given[0],
        )
