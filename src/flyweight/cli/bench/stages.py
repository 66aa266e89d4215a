"""`flyweight bench stages [MODEL]`: where the time of one request goes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.bench import options as by
from flyweight.cli.bench.offline import MOST, OutputLen
from flyweight.cli.parameters import expand
from flyweight.cli.reports import ReportOutput
from flyweight.config import whole
from flyweight.errors import RequestError

SENTENCE = "Once upon a time, there was a little girl named Lily who lived near the sea. "
Prompt = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Text to answer.  [default: a story]", show_default=False),
]
Rounds = Annotated[int, typer.Option("-r", "--repetitions", metavar="N", help="Rounds to measure.")]


@expand
def stages(
    *,
    model: opt.Model = "stories",
    prompt: Prompt = SENTENCE * 4,
    output_len: OutputLen = 100,
    repetitions: Rounds = 5,
    engine: by.MeasuredEngine,
    out: ReportOutput,
) -> None:
    """Time the stages of a request, which add up to 100 %.

    Tokenizing, waiting, embedding, prefill, decoding, detokenizing, and everything else.
    """
    whole("output_len", output_len, 1, MOST)
    whole("repetitions", repetitions, 1, 1000)
    if not prompt:
        raise RequestError("has 0 tokens", "prompt", allowed="1 or more")
    from flyweight.bench.stages import StageMeter
    from flyweight.cli.bench.progress import show_measuring
    from flyweight.llm import LLM
    from flyweight.planning.stages import report_stages

    options = {**asdict(engine), "max_num_seqs": 1, "enable_prefix_caching": False}
    with show_measuring() as listener, LLM(model, notify=listener, **options) as llm:
        llm.loaded.moving.settle()
        total = StageMeter(llm.loaded, prompt, output_len).measure(repetitions)
    out.show(report_stages(total, repetitions, output_len))
