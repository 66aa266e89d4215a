"""`flyweight serve`: a model behind an OpenAI-compatible endpoint.

Invariant: every word is understood or refused before a file is opened.
"""

import typer

# Its words are read here, not by typer: options of several words, -tp, and a file of options.
WORDS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def serve(context: typer.Context) -> int:
    """Serves a model over HTTP, as OpenAI's clients expect."""
    return main(context.args)


def main(words: list[str]) -> int:
    """Runs `flyweight serve` with these words; the exit code."""
    from flyweight.cli.serve.words import read

    asked = read(words)
    from flyweight.cli.serve.banner import Banner
    from flyweight.cli.serve.choices import choose
    from flyweight.server.run import serve as run

    choice = choose(asked)
    if choice.detach:
        from flyweight.cli.serve.detach import detach

        return detach(words, choice.server.log_file, choice.as_json)
    return run(choice.settings, choice.server, Banner(choice), choice.wishes)
