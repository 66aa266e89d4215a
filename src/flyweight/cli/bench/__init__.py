"""`flyweight bench`: what is measured, a command each."""

import typer

from flyweight.cli.bench import kernels, offline, serve, startup

app = typer.Typer(
    help="Measure speed against the machine's limits and other engines.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("kernels")(kernels.kernels)
app.command("throughput")(offline.throughput)
app.command("latency")(offline.latency)
app.command("startup")(startup.startup)
app.command("serve")(serve.serve)


@app.callback()
def bench() -> None:
    """Measure speed against the machine's limits and other engines."""
