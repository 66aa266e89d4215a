"""Options the bench commands share, and the files that they name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.config import find_peer_python
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.peer import PeerArgument, PeerMethod

Threads = Annotated[
    int | None,
    typer.Option(
        "-t",
        "--threads",
        metavar="N",
        help="Threads to compute with, for peers too.  [default: the cores this process may use]",
    ),
]
MemoryLimit = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Memory for the engine: 6GiB, 512MB, 80%; sampling the limits takes up to 1 GiB more.",
    ),
]
VS = (
    "Engine to compare with: llama.cpp, ik_llama.cpp, openvino or transformers; add =FILE for "
    "another file of the same weights, and flags: 'llama.cpp -fa off'; may be repeated."
)
Vs = Annotated[list[str] | None, typer.Option(metavar="PEER", help=VS)]
VsPython = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Python with the peers installed.  [default: FLYWEIGHT_PEER_PYTHON, or this one]",
    ),
]
VsBinary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[PEER=]PATH",
        help="Path of a llama-bench, or of its folder: llama.cpp's, unless a peer is named "
        "(ik_llama.cpp=PATH); may be repeated.",
    ),
]


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """The engine that is measured."""

    threads: Threads = None
    activations: Annotated[str, opt.make_option("activations")] = "int8"
    kv_cache_dtype: Annotated[str, opt.make_option("kv_cache_dtype")] = "auto"
    memory_limit: MemoryLimit = "80%"
    tensor_parallel_size: Annotated[int, opt.make_option("tensor_parallel_size")] = 1
    enable_expert_parallel: Annotated[bool, opt.make_option("enable_expert_parallel")] = False
    pipeline_parallel_size: Annotated[int, opt.make_option("pipeline_parallel_size")] = 1


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Peers that are measured in turn with it."""

    vs: Vs = None
    vs_python: VsPython = None
    vs_binary: VsBinary = None

    def list_peers(self) -> "list[PeerArgument]":
        from flyweight.bench.peer import PeerArgument

        return [PeerArgument.of(name) for name in self.vs or ()]

    def method(self) -> "PeerMethod":
        from flyweight.bench.peer import PeerMethod
        from flyweight.bench.peer_programs import name_programs

        programs = name_programs(self.vs_binary or ())
        return PeerMethod(python=find_peer_python(self.vs_python), programs=programs)


@contextmanager
def name_errors(name: str, path: Path | None) -> Iterator[None]:
    """Errors of the system about a file name the option that named it."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "this is not text"
        raise ConfigError(f"{name} = {str(path)!r}: {why}") from None


def find_writable(name: str, given: str | None) -> Path | None:
    """The path of a file that can be written, found out before anything is measured; what is in it
    stays.  Raises `ConfigError`.
    """
    if not given:
        return None
    path = Path(given).expanduser()
    with name_errors(name, path):
        there = path.exists()
        path.open("a").close()
        if not there:  # nothing may come to be written
            path.unlink()
    return path
