"""`flyweight bench fragmentation`: K/V memory of a trace, contiguous and paged, simulated."""

from __future__ import annotations

from typing import Annotated

import typer

from flyweight.cli.bench.loads import find_data
from flyweight.cli.parameters import expand
from flyweight.cli.reports import ReportOutput
from flyweight.config import whole


@expand
def fragmentation(
    *,
    dataset_path: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Trace: Azure's .csv or Mooncake's .jsonl, here or below FLYWEIGHT_DATA.  "
            "[default: random lengths]",
        ),
    ] = None,
    num_prompts: Annotated[int, typer.Option(metavar="N", help="Number of requests.")] = 500,
    kv_tokens: Annotated[
        int, typer.Option(metavar="TOKENS", help="Tokens that K/V memory holds.")
    ] = 65_536,
    max_model_len: Annotated[
        int, typer.Option(metavar="TOKENS", help="Longest prompt and answer together.")
    ] = 8192,
    block_size: Annotated[
        str, typer.Option(metavar="N,N", help="Tokens in a block, of paged memory.")
    ] = "16,32",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of random lengths.")] = 0,
    out: ReportOutput,
) -> None:
    """Compare the waste of contiguous and paged K/V memory.

    Contiguous memory reserves --max-model-len for each sequence, paged memory blocks as they are
    needed.  A simulation: nothing is computed, the engine's own block pool counts.
    """
    from itertools import islice

    from flyweight.bench.fragmentation import make_lengths
    from flyweight.bench.serving.traces import read_trace
    from flyweight.bench.workloads import parse_numbers
    from flyweight.planning.fragmentation import FragmentationTest, report_fragmentation

    whole("num_prompts", num_prompts, 1, 100_000)
    sizes = parse_numbers("block_size", block_size, 1, 1024)
    test = FragmentationTest(kv_tokens, max_model_len, sizes)
    if dataset_path is None:
        requests = make_lengths(num_prompts, max_model_len, seed)
        source = f"random lengths, seed {seed}"
    else:
        path = find_data(dataset_path)
        requests = [(one.input, one.output) for one in islice(read_trace(path), num_prompts)]
        source = path.name
    out.show(report_fragmentation(test, requests, source))
