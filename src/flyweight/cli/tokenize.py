"""`flyweight tokenize [TEXT]`: the ids of a text and the pieces they represent.

Reads a model's tokenizer alone, so that a vocabulary without weights will do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import expand
from flyweight.cli.run import read_prompt
from flyweight.config import Settings
from flyweight.errors import RequestError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.text.tokenizer import Tokenizer

Text = Annotated[str | None, typer.Argument(metavar="TEXT|-", help="Text, quoted; - is stdin.")]
File = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--file",
        metavar="FILE",
        help="File with the text, or with text before it; - is stdin.",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "-m", "--model", metavar="MODEL",
        help="A .gguf file, a folder, a tokenizer's file, or org/name.",
    ),
]  # fmt: skip
AddSpecial = Annotated[
    bool,
    typer.Option(
        "--add-special/--no-bos",
        help="Add BOS and EOS as the vocabulary requires.  [default: on]",
        show_default=False,
    ),
]
ParseSpecial = Annotated[
    bool,
    typer.Option(
        help="Read special tokens written in the text.  [default: on]", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token: its piece as the vocabulary spells it, and what it adds to a text (`bytes` where
    that is no whole character).
    """

    id: int
    piece: str
    text: str
    bytes: list[int] | None
    special: bool


@expand
def tokenize(
    *,
    text: Text = None,
    model: Model = "stories",
    file: File = None,
    add_special: AddSpecial = True,
    parse_special: ParseSpecial = True,
    source: opt.Source,
    as_json: opt.AsJson = False,
) -> None:
    """Show the tokens of a text: ids, pieces and their number."""
    settings = Settings.of(model=model, **source)
    given = read_prompt(None if text == "-" else text, "-" if text == "-" else file)
    if given is None:
        raise RequestError("there is not text; give it as an argument, - for stdin, or -f FILE")
    from flyweight.cli.show import show_loading
    from flyweight.describe import find, open_tokenizer

    with show_loading() as listener:
        path = find(settings, listener)
    tokenizer = open_tokenizer(path)
    ids = tokenizer.encode(given, add_special, parse_special)
    found = [describe_token(tokenizer, token) for token in ids]
    if as_json:
        print(json.dumps(make_document(found, given, str(path)), ensure_ascii=False))
    else:
        show(found, given)


def describe_token(tokenizer: Tokenizer, token: int) -> TokenRow:
    """What there is to say of an id."""
    raw = tokenizer.token_bytes(token, special=True)
    try:
        text, split = raw.decode("utf-8"), None
    except UnicodeDecodeError:
        text, split = raw.decode("utf-8", "replace"), list(raw)
    special = token in tokenizer.special_ids
    return TokenRow(token, tokenizer.piece(token), text, split, special)


def make_document(found: Sequence[TokenRow], text: str, path: str) -> dict[str, Any]:
    """Everything the table shows, for scripts."""
    tokens = [asdict(token) for token in found]
    return {"path": path, "count": len(found), "characters": len(text), "tokens": tokens}


def show(found: Sequence[TokenRow], text: str) -> None:
    """A table, a token a row, and a line of figures."""
    from flyweight.cli.show import make_console, make_table
    from flyweight.validation.untrusted import printable

    console, table = make_console(), make_table("", "", "id", "piece", "text", "")
    table.title = None
    for column in (0, 1):
        table.columns[column].justify = "right"
    for i, token in enumerate(found):
        raw = " ".join(f"{byte:02x}" for byte in token.bytes or ())
        shown = f"bytes {raw}" if raw else repr(token.text)
        mark = "special" if token.special else ""
        table.add_row(str(i), str(token.id), printable(token.piece), printable(shown), mark)
    if found:
        console.print(table)
    each = f" · {len(text) / len(found):.2f} characters a token" if found else ""
    figures = f"{format_count(len(found), 'token')} · {format_count(len(text), 'character')}{each}"
    console.print(figures, highlight=False)


def format_count(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
