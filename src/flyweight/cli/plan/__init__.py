"""`flyweight plan`: what a model needs before it is loaded, a command each."""

from flyweight.cli.help import HelpCommand, make_group
from flyweight.cli.plan import kv, memory, roofline

app = make_group(help="Predict memory, speed, cost and energy before loading a model.")
app.command("memory", cls=HelpCommand)(memory.memory)
app.command("kv", cls=HelpCommand)(kv.kv)
app.command("roofline", cls=HelpCommand)(roofline.roofline)


@app.callback()
def plan() -> None:
    """Predict memory, speed, cost and energy before loading a model."""
