"""`flyweight serve`: a model behind an OpenAI-compatible endpoint.

Invariant: every word is understood or refused before a file is opened.
"""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

# Its words are read here, not by typer: options of several words, -tp, and a file of options.
WORDS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class ServeCommand(TyperCommand):
    """Completes the options of `serve` in a shell; typer does not know them."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        from flyweight.cli.serve.options import GROUPS

        # typer is built on click, from 0.26 on on a copy of its own
        click = TyperCommand.__mro__[1].__module__.rpartition(".")[0]
        item = import_module(f"{click}.shell_completion").CompletionItem
        known = [(name, flag) for group in GROUPS.values() for flag in group
                 for name in flag.spellings]  # fmt: skip
        dashed = incomplete.startswith("-")
        return [item(n, help=flag.help) for n, flag in known if dashed and n.startswith(incomplete)]


def serve(context: typer.Context) -> int:
    """Serve a model over HTTP, with the APIs of OpenAI and others."""
    return main(context.args)


def main(words: list[str]) -> int:
    """Runs `flyweight serve` with these words; the exit code."""
    from flyweight.cli.serve.words import read

    parsed = read(words)
    from flyweight.cli.serve.banner import Banner
    from flyweight.cli.serve.choices import choose
    from flyweight.server.lifecycle.start import serve as run

    choice = choose(parsed)
    if choice.detach:
        from flyweight.cli.serve.detach import detach

        return detach(words, choice.server.log_file, choice.as_json)
    banner = Banner(choice)
    if choice.headless:
        from flyweight.describe import find
        from flyweight.node import run_node

        banner.found(path := find(choice.settings, banner))
        return run_node(choice.settings, path, banner)
    return run(choice.models, choice.server, banner, choice.requests, choice.sources)
