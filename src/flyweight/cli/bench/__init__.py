"""`flyweight bench`: what is measured, a command each."""

from flyweight.cli.bench import (
    batch_sweep,
    fragmentation,
    kernels,
    offline,
    sampling,
    serve,
    spec,
    stages,
    startup,
    window,
)
from flyweight.cli.bench.explained import add_definitions
from flyweight.cli.help import HelpCommand, make_group

app = make_group(help="Measure speed against the machine's limits and other engines.")
app.command("kernels", cls=HelpCommand)(add_definitions(kernels.kernels, "kernels"))
app.command("throughput", cls=HelpCommand)(add_definitions(offline.throughput, "throughput"))
app.command("latency", cls=HelpCommand)(add_definitions(offline.latency, "latency"))
app.command("startup", cls=HelpCommand)(add_definitions(startup.startup, "startup"))
app.command("batch-sweep", cls=HelpCommand)(batch_sweep.batch_sweep)
app.command("sampling", cls=HelpCommand)(sampling.sampling)
app.command("spec", cls=HelpCommand)(spec.spec)
app.command("stages", cls=HelpCommand)(stages.stages)
app.command("fragmentation", cls=HelpCommand)(fragmentation.fragmentation)
app.command("window", cls=HelpCommand)(window.window)
app.command("serve", cls=HelpCommand)(add_definitions(serve.serve, "serve"))


@app.callback()
def bench() -> None:
    """Measure speed against the machine's limits and other engines."""
