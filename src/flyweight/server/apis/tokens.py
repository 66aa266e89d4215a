"""Text to ids and back, messages to text, and facts about the vocabulary: llama-server's and vLLM's
routes.

Invariant: the ids are those that a request with the same text or messages would run.  What is not
known of a model is left out or null; no path of a file is shown.
"""

from typing import Any

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from flyweight import __version__
from flyweight.errors import OWN_NAMES, FieldNames, RequestError, field_names
from flyweight.requests.prompts import check_id_range
from flyweight.server.api_server import ApiServer, get_tenant
from flyweight.server.apis.fields import Fields
from flyweight.server.apis.llamacpp.completion import DEFAULTS, make_settings
from flyweight.server.apis.openai.chat import render_prompt
from flyweight.server.apis.openai.chat_schema import (
    ChatBody,
    Message,
    Switches,
    check_template_fields,
)
from flyweight.server.apis.openai.content_blocks import make_chat_body
from flyweight.server.apis.openai.responses import NAMES, ResponseBody
from flyweight.server.apis.prompt_fields import (
    check_size,
    choose_source,
    get_max_bytes,
    require_source,
)
from flyweight.server.apis.sampling_fields import Id, make_sampling_params
from flyweight.server.apis.tools import TOOLS, Tool
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.replies import ignore_also, reply

SOURCES = ("prompt", "content", "messages")  # one of them is what is tokenised
OF_TEXT = ("add_special", "parse_special")
OF_MESSAGES = (
    "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "documents",
    "tools",
)  # fmt: skip
# Fields that cannot be combined with a source.
EXCLUDED = {"prompt": OF_MESSAGES, "content": OF_MESSAGES, "messages": OF_TEXT}


class TokenizeBody(Fields):
    """Text (`prompt` in vLLM's API, `content` in llama-server's) or messages."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [require_source(name, EXCLUDED[name]) for name in SOURCES]}
    )

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, fail_fast=True)
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Switches | None = None
    documents: list[dict[str, Any]] | None = Field(None, fail_fast=True)
    tools: list[Tool] | None = TOOLS

    def read_ids(self, model: ServedModel, request: Request) -> list[int]:
        """Raises `RequestError`."""
        source = choose_source(self, SOURCES)
        excluded = next(
            (name for name in EXCLUDED[source] if getattr(self, name) is not None), None
        )
        if excluded is not None:
            raise RequestError(f"cannot be combined with {source}; leave it out", excluded)
        if self.messages is not None:
            taken = ("messages", "add_special_tokens", *OF_MESSAGES)
            own = {name: getattr(self, name) for name in taken}
            body = check_template_fields(model, request, ChatBody(**own))
            prompt = render_prompt(model, body, model.tokenizer)
            found: list[int] = prompt["prompt_token_ids"]
            return found
        text = self.prompt if self.content is None else self.content
        check_size(source, text or "", model.settings.max_tokenize_bytes)
        special = (self.add_special_tokens, self.add_special, self.content is None)
        return model.tokenizer.encode(
            text or "",
            add_special=next(flag for flag in special if flag is not None),
            parse_special=self.parse_special is not False,
        )


class DetokenizeBody(Fields):
    """Ids whose text is requested."""

    model: str | None = None
    tokens: list[Id] = Field(fail_fast=True)


async def tokenize(server: ApiServer, request: Request, body: TokenizeBody) -> Response:
    model = await server.open(request, body.model)
    return await model.run_in_thread(lambda: reply(make_tokenize_reply(model, request, body)))


def make_tokenize_reply(model: ServedModel, request: Request, body: TokenizeBody) -> dict[str, Any]:
    """Raises `RequestError`."""
    ids = body.read_ids(model, request)
    found: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": model.max_model_len,
        "tokens": ids,
    }
    if body.with_pieces:
        found["tokens"] = [{"id": i, "piece": _spell_token(model, i)} for i in ids]
    if body.return_token_strs:
        found["token_strs"] = [model.tokenizer.piece(i) for i in ids]
    return found


async def detokenize(server: ApiServer, request: Request, body: DetokenizeBody) -> Response:
    model = await server.open(request, body.model)
    check_id_range("tokens", body.tokens, model.preparer.facts.vocab)
    return await model.run_in_thread(lambda: reply(make_detokenize_reply(model, body.tokens)))


def make_detokenize_reply(model: ServedModel, ids: list[int]) -> dict[str, Any]:
    """Raises `RequestError` if their text is too long: a single id may represent much text."""
    text = model.tokenizer.decode(ids, False)
    check_size("tokens", text, get_max_bytes(model))
    return {"prompt": text, "content": text}


async def apply_template(server: ApiServer, request: Request, body: ChatBody) -> Response:
    """llama-server's: the prompt that the template makes of a conversation."""
    prompt = await _render(await server.open(request, body.model), request, body)
    return reply({"prompt": prompt["prompt"]})


