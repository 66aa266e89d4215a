"""`flyweight bench sampling [MODEL]`: greedy, top-k and beam search on the same prompts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.bench import options as by
from flyweight.cli.bench.offline import InputLen, OutputLen
from flyweight.cli.parameters import expand
from flyweight.cli.reports import ReportOutput

TopK = Annotated[int, typer.Option(metavar="N", help="Tokens to sample among.")]
Width = Annotated[int, typer.Option(metavar="N", help="Beams of a search.")]
Rounds = Annotated[int, typer.Option("-r", "--repetitions", metavar="N", help="Rounds to measure.")]


@expand
def sampling(
    *,
    model: opt.Model = "stories",
    input_len: InputLen = 32,
    output_len: OutputLen = 100,
    top_k: TopK = 40,
    beam_width: Width = 4,
    repetitions: Rounds = 5,
    engine: by.MeasuredEngine,
    out: ReportOutput,
) -> None:
    """Time greedy answers, top-k sampling and beam search.

    They take turns on the same prompts; ratios are made within a round.
    """
    from flyweight.bench.decoding import DecodingTest, measure_decoding
    from flyweight.cli.bench.progress import show_measuring
    from flyweight.planning.decoding import report_decoding

    lengths = input_len, output_len
    test = DecodingTest(model, *lengths, top_k, beam_width, repetitions, asdict(engine))
    with show_measuring() as listener:
        results = measure_decoding(test, listener)
    out.show(report_decoding(test, results))
