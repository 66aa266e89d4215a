"""OpenAI's /v1/chat/completions: from a conversation to a prompt, and the format of its answer.

Invariant: tools and reasoning options are checked before the template sees them.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyweight.errors import OWN_NAMES, FieldNames, RequestError, field_names
from flyweight.params.structured import NAME, VALIDATE, StructuredOutputs
from flyweight.params.tasks import BeamSearchParams
from flyweight.requests.preparing import render_conversation
from flyweight.requests.prompts import PreparedPrompt, RequestContext
from flyweight.server.api_server import ApiServer, get_tenant
from flyweight.server.apis.answer import answer
from flyweight.server.apis.openai.chat_schema import (
    ChatBody,
    check_template_fields,
    make_effort_variables,
)
from flyweight.server.apis.openai.chat_stream import ChatWriter
from flyweight.server.apis.openai.idle_time import apply_idle_time
from flyweight.server.apis.output_formats import form_keywords
from flyweight.server.apis.prompt_fields import check_size, get_max_bytes, make_params, truncate_ids
from flyweight.server.apis.tools import Tools
from flyweight.server.request_model import RequestModel
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import ignore_keywords
from flyweight.text.chat import FAILS, TemplateFault
from flyweight.text.messages import check_depth, merge_options
from flyweight.text.tokenizer import Tokenizer
from flyweight.text.tools.parser import AnswerFormat
from flyweight.text.tools.xmlcall import read_types
from flyweight.types import SamplingParams

BROKEN = (
    "this server's own chat template (--chat-template) fails on this conversation; it is noted in "
    "its log"
)


async def create_chat_completion(server: ApiServer, request: Request, body: ChatBody) -> Response:
    model = await server.open_to_generate(request, body.model)
    apply_idle_time(server, request, body.model, body.ttl)
    with field_names({"prompt": "messages"} | name_logprobs(body.top_logprobs)):
        prepared, reading = await prepare_chat(model, request, body, model.defaults)
    write = partial(ChatWriter, body, reading)
    return await answer(server, model, request, prepared, write, stream=bool(body.stream))


def name_logprobs(alternatives: int | None) -> dict[str, str]:
    """The field names of errors, for a body that has a count next to `logprobs`."""
    return {"logprobs": "top_logprobs"} if alternatives else {}


async def prepare_chat(
    model: RequestModel,
    request: Request,
    body: ChatBody,
    defaults: dict[str, Any],
    schema: str = "",
    names: FieldNames = OWN_NAMES,
) -> tuple[list[PreparedPrompt], AnswerFormat]:
    """A conversation as a checked prompt, and the format of its answer; `names` are the API's field
    names.  Raises `RequestError`.
    """
    body = check_template_fields(model, request, body, names)
    tools = read_tools(model, body)
    params = make_params(body, body.to_options(defaults))
    context = model.make_context(
        body.model, body.cache_salt, body.priority, body.return_cache_explanation, body.return_cost
    )
    tokenizer = model.cache_tokens(get_tenant(request), body.cache_salt)
    prompt = await model.run_in_thread(render_prompt, model, body, tokenizer)
    reading = make_answer_format(model, body, tools, prompt["prompt"])
    place = schema or body.form_place
    if isinstance(params, BeamSearchParams):
        if tools.all:
            raise RequestError("cannot be combined with use_beam_search", "tools")
        return await model.prepare([prompt], params, context, place), reading
    ignore_keywords(request, [*form_keywords(params.structured_outputs), *tools.ignored_keywords])
    params = await drop_text_format(model, tools, params, place)
    if params.structured_outputs is not None:
        reading = model.chat_format.apply_constraint(reading, params.structured_outputs)
    params = show_needed_tokens(model, body, params, reading)
    form = params.structured_outputs
    if form is None:
        prepared = await prepare_calls(model, tools, prompt, params, context, reading)
    elif tools.required:
        raise RequestError(
            "requires a tool call and cannot be combined with structured_outputs or "
            "grammar; leave one of them out",
            "tool_choice",
        )
    else:
        prepared = await model.prepare([prompt], params, context, place)
        if tools.may_call_instead(form, reading):
            if form.validated:
                where = f"{NAME}.strictness"
                raise RequestError(f"= {VALIDATE!r} cannot be combined with tools", where)
            reading = replace(reading, either=True)
            prepared = await allow_calls(model, tools, prepared, reading, form)
    model.counts.offered += bool(tools.all)
    model.counts.reasoned += reading.reasoning is not None
    return prepared, reading


async def drop_text_format(
    model: RequestModel, tools: Tools, params: SamplingParams, place: str
) -> SamplingParams:
    """The options without a JSON format if a call is required: the format applies to text, and the
    answer will be a call.  Raises `RequestError` if the format is wrong.
    """
    form = params.structured_outputs
    if form is None or not tools.required or form.kind not in ("json", "json_object"):
        return params
    await model.constrain(form, place)
    return replace(params, structured_outputs=None)


async def prepare_calls(
    model: RequestModel,
    tools: Tools,
    prompt: dict[str, Any],
    params: SamplingParams,
    context: RequestContext,
    reading: AnswerFormat,
) -> list[PreparedPrompt]:
    """A prompt whose answer is only constrained by its tools."""
    left = params.max_tokens or model.max_model_len
    form = await model.run_in_thread(tools.make_constraint, model.chat_format, reading, left)
    try:
        return await model.prepare(
            [prompt], replace(params, structured_outputs=form), context, "tools"
        )
    except RequestError as error:
        await raise_tool_error(model, tools, error)
        raise


async def allow_calls(
    model: RequestModel,
    tools: Tools,
    prepared: list[PreparedPrompt],
    reading: AnswerFormat,
    form: StructuredOutputs,
) -> list[PreparedPrompt]:
    """Prompts whose answers were constrained to a (checked) format, and may be calls instead now.
    Raises `RequestError`.
    """
    made = await model.run_in_thread(tools.make_either_constraint, model.chat_format, reading, form)
    if made is None:
        return prepared
    try:
        await model.constrain(made, "tools")
    except RequestError as error:
        await raise_tool_error(model, tools, error)
        raise
    return [replace(one, params=replace(one.params, structured_outputs=made)) for one in prepared]


async def raise_tool_error(model: RequestModel, tools: Tools, error: RequestError) -> None:
    """Raises the error of the tool whose schema does not compile, if that is the reason."""
    if error.code == "bad_constraint":
        for path, schema in tools.list_schemas():
            await model.constrain(schema, path)


def read_tools(model: RequestModel, body: ChatBody) -> Tools:
    """Raises `RequestError`."""
    return Tools(body.tools, body.tool_choice, body.parallel_tool_calls, model.settings)


def render_prompt(
    model: RequestModel, body: ChatBody, tokenizer: Tokenizer, answer: int = 1
) -> dict[str, Any]:
    """The prompt that the model's template makes of the messages, with room for `answer` tokens;
    `tokenizer` is the model's, which may know the prompt.  Raises `RequestError`.
    """
    given = {
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": body.goes_on,
        "documents": body.documents,
    }
    options = {name: value for name, value in given.items() if value is not None}
    messages = [message.to_chat() for message in body.messages]
    whole = body.truncate_prompt_tokens is not None  # read to its end, however long
    tools = read_tools(model, body).declared or None
    if whole:
        read = {"messages": messages, "tools": tools, "documents": body.documents}
        for name, value in read.items():
            check_depth(name, value)
            check_size(name, str(value), get_max_bytes(model))
    theirs = {**make_effort_variables(model, body), **(body.chat_template_kwargs or {})}
    own = merge_options(options, {**model.settings.template_defaults, **theirs})
    longest = model.max_model_len
    added = body.add_special_tokens
    try:
        made = render_conversation(
            tokenizer,
            messages,
            longest=None if whole else longest,
            tools=tools,
            # templates write their special tokens themselves
            add_special=model.chat_format.plain if added is None else added,
            bounds=model.settings.templates,
            **own,
        )
    except TemplateFault as fault:  # its text is Python's: the client gets the kind
        model.log.event("chat_template", failed=fault.kind, line=fault.line)
        if model.settings.chat_template:
            raise HttpError(500, BROKEN, code="chat_template") from None
        line = "" if fault.line is None else f" in its line {fault.line}"
        raise RequestError(f"{FAILS} fails ({fault.kind}{line})", "messages") from None
    return {
        **made,
        "prompt_token_ids": truncate_ids(made["prompt_token_ids"], body, longest - answer),
    }


def make_answer_format(
    model: RequestModel, body: ChatBody, tools: Tools, prompt: str
) -> AnswerFormat:
    """The format that the answer is parsed with."""
    found = model.chat_format.make_answer_format(prompt, body.continued, tools.allowed, tools.most)
    found = replace(found, required=bool(tools.required))
    if found.calls is None or not found.calls.tagged:
        return found
    return replace(
        found, typed={name: read_types(f.parameters) for name, f in tools.allowed.items()}
    )


def show_needed_tokens(
    model: RequestModel, body: ChatBody, params: SamplingParams, reading: AnswerFormat
) -> SamplingParams:
    """The options, with special tokens in the text if parsing the answer needs them."""
    if body.skip_special_tokens is None and model.chat_format.needs_special_tokens(reading):
        return replace(params, skip_special_tokens=False)
    return params
