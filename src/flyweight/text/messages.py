"""Messages, tools and documents as callers give them, made fit for a template.

Invariant: what a template sees is a copy made of JSON's types; the caller's is never changed.
Forms are OpenAI's and transformers'; knows no model and renders nothing.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from flyweight.errors import RequestError, nearest
from flyweight.text.template_reads import reads_parts
from flyweight.validation.untrusted import shown

Message = Mapping[str, Any]

REASONING = ("reasoning_content", "thinking", "reasoning")  # names for the same field
OPTIONS = ("add_generation_prompt", "continue_final_message", "documents")
TEXTS = ("text", "input_text", "output_text")  # types of parts; templates know the first
DEEPEST = 128  # levels of what templates are given: who walks them has a stack of some hundreds
OWN = (  # never a template's switch: what is passed in addition to them
    "messages", "tools", "chat_template", "tokenizer", "template", "longest", "add_special",
    "bounds",
)  # fmt: skip


def check(messages: Sequence[Message]) -> None:
    """Raises `RequestError` unless every message has a role and content."""
    if isinstance(messages, str | Mapping) or not messages:
        raise RequestError(
            "is not valid", "messages", value=messages, allowed="a list of one or more messages"
        )
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                "is not valid",
                f"messages.{i}",
                value=message,
                allowed="a mapping with a role (system, user, assistant) and content",
            )


def require_text(messages: Sequence[Message]) -> None:
    """Raises `RequestError` where content is neither text nor parts of text: a template would put
    Python's way to write it into the prompt, or leave it out.
    """
    check(messages)
    for i, message in enumerate(messages):
        content, place = message.get("content"), f"messages.{i}.content"
        if content is None or isinstance(content, str):
            continue
        if not isinstance(content, list | tuple):
            raise RequestError("is not valid", place, value=content, allowed="text, or parts")
        for j, part in enumerate(content):
            _check_text_part(part, f"{place}.{j}")


def check_calls(messages: Sequence[Message]) -> None:
    """Raises `RequestError` where a call of an earlier answer does not say what was called: what
    templates make of it is theirs to say, so it is not given to them.
    """
    for i, message in enumerate(messages):
        calls = message.get("tool_calls")
        for j, call in enumerate(calls if isinstance(calls, list | tuple) else ()):
            if isinstance(call, Mapping):
                _check_call(call, f"messages.{i}.tool_calls.{j}")


def _check_call(call: Mapping[str, Any], place: str) -> None:
    """Raises `RequestError` unless a call has a name, and arguments that are an object or text."""
    function = call.get("function", call)  # transformers' form has nothing around it
    if not isinstance(function, Mapping):
        at, found, allowed = f"{place}.function", function, "an object with name and arguments"
    elif not function.get("name") or not isinstance(function["name"], str):
        at, found, allowed = (
            f"{place}.function.name",
            function.get("name"),
            "the name of a function",
        )
    elif not isinstance(function.get("arguments"), Mapping | str | None):
        at, found = f"{place}.function.arguments", function["arguments"]
        allowed = "an object, or text that holds one"
    else:
        return
    raise RequestError("is not valid", at, value=found, allowed=allowed)


def _check_text_part(part: Any, place: str) -> None:
    """Raises `RequestError` unless a part of a content is text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping):
        raise RequestError(
            "is not valid", place, value=part, allowed="an object with type and text"
        )
    if kind not in TEXTS:
        allowed = ", ".join(map(repr, TEXTS))
        raise RequestError(
            "is not valid",
            f"{place}.type",
            value=kind,
            allowed=f"{allowed}: only text is supported",
        )
    if not isinstance(part.get("text"), str):
        raise RequestError("is not valid", f"{place}.text", value=part.get("text"), allowed="text")


def prepare_messages(messages: Sequence[Message], template: str) -> list[Message]:
    """Messages in the form of OpenAI's clients as templates expect them: arguments of tool calls
    as objects, and text in parts as one text where a template does not take parts.
    """
    check(messages)
    parts = reads_parts(template)
    renamed = map(_rename_text_parts, messages)
    return [
        _parse_arguments(message if parts else _join_message_text(message)) for message in renamed
    ]


