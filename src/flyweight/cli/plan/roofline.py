"""`flyweight plan roofline MODEL`: speed at best and as expected, before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.reports import PlotOutput
from flyweight.config import Settings, whole
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.planning.speed import SpeedQuestion

MOST_TOKENS, MOST_SEQS = 1 << 20, 4096


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """The prompt and the steps that are predicted."""

    prompt_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of the prompt.")] = 512
    context: Annotated[
        int, typer.Option(metavar="N", help="Positions that a decoding sequence sees.")
    ] = 512
    batch: Annotated[
        str, typer.Option("-b", "--batch", metavar="N,N", help="Sequences to decode at once.")
    ] = "1,4,16,64"

    def ask(self, chunk: int) -> SpeedQuestion:
        """Raises `ConfigError`."""
        from flyweight.bench.workloads import parse_numbers
        from flyweight.planning.speed import SpeedQuestion

        whole("prompt_tokens", self.prompt_tokens, 1, MOST_TOKENS)
        whole("context", self.context, 1, MOST_TOKENS)
        batches = parse_numbers("batch", self.batch, 1, MOST_SEQS)
        if not batches:
            raise ConfigError("is empty", "batch", value=self.batch, hint="nearest valid: 1")
        return SpeedQuestion(self.prompt_tokens, self.context, batches, chunk)


@dataclass(frozen=True, slots=True)
class SpeedSource:
    """What is predicted for, in place of a model and of this machine."""

    params: Annotated[
        str | None,
        typer.Option(metavar="N", help="Number of parameters, in place of a model: 70B."),
    ] = None
    bits: Annotated[
        str | None,
        typer.Option(metavar="N", help="Bits of a weight.  [default: the model's, 16 of --params]"),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Device with published limits.  [default: this one]"),
    ] = None
    check: Annotated[
        bool, typer.Option("--check", help="Measure the model too, and print both.")
    ] = False

    def judge(self) -> None:
        """Raises `ConfigError` for what contradicts."""
        others = {"params": self.params, "device": self.device, "bits": self.bits}
        other = next((name for name, value in others.items() if value is not None), None)
        if self.check and other is not None:
            raise ConfigError(f"check needs a MODEL on this machine; leave {other} out")


@expand
def roofline(
    *,
    model: opt.Model = "stories",
    source: SpeedSource,
    asked: SpeedOptions,
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
    out: PlotOutput,
) -> None:
    """Predict speed from the machine's limits.

    The ceiling is what memory and arithmetic allow; expected is what our kernels reach on shapes
    like the model's, timed here.  Nothing of the model is loaded but its header or config.
    """
    from flyweight.cli.show import show_loading
    from flyweight.planning import predict

    out.check()
    source.judge()
    settings = Settings.of(model=model, **engine)
    question = asked.ask(settings.max_num_batched_tokens)
    if source.params is not None:
        out.show(
            predict.predict_params(source.params, source.bits or "16", question, source.device)
        )
        return
    with show_loading(planned=False) as listener:
        outline = predict.outline_with_bits(settings, source.bits, listener)
        if source.device is not None:
            report = predict.predict_device(outline, settings, question, source.device)
        else:
            report = predict.predict_here(outline, settings, question, check=source.check)
    out.show(report)
