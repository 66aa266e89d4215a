"""`flyweight plan parallel [MODEL]`: tensor and pipeline parallelism over GPUs, ranked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.plan.models import ModelChoice, read_outline
from flyweight.cli.reports import ReportOutput
from flyweight.config import Settings
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.planning.parallel import GpuLink

MOST_GPUS, MOST_TOKENS = 4096, 1 << 20


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """The GPUs, and the links between them."""

    gpus: Annotated[int, typer.Option(metavar="N", help="Number of GPUs.")] = 4
    device: Annotated[str, typer.Option(metavar="NAME", help="Device of the list.")] = "h100-80"
    link_gbs: Annotated[
        float, typer.Option(metavar="GB/S", help="Bandwidth between two GPUs, one direction.")
    ] = 450.0
    link_us: Annotated[
        float, typer.Option(metavar="US", help="Least time of a transfer, in microseconds.")
    ] = 5.0

    def make_link(self) -> GpuLink:
        """Raises `ConfigError`."""
        from flyweight.planning.devices import find_device, read_devices
        from flyweight.planning.parallel import GpuLink
        from flyweight.planning.quantities import check_positive, check_range

        found = find_device(self.device, read_devices())
        if found.bf16_tflops is None:
            raise ConfigError("has no published peak", "device", value=self.device,
                              hint="nearest valid: h100-80")  # fmt: skip
        check_positive(self.link_gbs, "link_gbs", 450)
        check_range(self.link_us, "link_us", 0)
        return GpuLink(
            1e9 * found.bandwidth_gbs,
            1e12 * found.bf16_tflops,
            1e9 * self.link_gbs,
            1e-6 * self.link_us,
            found.memory,
        )


@expand
def parallel(
    *,
    choice: ModelChoice,
    group: GpuGroup,
    tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of a step.")] = 64,
    bits: Annotated[str, typer.Option(metavar="N", help="Bits of a weight.")] = "16",
    tp: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs that share a layer; all ways if left out.")
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", help="Number of ways to print.")] = 12,
    engine: Annotated[Values, opt.select_settings("revision", "offline")],
    out: ReportOutput,
) -> None:
    """Rank the ways to split a model over GPUs.

    Without a MODEL, llama-2-70b.
    """
    from flyweight.planning.parallel import list_tensor_sizes
    from flyweight.planning.parallel_report import ParallelUse, report_parallel
    from flyweight.planning.quantities import check_range, parse_bits

    check_range(group.gpus, "gpus", 1, MOST_GPUS)
    check_range(tokens, "tokens", 1, MOST_TOKENS)
    check_range(rows, "rows", 1, 1000)
    link = group.make_link()
    size = parse_bits(bits)
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
    use = ParallelUse(group.gpus, group.device, tokens, size, tp, rows)
    out.show(report_parallel(outline, use, link))
