"""`flyweight batch MODEL INPUT OUTPUT`: answers the rows of a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from flyweight.batch.job import BatchListener, BatchRunner, BatchSummary, run_batch
from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.samplers import drop_unset, select_sampling
from flyweight.config import Settings
from flyweight.types import SamplingParams

if TYPE_CHECKING:  # commands import what they need when they run
    from tqdm import tqdm

Input = Annotated[
    str, typer.Argument(metavar="INPUT", help="Rows to answer: a .jsonl or .parquet file.")
]
Output = Annotated[
    str,
    typer.Argument(
        metavar="OUTPUT", help="Answers, a line a row; rows that it has are not answered again."
    ),
]
ServedName = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Name that rows may use for the model; may be repeated."),
]
IgnoreUnknown = Annotated[
    bool, typer.Option("--ignore-unknown-fields", help="Ignore fields of rows that are unknown.")
]
Sampling = Annotated[Values, select_sampling("max_tokens", "temperature", "top_p", "top_k")]
Replicas = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Processes with an engine each, run by Ray.  [default: this process]"
    ),
]
RayAddress = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Ray cluster to run replicas on: HOST:PORT or auto.  [default: this machine]",
        show_default=False,
    ),
]
EVERY = 60.0  # seconds between two lines
ENGINE = opt.select_settings(
    "max_model_len", "memory_limit", "threads", "activations", "kv_cache_dtype", "max_num_seqs",
    "max_num_batched_tokens", "enable_prefix_caching", "packed_cache", "speculative_config",
)  # fmt: skip


@expand
def batch(
    *,
    model: opt.Model,
    input: Input,
    output: Output,
    sampling: Sampling,
    served_model_name: ServedName = None,
    ignore_unknown_fields: IgnoreUnknown = False,
    replicas: Replicas = None,
    ray_address: RayAddress = "",
    engine: Annotated[Values, ENGINE],
    source: opt.Source,
    files: opt.Quantization,
    device: opt.Device,
    as_json: opt.AsJson = False,
) -> None:
    """Answer the rows of a file, offline.

    A row is a line of OpenAI's batch API, or an object with prompt or messages.  A job that was
    stopped goes on where it was.
    """
    from flyweight.server.settings import ServerSettings

    SamplingParams(**drop_unset(sampling))
    settings = {"model": model, **engine, **source, **files, **device}
    Settings.of(**settings)
    server = ServerSettings(
        served_model_name=tuple(served_model_name or ()),
        ignore_unknown_fields=ignore_unknown_fields,
        sampling_defaults=drop_unset(sampling),
    )
    from flyweight.batch.local import LocalRunner
    from flyweight.batch.replicas import RayRunner
    from flyweight.cli.show import show_loading

    with show_loading(planned=not as_json) as tell, BatchProgress() as shown:
        runner: BatchRunner = LocalRunner(settings, server, tell)
        if replicas is not None or ray_address:
            count = 1 if replicas is None else replicas
            runner = RayRunner(settings, count, ray_address, server, tell)
        summary = run_batch(Path(input).expanduser(), Path(output).expanduser(), runner, shown)
    print(json.dumps(summary.to_document()) if as_json else describe(summary))


class BatchProgress(BatchListener):
    """On stderr: a bar with the time left where there is a terminal, elsewhere a line a minute."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._shown = 0.0  # seconds at which the last line was printed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def begin(self, rows: int, done: int) -> None:
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # no thread of its own
        self._bar = tqdm(total=rows, initial=done, unit="row", disable=None, dynamic_ncols=True)

    def report(self, summary: BatchSummary) -> None:
        assert self._bar is not None, "it has begun"
        rate = summary.completion_tokens / max(summary.seconds, 1e-9)
        figures = f"{rate:.0f} tokens/s, {summary.errors} errors"
        self._bar.set_postfix_str(figures, refresh=False)
        self._bar.update()
        if self._bar.disable and summary.seconds - self._shown >= EVERY:
            self._shown = summary.seconds
            done = summary.done_before + summary.answered
            print(f"{done} of {summary.rows} rows, {figures}", file=sys.stderr, flush=True)


def describe(summary: BatchSummary) -> str:
    """The summary as a line."""
    before = f", {summary.done_before} were answered before" if summary.done_before else ""
    return (
        f"{summary.answered} of {summary.rows} rows answered in {summary.seconds:.1f} s{before}; "
        f"{summary.errors} with an error; {summary.prompt_tokens} prompt tokens, "
        f"{summary.completion_tokens} output tokens"
    )
