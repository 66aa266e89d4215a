"""What a chat asks of the model's template: its tools, documents, effort and switches.

Invariant: what the template does not read has no effect, so it is refused by name, or, where the
server is lenient, left out and listed.
"""

from typing import Any

from starlette.requests import Request

from flyweight.errors import OWN_NAMES, FieldNames, RequestError, nearest, translated
from flyweight.server.apis.openai.chat_schema import ChatBody
from flyweight.server.apis.tools import demands_call
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.ignored import ignore_also
from flyweight.text.chat import choose
from flyweight.text.messages import OWN
from flyweight.text.template_reads import list_variables
from flyweight.validation.untrusted import shown

THINKING = ("enable_thinking", "thinking")  # how templates are told whether to reason
EFFORT = "reasoning_effort"
GOING_ON = "continue_final_message"  # is no template's to read
WITH_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


def check_template_fields(
    model: ServedModel, request: Request, body: ChatBody, names: FieldNames = OWN_NAMES
) -> ChatBody:
    """The body, or what of it has an effect; `names` are the dialect's.  Raises `RequestError`."""
    reads = find_variables(model, tools=bool(body.tools) and body.tool_choice != "none")
    if reads is None:
        return body
    less: dict[str, Any] = {}
    for name in _list_unused(model, body, reads):
        reject_unused_field(model, request, name, reads, names)
        less |= dict.fromkeys(WITH_TOOLS if name == "tools" else (name,))
    own = body.chat_template_kwargs or {}
    strays = [name for name in own if name not in (*reads, *OWN, GOING_ON)]
    for name in strays:
        reject_unused_field(model, request, f"chat_template_kwargs.{name}", reads, names)
    if strays:
        less["chat_template_kwargs"] = {n: v for n, v in own.items() if n not in strays}
    return body.model_copy(update=less) if less else body


def find_variables(model: ServedModel, *, tools: bool = False) -> frozenset[str] | None:
    """What the template reads; None where that is not known."""
    return list_variables(choose(model.tokenizer.marks.templates, None, tools=tools))


def make_effort_variables(model: ServedModel, body: ChatBody) -> dict[str, Any]:
    """How hard to think, and how much to say, in variables of templates: where one knows no efforts
    but whether to think, any effort is to think.
    """
    found: dict[str, Any] = {}
    if body.reasoning_effort is not None:
        found[EFFORT] = body.reasoning_effort
        thinks = body.reasoning_effort != "none"
        reads = find_variables(model, tools=bool(body.tools)) or frozenset({EFFORT})
        if not thinks or EFFORT not in reads:
            found |= dict.fromkeys(THINKING, thinks)
    if body.verbosity is not None:
        found["verbosity"] = body.verbosity
    return found


def make_thinking_variables(
    model: ServedModel, request: Request, place: str, wanted: bool | None
) -> dict[str, bool]:
    """The template's switch for reasoning, none where it has none and what is wanted is so anyway
    (or nothing is wanted).  Raises `RequestError` that names `place`.
    """
    reads = find_variables(model)
    found = [name for name in THINKING if reads is None or name in reads]
    if found and wanted is None and not model.settings.template_defaults.keys().isdisjoint(found):
        return {}  # as the operator says
    if found:
        return dict.fromkeys(found, wanted is not False)
    if wanted is not None and wanted is not (model.chat_format.reasoning is not None):
        reject_unused_field(model, request, place, reads or frozenset())
    return {}


def reject_unused_field(
    model: ServedModel,
    request: Request,
    name: str,
    reads: frozenset[str],
    names: FieldNames = OWN_NAMES,
) -> None:
    """Refuses a field that has no effect, or notes it.  Raises `RequestError`."""
    if model.settings.ignore_unknown_fields:
        ignore_also(request, translated(name, names))
        return
    field, _, switch = name.partition(".")
    theirs = sorted(reads - {"tools", "documents", "add_generation_prompt"})
    listed = f"; it reads: {', '.join(theirs)}" if theirs else ""
    place = f"{field}.{shown(switch)[1:-1]}" if switch else field
    raise RequestError(
        "has no effect: the model's chat template does not read it"
        f"{nearest(switch, theirs) if switch else ''}{listed[:300]}; leave it out",
        place,
    )


def _list_unused(model: ServedModel, body: ChatBody, reads: frozenset[str]) -> list[str]:
    """Fields that are asked for and have no effect."""
    found = []
    shown = bool(body.tools) and body.tool_choice != "none"
    if shown and "tools" not in reads and not demands_call(body.tool_choice):
        found.append("tools")
    if body.documents and "documents" not in reads:
        found.append("documents")
    if body.verbosity is not None and "verbosity" not in reads:
        found.append("verbosity")
    silent = body.reasoning_effort == "none" and model.chat_format.reasoning is None
    if body.reasoning_effort is not None and not silent and not {EFFORT, *THINKING} & reads:
        found.append(EFFORT)
    return found
