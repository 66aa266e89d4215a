"""Options several commands share, with their help, and how they become `Settings`."""

from typing import Annotated, Any

import typer

from flyweight.config import Settings

MaxModelLen = Annotated[int | None, typer.Option(help="Longest prompt plus answer, in tokens. [default: what fits]")]
MemoryLimit = Annotated[str, typer.Option(help="For everything together: 6GiB, 512MB or 80% of the memory.")]
Threads = Annotated[int | None, typer.Option(help="Threads to compute with. [default: cores we may use]")]
Activations = Annotated[str, typer.Option(help="What matrices multiply with: int8, bf16 or f32.")]
KVDtype = Annotated[str, typer.Option(help="K/V cache: f16, bf16 or f32.")]
BlockSize = Annotated[int, typer.Option(help="Tokens in a K/V block.")]
MaxSeqs = Annotated[int, typer.Option("--max-num-seqs", help="Sequences in a step.")]
MaxBatched = Annotated[int, typer.Option("--max-num-batched-tokens", help="Tokens in a step.")]
Prefix = Annotated[bool, typer.Option(help="Reuse K/V of equal beginnings.")]
Offline = Annotated[bool, typer.Option("--offline", help="Make no network call.")]


def settings(**given: Any) -> Settings:
    """`Settings` from options; raises `ConfigError` naming the option's field."""
    return Settings.of(**given)
