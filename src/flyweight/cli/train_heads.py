"""`flyweight train-heads MODEL`: trains heads that draft for a model, on its own hidden states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.quantize import show_job

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file, or org/name.")]
Method = Annotated[str, typer.Option(metavar="NAME", help="Method: medusa, eagle or eagle3.")]
Text = Annotated[
    str,
    typer.Option(metavar="FILE", help="Text to train on; <|endoftext|> separates several."),
]
Output = Annotated[str, typer.Option(metavar="DIR", help="Folder to write.")]
Steps = Annotated[int, typer.Option(metavar="N", help="Steps of training.")]
Heads = Annotated[int, typer.Option(metavar="N", help="Heads, one a draft token (medusa).")]
Layers = Annotated[int, typer.Option(metavar="N", help="Blocks of a head (medusa).")]
Inner = Annotated[
    int, typer.Option(metavar="N", help="Elements of the MLP (eagle, eagle3); 0: as the model's.")
]
Openings = Annotated[
    int,
    typer.Option(
        metavar="TOKENS",
        help="Let the model continue each text after so many tokens, and train on that; 0: train "
        "on the texts.",
    ),
]
Length = Annotated[int, typer.Option(metavar="TOKENS", help="Longest text; longer ones are cut.")]
DType = Annotated[str, typer.Option(metavar="NAME", help="What is written: bf16, or int8 codes.")]


@expand
def train_heads(
    *,
    model: Model,
    method: Method,
    text: Text,
    output: Output,
    steps: Steps = 2000,
    heads: Heads = 4,
    layers: Layers = 1,
    inner: Inner = 0,
    openings: Openings = 0,
    length: Length = 512,
    dtype: DType = "bf16",
    engine: Annotated[Values, opt.select_settings("threads", "memory_limit")],
    as_json: opt.AsJson = False,
) -> None:
    """Train draft heads for a model.

    They learn from its own hidden states what it says, from a text or from its continuations.
    Needs torch: pip install 'flyweight[train]'.  The model itself is not changed.
    """
    from flyweight.training.job import HeadOptions, train_heads

    options = HeadOptions(method, steps, heads, layers, inner, openings, length, dtype)
    path = Path(output).expanduser()
    with show_job(not as_json) as (_, report):
        done = train_heads(model, Path(text).expanduser(), path, options, report, dict(engine))
    first, last = done.losses
    if as_json:
        said = {"output": output, "bytes": done.nbytes, "tokens": done.tokens}
        print(json.dumps({**said, "first_loss": first, "last_loss": last}))
        return
    print(f"Trained on: {done.tokens} tokens, loss {first:.3f} at first, {last:.3f} at last")
    print(f"Written:    {output}, {done.nbytes / 1e6:.2f} MB")
    drafts = heads if method == "medusa" else 5
    config = {"method": method, "model": output, "num_speculative_tokens": drafts}
    print(f"Use:        flyweight run {model} --speculative-config '{json.dumps(config)}'")
