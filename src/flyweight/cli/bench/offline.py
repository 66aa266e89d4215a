"""`flyweight bench latency` and `throughput`: whole requests, as vLLM counts them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.amounts import amount
from flyweight.cli.bench import options as by
from flyweight.cli.parameters import expand
from flyweight.config import whole
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.offline import OfflineReport, OfflineRequests

MOST, MOST_SEQS = 1 << 20, 4096
InputLen = Annotated[int, typer.Option(metavar="TOKENS", help="Length of a prompt.")]
OutputLen = Annotated[int, typer.Option(metavar="TOKENS", help="Length of an answer.")]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Requests in the batch.")]
Iters = Annotated[int, typer.Option(metavar="N", help="Rounds to measure.")]
Warmup = Annotated[int, typer.Option(metavar="N", help="Warm-up rounds before the measurement.")]
NumPrompts = Annotated[int, typer.Option(metavar="N", help="Number of requests.")]
MaxSeqs = Annotated[int, typer.Option(metavar="N", help="Max sequences in a step.")]
Scheduler = Annotated[str, opt.make_option("scheduler")]
KVCache = Annotated[bool, opt.make_option("kv_cache")]
Speculation = Annotated[str, opt.make_option("speculative_config")]
RangeRatio = Annotated[
    float, typer.Option(metavar="SHARE", help="Share by which lengths of answers vary, below 1.")
]
Hourly = Annotated[
    float | None,
    amount("gpu_hourly", 2.0, metavar="DOLLARS",
           help="Price of this machine for an hour; prints the cost of tokens."),
]  # fmt: skip
OutputJson = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write all figures to this file.")
]


@expand
def latency(
    *,
    model: opt.Model = "stories",
    input_len: InputLen = 32,
    output_len: OutputLen = 128,
    batch_size: BatchSize = 8,
    num_iters: Iters = 10,
    num_iters_warmup: Warmup = 2,
    kv_cache: KVCache = True,
    speculative_config: Speculation = "",
    engine: by.MeasuredEngine,
    peers: by.PeerOptions,
    output_json: OutputJson = None,
) -> None:
    """Time one batch of requests, from start to last token."""
    from flyweight.bench.offline import OfflineRequests

    whole("num_iters", num_iters, 1, 10_000)
    whole("num_iters_warmup", num_iters_warmup, 0, 10_000)
    check_lengths(input_len, output_len)
    whole("batch_size", batch_size, 1, MOST_SEQS)
    file = by.find_writable("output_json", output_json)
    workload = OfflineRequests(batch_size, input_len, output_len, batch_size)
    rounds = num_iters, num_iters_warmup
    outcome = _measure(
        model, workload, rounds, engine, peers, kv_cache=kv_cache,
        speculative_config=speculative_config,
    )  # fmt: skip
    document = outcome.to_document()
    print(f"Avg latency: {document['avg_latency']:.4f} seconds")
    for percent, seconds in outcome.compute_percentiles().items():
        print(f"{percent}% percentile latency: {seconds:.4f} seconds")
    print_outcome(outcome, file)


@expand
def throughput(
    *,
    model: opt.Model = "stories",
    input_len: InputLen = 128,
    output_len: OutputLen = 64,
    num_prompts: NumPrompts = 64,
    output_range_ratio: RangeRatio = 0.0,
    gpu_hourly: Hourly = None,
    max_num_seqs: MaxSeqs = 64,
    scheduler: Scheduler = "continuous",
    kv_cache: KVCache = True,
    speculative_config: Speculation = "",
    engine: by.MeasuredEngine,
    peers: by.PeerOptions,
    output_json: OutputJson = None,
) -> None:
    """Time many requests of random tokens that are sent at once."""
    from flyweight.bench.offline import OfflineRequests

    check_lengths(input_len, output_len)
    whole("num_prompts", num_prompts, 1, MOST)
    whole("max_num_seqs", max_num_seqs, 1, MOST_SEQS)
    check_ratio(output_range_ratio, peers)
    file = by.find_writable("output_json", output_json)
    workload = OfflineRequests(
        num_prompts, input_len, output_len, min(max_num_seqs, num_prompts), output_range_ratio
    )
    outcome = _measure(
        model, workload, (1, 0), engine, peers, scheduler=scheduler, kv_cache=kv_cache,
        speculative_config=speculative_config,
    )  # fmt: skip
    answered = sum(workload.answers)
    seconds = outcome.seconds[0]
    rates = (
        workload.count / seconds,
        workload.tokens / seconds,
        answered / seconds,
    )
    print(
        f"Throughput: {rates[0]:.2f} requests/s, {rates[1]:.2f} total tokens/s, "
        f"{rates[2]:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {workload.count * input_len}")
    print(f"Total num output tokens:  {answered}")
    if gpu_hourly is not None:
        print(f"Cost of 1M output tokens: ${outcome.compute_cost(gpu_hourly):.3g}")
    print_outcome(outcome, file, gpu_hourly)


def check_lengths(input_len: int, output_len: int) -> None:
    whole("input_len", input_len, 1, MOST)
    whole("output_len", output_len, 1, MOST)


def check_ratio(ratio: float, peers: by.PeerOptions) -> None:
    """Raises `ConfigError`."""
    if not 0 <= ratio < 1:
        raise ConfigError(
            "is out of range",
            "output_range_ratio",
            value=ratio,
            allowed="0 to below 1",
            hint=f"nearest valid: {0 if ratio < 0 else 0.99}",
        )
    if ratio and peers.vs:
        raise ConfigError(
            "peers give answers of one length; leave out --output-range-ratio or --vs"
        )


def _measure(
    model: str,
    workload: OfflineRequests,
    rounds: tuple[int, int],
    engine: by.MeasuredEngine,
    peers: by.PeerOptions,
    **settings: str | bool,
) -> OfflineReport:
    """Measures rounds that count, after rounds that do not; peers in turn."""
    from flyweight.bench.offline import OfflineRun, measure
    from flyweight.cli.bench.progress import show_measuring

    named, means = peers.list_peers(), peers.method()
    with show_measuring() as listener:
        serving = OfflineRun(model, workload, listener, **asdict(engine), **settings)
        with serving.open_peers(named, means):
            return measure(serving, *rounds)


def print_outcome(outcome: OfflineReport, file: Path | None, hourly: float | None = None) -> None:
    """Prints what was achieved, compared with the peers."""
    from flyweight.bench.report import DETERMINISTIC
    from flyweight.bench.rows import CACHED_BYTES

    middle, workload = outcome.middle, outcome.requests
    tile = f" ({middle.share_tile:.0%} with the tile unit)" if middle.share_tile else ""
    share = f"{middle.share:.0%} of the machine's limit{tile}; "
    if outcome.weights < CACHED_BYTES:
        share = ""  # caches hold them: memory's speed is no limit
    print(
        f"Achieved: {workload.tokens / middle.seconds:.1f} tokens/s, {middle.gbps:.1f} GB/s, "
        f"{middle.gops:.0f} Gop/s; {share}"
        f"others used {middle.other_cores:.2f} cores"
    )
    print(DETERMINISTIC)
    for peer in outcome.peers:
        ratio = peer.ratio
        print(
            f"{peer.engine} ({peer.version}): {sum(peer.seconds) / len(peer.seconds):.4f} seconds; "
            f"ours is {ratio.median:.2f} [{ratio.least:.2f}..{ratio.most:.2f}] times as fast"
        )
    if file:
        with by.name_errors("output_json", file):
            file.write_text(json.dumps(outcome.to_document(hourly)) + "\n", encoding="utf-8")
