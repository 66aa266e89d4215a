"""`flyweight imatrix MODEL OUT`: measures the importance of columns, for types of GGUF files."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.quantize import Calibration, Length, Model, Samples, show_job

Out = Annotated[
    str,
    typer.Argument(metavar="OUT", help="File to write: GGUF, or the older format for .dat."),
]


@expand
def imatrix(
    *,
    model: Model,
    out: Out,
    calibration: Calibration = None,
    samples: Samples = 128,
    length: Length = 512,
    engine: Annotated[
        Values, opt.select_settings("threads", "revision", "offline", "memory_limit")
    ],
    as_json: opt.AsJson = False,
) -> None:
    """Measure how large the inputs of each matrix are on a text.

    The file is llama.cpp's importance matrix: `quantize --imatrix` and llama-quantize read it.
    """
    from flyweight.quantization import check_out, measure_imatrix
    from flyweight.quantize.ggml.imatrix import write_imatrix

    path = check_out(out)
    with show_job(not as_json) as (listener, report):
        found = measure_imatrix(model, calibration, (samples, length), engine, listener, report)
    write_imatrix(path, found)
    if as_json:
        said = {"out": out, "tensors": len(found.matrices), "windows": found.chunks}
        print(json.dumps({**said, "length": found.chunk_size, "calibration": found.datasets[0]}))
        return
    print(f"Written:   {out}, {len(found.matrices)} tensors, {found.chunks} windows")
