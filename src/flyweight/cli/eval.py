"""`flyweight eval`: the quality of a model, measured on a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from flyweight import __version__
from flyweight.cli import options as opt
from flyweight.cli.help import HelpCommand, make_group
from flyweight.cli.parameters import Values, expand
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.kernels import RunListener
    from flyweight.eval.divergence import Divergence
    from flyweight.eval.perplexity import Perplexity
    from flyweight.eval.session import EvalSession
    from flyweight.eval.store import StoreHeader, StoreReader
    from flyweight.eval.windows import EvalText, WindowPlan


class EvalGroup(TyperGroup):
    """The commands of `eval`; `eval --stamp FILE` is another spelling of `eval stamp FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spelt = ["stamp", *args[1:]] if args[:1] == ["--stamp"] else args
        return super().parse_args(ctx, spelt)


app = make_group(cls=EvalGroup, help="Measure the quality of a model on a text.")

Text = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Text in UTF-8.  [default: text-wikitext2/wiki.test.raw in FLYWEIGHT_DATA, "
        "else Python's help texts]",
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
KldTokens = Annotated[int, typer.Option(metavar="N", help="Max tokens to score.")]
Against = Annotated[str, typer.Option(metavar="FULL", help="The model to compare with.")]
Save = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Keep the full model's log-probabilities in a file."),
]
Logits = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Read a file that --save wrote, instead of running the full model."
    ),
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


@app.command("ppl", cls=HelpCommand)
@expand
def ppl(
    *,
    model: opt.Model,
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
        scored = session.score(partial(tell.round, "scoring"))
    found, seconds = Perplexity.of(scored.logprobs), scored.seconds
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
        "activations": session.settings.activations,
        "kv_cache_dtype": session.settings.kv_cache_dtype,
        "flyweight": __version__,
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


@app.command("kld", cls=HelpCommand)
@expand
def kld(
    *,
    model: opt.Model,
    against: Against,
    text: Text = None,
    context: Context = 512,
    stride: Stride = None,
    limit_tokens: KldTokens = 10_000,
    save: Save = None,
    logits: Logits = None,
    engine: Engine,
    as_json: opt.AsJson = False,
) -> None:
    """Measure how far a model's predictions are from a full model's.

    Both score the same windows of the text; the full model runs first.
    """
    from flyweight.eval import divergence
    from flyweight.eval.session import EvalSession
    from flyweight.eval.windows import EvalText, WindowPlan

    if save and logits:
        raise ConfigError("cannot be combined with logits", "save")
    plan, read = WindowPlan(context, stride, limit_tokens), EvalText.read(text)
    with show_progress(not as_json) as tell:
        session = EvalSession(model, read, plan, engine, tell)
        full = EvalSession(against, read, plan, engine, tell)
        divergence.check_vocabularies(session, full)
        header = divergence.make_header(full, read, plan)
        with open_full(full, header, save, logits, tell) as reader:
            found = divergence.compare(session, reader, partial(tell.round, "scoring the model"))
    if as_json:
        document = make_divergence(found) | make_document(found.perplexity)
        run = describe_run(session, read, plan) | {"against": str(full.path)}
        print(json.dumps(document | run | {"seconds": round(found.seconds, 3)}))
        return
    for line in format_divergence(found):
        print(line)
    print(format_windows(found.perplexity, plan, len(session.lead)))
    print(format_source(read, found.perplexity.tokens, found.seconds))


@contextmanager
def open_full(
    full: EvalSession, header: StoreHeader, save: str | None, logits: str | None, tell: RunListener
) -> Iterator[StoreReader]:
    """The full model's rows: of a file, or computed into one, which is removed if it is not to be
    saved.
    """
    from flyweight.eval.divergence import record
    from flyweight.eval.store import StoreReader

    with TemporaryDirectory(prefix="flyweight-eval-") as folder:
        path = Path(logits or save or Path(folder) / "logits").expanduser()
        if logits is None:
            record(full, header, path, partial(tell.round, "scoring the full model"))
        with closing(StoreReader(path)) as reader:
            reader.header.check(header, path)
            yield reader


def make_divergence(found: Divergence) -> dict[str, Any]:
    return {
        "kld_mean": found.mean.mean,
        "kld_mean_error": found.mean.error,
        "kld_median": found.median,
        "kld_p99": found.p99,
        "kld_p99_9": found.p999,
        "kld_max": found.most,
        "top1_agreement": found.agreement.mean,
        "top1_agreement_error": found.agreement.error,
    }


def format_divergence(found: Divergence) -> list[str]:
    mean, same = found.mean, found.agreement
    return [
        f"Mean KLD:    {mean.mean:.6f}{format_error(mean.error, 6)} nats a token",
        f"KLD:         median {found.median:.6f}, 99 % {found.p99:.6f}, "
        f"99.9 % {found.p999:.6f}, max {found.most:.6f}",
        f"Same top 1:  {100 * same.mean:.2f}{format_error(same.error, 2, 100)} %",
        *format_perplexity(found.perplexity),
    ]


def format_error(error: float | None, places: int, scale: float = 1) -> str:
    return "" if error is None else f" ± {scale * error:.{places}f}"
