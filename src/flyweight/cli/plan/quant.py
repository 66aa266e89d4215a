"""`flyweight plan quant [MODEL]`: sizes by bits of a weight, and the loss that was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.plan.models import ModelChoice, read_outline
from flyweight.cli.reports import PlotOutput
from flyweight.config import Settings
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.ops.base import Ops
    from flyweight.planning.outline import ModelOutline


@expand
def quant(
    *,
    choice: ModelChoice,
    params: Annotated[
        str | None, typer.Option(metavar="N", help="Number of parameters: 7B, 500M.")
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for weights and K/V.")
    ] = "80GB",
    engine: Annotated[Values, opt.select_settings("kv_cache_dtype", "revision", "offline")],
    out: PlotOutput,
) -> None:
    """Print a model's size with fewer bits a weight.

    Also the context that a memory has left for it.  Losses of quality are the course's, and those
    that the model's passport has.
    """
    from flyweight.planning.published import find_alike
    from flyweight.planning.quant import QuantUse, report_levels
    from flyweight.planning.quantities import parse_params, parse_size

    out.check()
    model = choice.get_name()
    if model is not None and params is not None:
        raise ConfigError("MODEL and params exclude each other; give one")
    settings, size = Settings.of(model=model, **engine), parse_size(memory, "memory")
    if params is None:
        own = read_outline(settings)
        use = QuantUse(own.params, size, settings.kv_cache_dtype, own)
        out.show(report_levels(use, own, lambda: open_ops(settings)))
        return
    count = parse_params(params)
    use = QuantUse(count, size, settings.kv_cache_dtype, find_shapes(find_alike(count)))
    out.show(report_levels(use, None, lambda: open_ops(settings)))


def open_ops(settings: Settings) -> Ops:
    from flyweight.backends import choose_backend

    return choose_backend(settings, 1)


def find_shapes(name: str) -> ModelOutline | None:
    """The outline of a well-known model; "" is none."""
    return read_outline(Settings(model=name)) if name else None
