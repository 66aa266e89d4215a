"""`flyweight serve`: a model behind an OpenAI-compatible endpoint."""

import socket
from typing import Annotated

import typer

from flyweight.cli.options import (
    Activations,
    BlockSize,
    KVDtype,
    MaxBatched,
    MaxModelLen,
    MemoryLimit,
    Offline,
    PackedCache,
    PrefixCaching,
    Revision,
    Threads,
)


def serve(
    model: Annotated[
        str | None, typer.Argument(help="A .gguf file, a folder, or a name on the Hub.")
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="0 takes any that is free.")] = 8000,
    api_key: Annotated[list[str] | None, typer.Option(metavar="KEY")] = None,
    max_model_len: MaxModelLen = None,
    memory_limit: MemoryLimit = "80%",
    threads: Threads = None,
    activations: Activations = "int8",
    kv_cache_dtype: KVDtype = "auto",
    block_size: BlockSize = 32,
    max_num_seqs: Annotated[int, typer.Option(metavar="N")] = 64,
    max_num_batched_tokens: MaxBatched = 512,
    enable_prefix_caching: PrefixCaching = True,
    revision: Revision = None,
    offline: Offline = False,
    packed_cache: PackedCache = True,
) -> int:
    """Serves a model over HTTP, as OpenAI's clients expect."""
    from flyweight.config import Settings
    from flyweight.server.front import Front
    from flyweight.server.run import serve as run
    from flyweight.server.settings import ServerSettings

    settings = Settings.of(
        model=model, max_model_len=max_model_len, memory_limit=memory_limit, threads=threads,
        activations=activations, kv_cache_dtype=kv_cache_dtype, block_size=block_size,
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching, revision=revision, offline=offline,
        packed_cache=packed_cache,
    )  # fmt: skip
    server = ServerSettings(host=host, port=port, keys=tuple(api_key or ()))

    def told(front: Front, sock: socket.socket) -> None:
        typer.echo(f"http://{host}:{sock.getsockname()[1]}", err=True)

    return run(settings, server, told)
