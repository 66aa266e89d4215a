"""`flyweight plan`: what a model needs before it is loaded, a command each."""

from flyweight.cli.help import HelpCommand, make_group
from flyweight.cli.plan import capacity, cost, device, energy, kv, memory, parallel, quant, roofline

app = make_group(help="Predict memory, speed, cost and energy before loading.")
app.command("memory", cls=HelpCommand)(memory.memory)
app.command("kv", cls=HelpCommand)(kv.kv)
app.command("roofline", cls=HelpCommand)(roofline.roofline)
app.command("capacity", cls=HelpCommand)(capacity.capacity)
app.command("quant", cls=HelpCommand)(quant.quant)
app.command("cost", cls=HelpCommand)(cost.cost)
app.command("breakeven", cls=HelpCommand)(cost.breakeven)
app.command("energy", cls=HelpCommand)(energy.energy)
app.command("device", cls=HelpCommand)(device.device)
app.command("parallel", cls=HelpCommand)(parallel.parallel)


@app.callback()
def plan() -> None:
    """Predict memory, speed, cost and energy before loading."""
