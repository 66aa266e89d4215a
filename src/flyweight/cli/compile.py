"""`flyweight compile MODEL`: packs a model's weights ahead of its first start, measures what that
saves, and checks that the sequences that it will serve fit in memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.config import Settings, whole
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.checks.prepare import PackedModel
    from flyweight.describe import LoadListener

LEAST_STEP = 512  # tokens in a step, as elsewhere, or one for every sequence

BatchSize = Annotated[int, typer.Option(metavar="N", help="Max sequences at once.")]
InputLen = Annotated[int, typer.Option(metavar="TOKENS", help="Max tokens of a prompt.")]
OutputLen = Annotated[int, typer.Option(metavar="TOKENS", help="Max tokens of an answer.")]


@expand
def compile_model(
    *,
    model: opt.Model,
    max_batch_size: BatchSize = 32,
    max_input_len: InputLen = 2048,
    max_output_len: OutputLen = 512,
    engine: Annotated[
        Values,
        opt.select_settings(
            "memory_limit",
            "threads",
            "activations",
            "kv_cache_dtype",
            "block_size",
            "revision",
            "offline",
        ),
    ],
    as_json: opt.AsJson = False,
) -> None:
    """Pack a model's weights for its next starts.

    It measures what that saves, and checks that the load given by the options fits in memory.
    """
    shape = {
        "max_batch_size": max_batch_size,
        "max_input_len": max_input_len,
        "max_output_len": max_output_len,
    }
    for name, value in shape.items():
        whole(name, value, 1, 4096 if name == "max_batch_size" else 1 << 23)
    settings = Settings.of(
        model=model,
        max_model_len=max_input_len + max_output_len,
        max_num_seqs=max_batch_size,
        max_num_batched_tokens=max(LEAST_STEP, max_batch_size),
        **engine,
        prompt_logprob_rows=0,
    )
    from flyweight.checks.prepare import prepare
    from flyweight.cli.show import show_loading

    with show_loading(planned=False) as listener:
        done = prepare(settings, listener)
        if done.kept:
            keep_shape(done.kept, shape, listener)
        if done.kept and not as_json:
            listener.note("measuring a start without and with packed weights")
        gain = measure_gain(done, engine, listener)
    if as_json:
        print(json.dumps(make_document(done, gain)))
    else:
        show_result(done, gain)


def show_result(done: PackedModel, gain: StartGain | None) -> None:
    """The memory plan, and what a start finds and gains."""
    from flyweight.cli.show import format_name, make_console, make_memory_table

    console = make_console()
    console.print(make_memory_table(done.memory))
    console.print(
        f"{format_name(done.model)}: {describe_result(done)}", highlight=False, soft_wrap=True
    )
    if gain is not None:
        console.print(
            f"first token of a new process: {gain.packed:.2f} s, without packed weights "
            f"{gain.unpacked:.2f} s ({gain.unpacked / gain.packed:.1f} times)",
            highlight=False,
        )


def keep_shape(kept: Path, shape: dict[str, int], listener: LoadListener) -> None:
    """Leaves the shape for servers, which count the requests outside it."""
    from flyweight.weights.packed.shape import CompiledShape, write_shape

    try:
        write_shape(kept, CompiledShape(**shape))
    except OSError as error:
        listener.warn(f"the shape cannot be stored: {error.strerror or error}")


@dataclass(frozen=True, slots=True)
class StartGain:
    """Seconds from the start of a process to its first token."""

    unpacked: float
    packed: float


def measure_gain(done: PackedModel, engine: Values, listener: LoadListener) -> StartGain | None:
    """Two starts: one that looks for no packed weights, one that finds these.  None where none are
    kept, or where a start fails, which is reported.
    """
    from flyweight.bench.startup import time_start

    if done.kept is None:
        return None
    words = []
    for name in ("memory_limit", "threads", "activations", "kv_cache_dtype", "block_size"):
        if engine[name] is not None:
            words += [f"--{name.replace('_', '-')}", str(engine[name])]
    model, folder = str(done.model), done.kept.parent
    try:
        unpacked = time_start(model, [*words, "--no-packed-cache"], folder)
        return StartGain(unpacked.first, time_start(model, words, folder).first)
    except ConfigError as error:
        listener.warn(f"a start cannot be measured: {error}")
        return None


def describe_result(done: PackedModel) -> str:
    """What became of the packed weights, in a line."""
    from flyweight.plan.memory import format_size
    from flyweight.validation.untrusted import printable

    sizing = done.memory.sizing
    load = f"{sizing.max_num_seqs} sequences of {sizing.max_model_len} tokens fit"
    if done.kept is None:
        return f"{load}; packed weights are not kept: {done.why}"
    how = f"packed in {done.seconds:.1f} s" if done.fresh else "packed already"
    return (
        f"{load}; {format_size(done.packed)} of weights {how}, kept in {printable(str(done.kept))}"
    )


def make_document(done: PackedModel, gain: StartGain | None) -> dict[str, Any]:
    """The same for scripts."""
    plan = done.memory
    return {
        "path": str(done.model),
        "kept": None if done.kept is None else str(done.kept),
        "packed_bytes": done.packed,
        "fresh": done.fresh,
        "seconds": round(done.seconds, 3),
        "why": done.why,
        "first_token_s": gain and {"packed": gain.packed, "unpacked": gain.unpacked},
        "fits": plan.need <= plan.limit,
        "max_batch_size": plan.sizing.max_num_seqs,
        "max_model_len": plan.sizing.max_model_len,
        "memory": dict(plan.list_rows()) | {"need": plan.need, "limit": plan.limit},
    }
