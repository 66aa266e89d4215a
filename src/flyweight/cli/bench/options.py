"""Options the bench commands share, and the files that they name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from flyweight.errors import ConfigError

Model = Annotated[
    str, typer.Argument(metavar="[MODEL]", help="A .gguf file, a folder, or org/name.")
]
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
Vs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PEER",
        help="Peer to measure in turn: llama.cpp or openvino; =FILE for another file of the "
        "same weights, and flags: 'llama.cpp -fa off'; may be repeated.",
    ),
]
VsPython = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Python that has the peers.  [default: FLYWEIGHT_PEER_PYTHON, or this one]",
    ),
]
VsBinary = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Path of llama-bench, or of its folder."),
]


@contextmanager
def using(name: str, path: Path | None) -> Iterator[None]:
    """What the system refuses about a file is told by the option that named it."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "this is not text"
        raise ConfigError(f"{name} = {str(path)!r}: {why}") from None


def writable(name: str, given: str | None) -> Path | None:
    """The path of a file that can be written, found out before anything is measured; what is in it
    stays.  Raises `ConfigError`.
    """
    if not given:
        return None
    path = Path(given).expanduser()
    with using(name, path):
        there = path.exists()
        path.open("a").close()
        if not there:  # nothing may come to be written
            path.unlink()
    return path
