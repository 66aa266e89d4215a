"""Options the bench commands share."""

from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(metavar="[MODEL]", help="A .gguf file, a folder, org/name.")]
Threads = Annotated[
    int | None,
    typer.Option("-t", "--threads", metavar="N", help="Threads, peers' too. [default: our cores]"),
]
Vs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PEER",
        help="llama.cpp or openvino, in turn with ours; =FILE for another file of the same "
        "weights, and flags: 'llama.cpp -fa off'. May be repeated.",
    ),
]
VsPython = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The Python that has the peers. [default: FLYWEIGHT_PEER_PYTHON, or this one]",
    ),
]
VsBinary = Annotated[
    str | None, typer.Option(metavar="PATH", help="llama.cpp's llama-bench, or its folder.")
]
