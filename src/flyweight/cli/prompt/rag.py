"""`flyweight prompt rag`: the prompt of a question on a context, packed to a token budget.

Invariant: stdout holds the prompt and nothing else; how many passages were left out is on stderr,
in the prompt and in the JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import expand
from flyweight.config import Settings
from flyweight.errors import ConfigError, nearest

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.prompts.rag import RagPrompt

CONSTRAINTS = ("choice", "grammar")
Question = Annotated[str, typer.Option(metavar="TEXT", help="The question to answer.")]
Context = Annotated[
    list[str],
    typer.Option(
        metavar="FILE",
        help="Passages, best first: the paragraphs of a text, or texts in .json or .jsonl.",
    ),
]
Budget = Annotated[
    int | None, typer.Option(metavar="TOKENS", help="Max tokens of the context.  [default: all]")
]
Instruction = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="The instruction; {not_found} in it is the text below."),
]
NotFound = Annotated[
    str, typer.Option(metavar="TEXT", help="The answer if the context does not have it.")
]
InstructionFirst = Annotated[
    bool,
    typer.Option("--instruction-first", help="Put the instruction first, for the prefix cache."),
]
Constrain = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Add structured_outputs to the JSON: choice (a sentence of the context or the text "
        "of --not-found) or grammar (one or two sentences).",
    ),
]
Model = Annotated[
    str, typer.Option("-m", "--model", metavar="MODEL", help="The model that gets the prompt.")
]


@expand
def rag(
    *,
    question: Question,
    context: Context,
    budget: Budget = None,
    instruction: Instruction = None,
    not_found: NotFound = "not found",
    instruction_first: InstructionFirst = False,
    constrain: Constrain = None,
    model: Model = "stories",
    source: opt.Source,
    as_json: opt.AsJson = False,
) -> None:
    """Make the prompt of a question on a context."""
    settings = Settings.of(model=model, **source)
    check_constraint(constrain, as_json)
    from flyweight.cli.show import show_loading
    from flyweight.describe import find, open_tokenizer
    from flyweight.prompts.passages import read_passages
    from flyweight.prompts.rag import RagTemplate

    own = {} if instruction is None else {"instruction": instruction}
    template = RagTemplate(not_found=not_found, instruction_first=instruction_first, **own)
    passages = read_passages(context)
    with show_loading() as listener:
        path = find(settings, listener)
    made = template.make(open_tokenizer(path), question, passages, budget)
    if as_json:
        print(json.dumps(make_document(made, constrain), ensure_ascii=False))
        return
    print(made.text, end="")
    print(f"context: {made.describe()}", file=sys.stderr)


def check_constraint(kind: str | None, as_json: bool) -> None:
    """Raises `ConfigError`."""
    if kind is None:
        return
    if kind not in CONSTRAINTS:
        hint = nearest(kind, CONSTRAINTS)
        allowed = f"{', '.join(CONSTRAINTS)}{hint}"
        raise ConfigError("is not valid", "constrain", value=kind, allowed=allowed)
    if not as_json:
        raise ConfigError("needs --json, which has the constraint", "constrain", value=kind)


def make_document(made: RagPrompt, constrain: str | None) -> dict[str, Any]:
    """The fields of a request, then what the prompt was made of."""
    document: dict[str, Any] = {"prompt": made.text, "messages": list(made.messages)}
    if constrain is not None:
        form = made.make_choice() if constrain == "choice" else made.make_grammar()
        value = getattr(form, constrain)
        document["structured_outputs"] = {constrain: value}
    facts = asdict(made)
    names = ("used", "left_out", "context_tokens", "budget")
    return document | {name: facts[name] for name in names}
