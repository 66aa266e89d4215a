"""`flyweight bench`: what is measured, a command each."""

import typer

from flyweight.cli.bench import kernels, serving, startup

app = typer.Typer(
    help="Measure speed, beside the machine's limits and beside peers.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("kernels")(kernels.kernels)
app.command("throughput")(serving.throughput)
app.command("latency")(serving.latency)
app.command("startup")(startup.startup)


@app.callback()
def bench() -> None:
    """Measure speed, beside the machine's limits and beside peers."""