def to_plain(value: Any) -> Any:
    """A copy made of JSON's types alone: templates see no object with methods of its own."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {to_plain(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (
            type(value)(map(to_plain, value))
            if type(value) in (list, tuple)
            else [*map(to_plain, value)]
        )
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    for name in ("item", "model_dump"):  # NumPy's numbers, pydantic's models
        if callable(getattr(value, name, None)) and not getattr(value, "shape", ()):
            return to_plain(getattr(value, name)())
    return f"<{type(value).__name__}>"


def check_depth(name: str, value: Any) -> None:
    """Raises `RequestError` where lists and mappings are nested too deeply; no recursion on
    what a client sent.
    """
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in _list_items(one)]
        if not level:
            return
    raise make_depth_error(name)


def make_depth_error(name: str) -> RequestError:
    return RequestError("is nested too deeply", name, allowed=f"{DEEPEST} levels")


def _list_items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def merge_options(given: Mapping[str, Any], own: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options of a chat, and over them the template's own switches; others are refused."""
    for name in given:
        if name not in OPTIONS:
            raise RequestError(
                f"is not an option of chat{nearest(name, OPTIONS)}; pass switches of the "
                "model's template in chat_template_kwargs",
                name,
            )
    if own is not None and not isinstance(own, Mapping):
        name = "chat_template_kwargs"
        raise RequestError("is not valid", name, value=own, allowed="a mapping")
    for name in own or {}:
        if not isinstance(name, str) or name in OWN:
            raise RequestError(
                f": {shown(name)} is not a switch of a template", "chat_template_kwargs"
            )
    return {**given, **(own or {})}


def check_mappings(name: str, given: object) -> list[Any] | None:
    """Tools or documents: a list of mappings, or none."""
    if given is None:
        return None
    listed = list(given) if isinstance(given, list | tuple) else [given]
    for i, one in enumerate(listed):
        if not isinstance(one, Mapping) or not isinstance(given, list | tuple):
            kind = ", each a function's JSON schema" if name == "tools" else ""
            raise RequestError(
                "is not valid", f"{name}.{i}", value=one, allowed=f"a list of mappings{kind}"
            )
    return listed


def drop_none_fields(message: dict[str, Any]) -> dict[str, Any]:
    """Without fields that are none: templates test whether a field exists."""
    return {name: value for name, value in message.items() if value is not None}


def add_reasoning_aliases(message: dict[str, Any]) -> dict[str, Any]:
    """Reasoning under the names templates read it by, whichever the caller chose."""
    found = next((message[key] for key in REASONING if message.get(key) is not None), None)
    if found is None:
        return message
    return {"thinking": found, **message, "reasoning_content": found}


def join_text(content: Any) -> str | None:
    """A message's content as one text, a line for each of its parts; none where it is not text."""
    if not isinstance(content, list | tuple):
        return content if isinstance(content, str) else None
    texts = [part.get("text") for part in content if isinstance(part, Mapping)]
    if len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
        return None
    return "\n".join(map(str, texts))


def _rename_text_parts(message: Message) -> Message:
    """Parts of text under the one name that templates know."""
    parts = message.get("content")
    if not isinstance(parts, list | tuple):
        return message
    named = [
        {**part, "type": TEXTS[0]}
        if isinstance(part, Mapping) and part.get("type") in TEXTS[1:]
        else part
        for part in parts
    ]
    return {**message, "content": named}


def _join_message_text(message: Message) -> Message:
    parts = message.get("content")
    if not isinstance(parts, list | tuple):
        return message
    text = join_text(parts)
    return message if text is None else {**message, "content": text}


def _parse_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return message
    return {**message, "tool_calls": [_parse_call(call) for call in calls]}


def _parse_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    except RecursionError:
        raise make_depth_error("messages") from None
    except ValueError:
        return call
