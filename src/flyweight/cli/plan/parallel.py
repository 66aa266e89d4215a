"""`flyweight plan parallel [MODEL]`: tensor and pipeline parallelism over GPUs, ranked, or over
processes of this machine.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.plan.models import ModelChoice, read_outline
from flyweight.cli.reports import ReportOutput
from flyweight.config import Settings
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.rank_link import LinkSpeed
    from flyweight.planning.parallel import GpuLink
    from flyweight.planning.report import Report

MOST_GPUS, MOST_TOKENS, MOST_SEQS = 4096, 1 << 20, 4096
DEFAULT_MODEL = "stories"  # on this machine
OF_ENGINE = ("threads", "activations", "kv_cache_dtype", "max_num_batched_tokens")


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """The GPUs, and the step that they compute."""

    gpus: Annotated[int, typer.Option(metavar="N", help="Number of GPUs.")] = 4
    device: Annotated[str, typer.Option(metavar="NAME", help="Device of the list.")] = "h100-80"
    tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of a step.")] = 64
    rows: Annotated[int, typer.Option(metavar="N", help="Number of ways to print.")] = 12

    def make_link(self, between: LinkOptions) -> GpuLink:
        """Raises `ConfigError`."""
        from flyweight.planning.devices import find_device, read_devices
        from flyweight.planning.parallel import GpuLink

        found = find_device(self.device, read_devices())
        if found.bf16_tflops is None:
            raise ConfigError("has no published peak", "device", value=self.device,
                              hint="nearest valid: h100-80")  # fmt: skip
        rate, latency = between.read(450.0, 5.0)
        return GpuLink(
            1e9 * found.bandwidth_gbs, 1e12 * found.bf16_tflops, rate, latency, found.memory
        )


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """What connects two GPUs, or two processes."""

    link_gbs: Annotated[
        float | None,
        typer.Option(
            metavar="GB/S",
            help="Bandwidth between two GPUs or ranks.  [default: 450; with ranks, measured]",
        ),
    ] = None
    link_us: Annotated[
        float | None,
        typer.Option(
            metavar="US",
            help="Least microseconds of a transfer.  [default: 5; with ranks, measured]",
        ),
    ] = None

    def read(self, gbs: float, us: float) -> tuple[float, float]:
        """Bytes a second and seconds, with these defaults.  Raises `ConfigError`."""
        from flyweight.planning.quantities import check_positive, check_range

        rate = check_positive(gbs if self.link_gbs is None else self.link_gbs, "link_gbs", gbs)
        latency = check_range(us if self.link_us is None else self.link_us, "link_us", 0)
        return 1e9 * rate, 1e-6 * latency

    def read_ranks(self) -> LinkSpeed | None:
        """None where neither is given, to be measured.  Raises `ConfigError`."""
        from flyweight.bench.rank_link import ASSUMED, LinkSpeed

        if self.link_gbs is None and self.link_us is None:
            return None
        rate, latency = self.read(1e-9 * ASSUMED.rate, 1e6 * ASSUMED.latency)
        if self.link_gbs is None or self.link_us is None:
            raise ConfigError("with ranks, link_gbs and link_us are given together, or measured")
        return LinkSpeed(latency, rate)


@dataclass(frozen=True, slots=True)
class RankOptions:
    """Processes of this machine, in the place of GPUs."""

    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes of this machine, in the place of GPUs."),
    ] = None
    prompt_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens of the prompt that ranks compute.")
    ] = 512
    context: Annotated[
        int, typer.Option(metavar="N", help="Positions that a sequence decoded by ranks sees.")
    ] = 512
    sequences: Annotated[
        int, typer.Option(metavar="N", help="Sequences that ranks decode at once.")
    ] = 1


@expand
def parallel(
    *,
    choice: ModelChoice,
    group: GpuGroup,
    between: LinkOptions,
    bits: Annotated[
        str | None,
        typer.Option(metavar="N", help="Bits of a weight.  [default: 16; with ranks, the model's]"),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(metavar="N", help="GPUs or ranks that share a layer; all ways if left out."),
    ] = None,
    here: RankOptions,
    engine: Annotated[
        Values,
        opt.select_settings(
            "threads",
            "activations",
            "kv_cache_dtype",
            "max_num_batched_tokens",
            "revision",
            "offline",
        ),
    ],
    out: ReportOutput,
) -> None:
    """Rank the ways to split a model over GPUs or processes.

    With --ranks N, processes of this machine as -tp and -pp start them: its limits and their
    exchanges are measured now, and nothing of the model is loaded.  Without a MODEL, llama-2-70b
    on GPUs, and the model inside the package on this machine.
    """
    refuse_mixed(group, here, engine)
    if here.ranks is not None:
        out.show(plan_here(choice, here, tp, bits, between, engine))
    else:
        out.show(rank_splits(choice, group, tp, bits, between, engine))


def refuse_mixed(group: GpuGroup, here: RankOptions, engine: Values) -> None:
    """Raises `ConfigError` for an option of ranks with GPUs, or of GPUs with ranks."""
    if here.ranks is not None:
        unused = list_given(group)
        if unused:
            raise ConfigError(f"{unused[0]} does not apply to ranks; leave it out")
        return
    settings = Settings()
    unused = [name for name in OF_ENGINE if engine[name] != getattr(settings, name)]
    unused += list_given(here)
    if unused:
        raise ConfigError(f"{unused[0]} does not apply to GPUs; leave it out, or give ranks")


def list_given(options: GpuGroup | RankOptions) -> list[str]:
    """Names of options with other values than the usual."""
    usual = type(options)()
    names = [one.name for one in fields(options)]
    return [name for name in names if getattr(options, name) != getattr(usual, name)]


def plan_here(
    choice: ModelChoice,
    here: RankOptions,
    tp: int | None,
    bits: str | None,
    between: LinkOptions,
    engine: Values,
) -> Report:
    """Over processes of this machine.  Raises `ConfigError`."""
    from flyweight.cli.show import show_loading
    from flyweight.models.shards import MOST_RANKS
    from flyweight.planning.calibration import LocalEngine
    from flyweight.planning.predict import outline_with_bits
    from flyweight.planning.quantities import check_range
    from flyweight.planning.rank_plan import choose_ways, plan_ranks
    from flyweight.planning.rank_report import report_ranks
    from flyweight.planning.speed import SpeedQuestion

    assert here.ranks is not None
    check_range(here.ranks, "ranks", 2, MOST_RANKS)
    check_range(here.prompt_tokens, "prompt_tokens", 1, MOST_TOKENS)
    check_range(here.context, "context", 1, MOST_TOKENS)
    check_range(here.sequences, "sequences", 1, MOST_SEQS)
    link = between.read_ranks()
    settings = Settings.of(model=choice.get_name() or DEFAULT_MODEL, **engine)
    with show_loading(planned=False) as listener:
        outline = outline_with_bits(settings, bits, listener)
    ways = choose_ways(outline, here.ranks, tp)
    local, chunk = LocalEngine.of(settings, outline), settings.max_num_batched_tokens
    asked = SpeedQuestion(here.prompt_tokens, here.context, (here.sequences,), chunk)
    return report_ranks(outline, local, plan_ranks(outline, local, ways, asked, link))


def rank_splits(
    choice: ModelChoice,
    group: GpuGroup,
    tp: int | None,
    bits: str | None,
    between: LinkOptions,
    engine: Values,
) -> Report:
    """Over GPUs.  Raises `ConfigError`."""
    from flyweight.planning.parallel import list_tensor_sizes
    from flyweight.planning.parallel_report import ParallelUse, report_parallel
    from flyweight.planning.quantities import check_range, parse_bits

    check_range(group.gpus, "gpus", 1, MOST_GPUS)
    check_range(group.tokens, "tokens", 1, MOST_TOKENS)
    check_range(group.rows, "rows", 1, 1000)
    link = group.make_link(between)
    size = parse_bits("16" if bits is None else bits)
    outline = read_outline(Settings.of(model=choice.get_name() or "llama-2-70b", **engine))
    sizes = list_tensor_sizes(group.gpus, outline.spec)
    if tp is not None and tp not in sizes:
        near = min(sizes, key=lambda known: abs(known - tp))
        raise ConfigError(
            f"does not divide {group.gpus} GPUs and the model's {outline.spec.layers[0].heads} "
            "heads",
            "tp",
            value=tp,
            allowed=", ".join(map(str, sizes)),
            hint=f"nearest valid: {near}",
        )
    use = ParallelUse(group.gpus, group.device, group.tokens, size, tp, group.rows)
    return report_parallel(outline, use, link)
