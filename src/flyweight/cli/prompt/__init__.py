"""`flyweight prompt`: prompts checked and made, a command each."""

from flyweight.cli.help import HelpCommand, make_group
from flyweight.cli.prompt import lint, rag

app = make_group(help="Check prompts for the prefix cache; fill RAG templates.")
app.command("lint", cls=HelpCommand)(lint.lint)
app.command("rag", cls=HelpCommand)(rag.rag)


@app.callback()
def prompt() -> None:
    """Check prompts for the prefix cache; fill RAG templates."""
