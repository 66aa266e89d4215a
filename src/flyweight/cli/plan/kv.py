"""`flyweight plan kv [MODEL]`: memory of the K/V cache, and the batches that fit."""

from __future__ import annotations

from typing import Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.plan.models import ModelChoice, read_outline
from flyweight.cli.reports import PlotOutput
from flyweight.config import Settings


@expand
def kv(
    *,
    choice: ModelChoice,
    seq: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Tokens of a sequence.  [default: the model's]"),
    ] = None,
    batch: Annotated[str, typer.Option(metavar="N", help="Sequences at once.")] = "1",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for weights and K/V.")
    ] = "24GiB",
    bits: Annotated[str, typer.Option(metavar="N", help="Bits of a weight.")] = "16",
    engine: Annotated[Values, opt.select_settings("kv_cache_dtype", "revision", "offline")],
    out: PlotOutput,
) -> None:
    """Print the memory of the K/V cache, and the batches that fit.

    Well-known models need no file: llama-2-7b, llama-2-13b, llama-2-70b, llama-3-8b, llama-3-70b,
    llama-3.2-1b, llama-3.2-3b, mistral-7b, deepseek-v3.  Several models, between commas, are
    compared.
    """
    from flyweight.planning.cache_report import CacheUse, report_cache
    from flyweight.planning.quantities import parse_bits, parse_size, parse_whole

    out.check()
    settings = [Settings.of(model=name, **engine) for name in choice.list_names()]
    tokens = parse_whole(seq, "seq", 1, 1 << 24) if seq is not None else None
    use = (
        parse_whole(batch, "batch", 1, 1 << 20),
        settings[0].kv_cache_dtype,
        parse_bits(bits),
        parse_size(memory, "memory"),
    )
    outlines = [read_outline(one) for one in settings]
    longest = max(one.spec.context for one in outlines)
    out.show(report_cache(outlines, CacheUse(tokens or longest, *use)))