async def count_chat_tokens(server: ApiServer, request: Request, body: ChatBody) -> Response:
    """The tokens of a conversation, as the model's template writes it."""
    return _reply_count(await _render(await server.open(request, body.model), request, body))


async def count_response_tokens(
    server: ApiServer, request: Request, body: ResponseBody
) -> Response:
    """The tokens of a prompt of /v1/responses."""
    with field_names(NAMES):
        chat_body = make_chat_body(body.to_chat())
        model = await server.open(request, body.model)
        return _reply_count(await _render(model, request, chat_body, NAMES))


async def _render(
    model: ServedModel, request: Request, body: ChatBody, names: FieldNames = OWN_NAMES
) -> dict[str, Any]:
    model.preparer.reader.check_ids(make_sampling_params(body.to_options(model.defaults)))
    if body.ttl is not None:  # nothing runs
        ignore_also(request, "ttl")
    body = check_template_fields(model, request, body, names)
    tokenizer = model.cache_tokens(get_tenant(request), body.cache_salt)
    return await model.run_in_thread(render_prompt, model, body, tokenizer)


def _reply_count(prompt: dict[str, Any]) -> Response:
    return reply(
        {"object": "response.input_tokens", "input_tokens": len(prompt["prompt_token_ids"])}
    )


def _spell_token(model: ServedModel, token: int) -> str | list[int]:
    """A token's text, or its bytes if they are not valid UTF-8."""
    raw = model.tokenizer.token_bytes(token, special=True)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def get_props(server: ApiServer, request: Request) -> Response:
    """The defaults of /completion, the context, and the chat template."""
    model = await server.open(request)
    settings = make_settings(make_sampling_params({**DEFAULTS, **model.defaults}))
    context = model.max_model_len
    return reply(
        {
            "default_generation_settings": {"n_ctx": context, "params": settings},
            "total_slots": model.client.facts["max_num_seqs"],
            "model_path": model.names[0],
            "model_alias": model.names[0],
            "modalities": {"vision": False, "audio": False},
            "chat_template": model.tokenizer.chat_template or "",
            **_spell_marks(model),
            "build_info": f"flyweight {__version__}",
            "is_sleeping": False,
        }
    )


async def get_tokenizer_info(server: ApiServer, request: Request) -> Response:
    """The vocabulary as in a tokenizer_config.json."""
    model = await server.open(request)
    return reply(
        {
            "tokenizer_class": type(model.tokenizer.codec).__name__,
            "model_max_length": model.max_model_len,
            "vocab_size": model.tokenizer.vocab_size,
            "add_bos_token": model.tokenizer.add_bos,
            **_spell_marks(model),
            "pad_token": None,
            "chat_template": model.tokenizer.chat_template,
        }
    )


def _spell_marks(model: ServedModel) -> dict[str, Any]:
    """The text of the tokens that begin and end a sequence."""
    ids = {"bos_token": model.tokenizer.bos_id, "eos_token": model.tokenizer.eos_id}
    return {
        name: None if token is None else model.tokenizer.piece(token) for name, token in ids.items()
    }
