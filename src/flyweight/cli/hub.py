"""`flyweight pull NAME`, `flyweight models`, `flyweight rm NAME`: models of the Hugging Face Hub on
this machine.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.config import Settings
from flyweight.errors import CheckpointError, RequestError
from flyweight.passport import UNKNOWN, Quality

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.weights.hub.cache import CachedModel
    from flyweight.weights.hub.names import HubName

NameOf = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name on the Hub: org/name, org/name:Q4_K_M, ..."),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Remove without asking.")]


@expand
def pull(
    *,
    name: NameOf,
    engine: Annotated[Values, opt.select_settings("revision", "memory_limit")],
) -> None:
    """Fetch a model from the Hub, or its changes; print its path.

    Without a quantisation, it fetches safetensors, or the GGUF file that suits this machine.
    """
    settings = Settings.of(model=name, **engine)
    from flyweight.cli.show import show_loading
    from flyweight.describe import fetch

    with show_loading() as listener:
        path = fetch(parse_name(name, engine["revision"]), settings, listener, newest=True)
    print(path)


def models(as_json: opt.AsJson = False) -> None:
    """List the models in the cache."""
    from flyweight.weights.hub.cache import count_unfinished_bytes, find_cache_folder, list_models

    found, stopped = list_models(), count_unfinished_bytes()
    if as_json:
        print(json.dumps([list_facts(one) for one in found], indent=1))
        return
    from flyweight.cli.show import make_console, make_table
    from flyweight.plan.memory import format_size
    from flyweight.validation.untrusted import printable

    table = make_table(str(find_cache_folder()), "name", "what", "revision", "size", "last used")
    table.columns[0].no_wrap, table.columns[3].justify = True, "right"
    quality = [find_cached_quality(one) for one in found]
    if any(known != UNKNOWN for known in quality):
        table.add_column("quality", overflow="fold")
    for one, known in zip(found, quality, strict=True):
        revision = " ".join((one.commit[:7], *one.refs))
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used))
        words = (one.name, one.what or "no weights", revision, format_size(one.size), used)
        more = [shorten_quality(known)] if len(table.columns) > len(words) else []
        table.add_row(*map(printable, (*words, *more)))
    make_console().print(
        table if found else f"no models in {find_cache_folder()}", soft_wrap=not found
    )
    if stopped:
        print(f"unfinished downloads: {format_size(stopped)}", file=sys.stderr)


@expand
def rm(
    *,
    name: NameOf,
    source: Annotated[Values, opt.select_settings("revision")],
    yes: Yes = False,
) -> None:
    """Remove a model, or one quantisation of it, from the cache."""
    from flyweight.plan.memory import format_size
    from flyweight.validation.untrusted import printable
    from flyweight.weights.hub.cache import Removal

    removal = Removal(parse_name(name, source["revision"]))
    for one in removal.models:
        print(f"{printable(one.name)} {one.commit[:7]}: {format_size(one.size)}", file=sys.stderr)
    if not yes and not confirm(f"remove, which frees {format_size(removal.freed)}? [y/N] "):
        print("nothing removed", file=sys.stderr)
        raise typer.Exit(1)
    removal.execute()
    print(f"freed {format_size(removal.freed)}")


def parse_name(name: str, revision: str | None) -> HubName:
    """A name that must be one of the Hub."""
    from flyweight.weights.hub.names import parse_hub_name

    found = parse_hub_name(name, revision)
    if found is None:
        raise CheckpointError(
            f"{name!r} is not a name on the Hub; write org/name, org/name:Q4_K_M, "
            "or org/name:file.gguf"
        )
    return found


def list_facts(one: CachedModel) -> dict[str, object]:
    """A model of the cache, for scripts."""
    passport = find_cached_quality(one).passport
    return {
        "name": one.name,
        "repo": one.repo,
        "what": one.what,
        "revision": one.commit,
        "refs": list(one.refs),
        "size": one.size,
        "last_used": one.used,
        "quality": passport.summarize() if passport is not None else None,
        "files": [str(file.file_path) for file in one.files],
    }


def find_cached_quality(one: CachedModel) -> Quality:
    """What the passport of a model of the cache says."""
    from flyweight.weights.passports import find_quality

    paths = sorted(file.file_path for file in one.files)
    gguf = [path for path in paths if path.suffix == ".gguf"]
    config = [path.parent for path in paths if path.name == "config.json"]
    return find_quality((gguf or config)[0]) if gguf or config else UNKNOWN


def shorten_quality(known: Quality) -> str:
    """In a few words, for a table."""
    if known.passport is not None:
        return f"mean KLD {known.passport.kld_mean:.4g}"
    return "unknown" if known.problem else ""


def confirm(question: str) -> bool:
    """The answer of a person; without one there is none, so nothing is removed."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise RequestError("rm needs a confirmation, and stdin is not a terminal; add --yes")
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
