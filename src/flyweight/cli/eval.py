"""`flyweight eval`: the quality of a model, measured on a text."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.kernels import RunListener
    from flyweight.eval.perplexity import Perplexity
    from flyweight.eval.session import EvalSession
    from flyweight.eval.windows import EvalText, WindowPlan

app = typer.Typer(
    help="Measure the quality of a model on a text.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A .gguf file, a folder, or org/name.")]
Text = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Text in UTF-8.  [default: text-wikitext2/wiki.test.raw in FLYWEIGHT_DATA]",
    ),
]
Context = Annotated[int, typer.Option(metavar="TOKENS", help="Tokens in a window.")]
Stride = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS", help="New tokens in each window after the first.  [default: context / 2]"
    ),
]
LimitTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Max tokens to score.  [default: the whole text]")
]
Engine = Annotated[
    Values,
    opt.select_settings(
        "memory_limit", "threads", "activations", "kv_cache_dtype", "revision", "offline"
    ),
]


@app.callback()
def evaluate() -> None:
    """Measure the quality of a model on a text."""


@app.command("ppl")
@expand
def ppl(
    *,
    model: Model,
    text: Text = None,
    context: Context = 512,
    stride: Stride = None,
    limit_tokens: LimitTokens = None,
    engine: Engine,
    as_json: opt.AsJson = False,
) -> None:
    """Measure the perplexity of a text.

    The text is scored in windows, every token once.
    """
    from flyweight.eval.perplexity import Perplexity
    from flyweight.eval.session import EvalSession
    from flyweight.eval.windows import EvalText, WindowPlan

    plan, read = WindowPlan(context, stride, limit_tokens), EvalText.read(text)
    with show_progress(not as_json) as tell:
        session = EvalSession(model, read, plan, engine, tell)
        began = time.monotonic()
        found = Perplexity.of(session.score(lambda done, total: tell.round("scoring", done, total)))
        seconds = time.monotonic() - began
    if as_json:
        document = make_document(found) | describe_run(session, read, plan)
        rate = found.tokens / seconds
        print(json.dumps(document | {"seconds": round(seconds, 3), "tokens_per_s": round(rate, 1)}))
        return
    for line in format_perplexity(found):
        print(line)
    print(format_windows(found, plan, len(session.lead)))
    print(format_source(read, found.tokens, seconds))


@contextmanager
def show_progress(wanted: bool) -> Iterator[RunListener]:
    """A bar with the time left on stderr, at a terminal; nothing if it is not wanted."""
    from flyweight.bench.kernels import RunListener
    from flyweight.cli.bench.progress import show_measuring

    if not wanted:
        yield RunListener()
        return
    with show_measuring() as tell:
        yield tell


def make_document(found: Perplexity) -> dict[str, Any]:
    return {
        "perplexity": found.value,
        "perplexity_error": found.error,
        "nll": found.nll.mean,
        "nll_error": found.nll.error,
        "tokens": found.tokens,
        "windows": found.windows,
    }


def describe_run(session: EvalSession, text: EvalText, plan: WindowPlan) -> dict[str, Any]:
    """What figures were taken on, for scripts."""
    return {
        "model": str(session.path),
        "text": text.name,
        "text_sha256": text.digest,
        "context": plan.context,
        "stride": plan.step,
        "begins_with": list(session.lead),
    }


def format_perplexity(found: Perplexity) -> list[str]:
    nll, error = found.nll, found.error
    if error is None or nll.error is None:
        return [f"Perplexity:  {found.value:.4f} (one window: no error is known)"]
    return [
        f"Perplexity:  {found.value:.4f} ± {error:.4f}",
        f"Mean NLL:    {nll.mean:.5f} ± {nll.error:.5f} a token (standard error, by windows)",
    ]


def format_windows(found: Perplexity, plan: WindowPlan, lead: int) -> str:
    begins = ", each with the beginning token" if lead else ""
    return (
        f"Windows:     {found.windows} of {plan.context} tokens{begins}, "
        f"{plan.step} new in each after the first"
    )


def format_source(text: EvalText, tokens: int, seconds: float) -> str:
    from flyweight.validation.untrusted import printable

    return (
        f"Text:        {printable(text.name)}, SHA-256 {text.digest}..\n"
        f"Tokens:      {tokens} scored in {seconds:.1f} s, {tokens / seconds:.0f} a second"
    )
