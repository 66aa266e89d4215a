"""Options several commands share, with their help.  Their ranges are `Settings`'."""

from typing import Annotated

import typer

MaxModelLen = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        help="Longest prompt and answer together.  [default: what the model knows and memory "
        "holds]",
    ),
]
MemoryLimit = Annotated[
    str, typer.Option(metavar="SIZE", help="Memory for everything together: 6GiB, 512MB, 80%.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Threads to compute with.  [default: the cores this process may use]"
    ),
]
Activations = Annotated[
    str, typer.Option(metavar="int8|bf16|f32", help="Precision to multiply matrices in.")
]
KVDtype = Annotated[
    str, typer.Option(metavar="auto|f16|bf16|f32", help="Precision of the K/V cache.")
]
BlockSize = Annotated[
    int, typer.Option(metavar="TOKENS", help="Tokens in a block of the K/V cache.")
]
MaxBatched = Annotated[
    int,
    typer.Option("--max-num-batched-tokens", metavar="TOKENS", help="Most tokens in a step."),
]
PrefixCaching = Annotated[bool, typer.Option(help="Reuse the K/V of prompts that begin alike.")]
Revision = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A branch, tag or commit of a model on the Hub."),
]
Offline = Annotated[bool, typer.Option("--offline", help="Make no network call.")]
Adapter = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="LoRA adapter to answer with, as PEFT saves it."),
]
PackedCache = Annotated[bool, typer.Option(help="Keep packed weights for the next start.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
