"""What a person sees while a model loads and runs: the memory plan, a progress bar, one line of figures.

Everything here goes to stderr, so that stdout holds the answer and nothing else.
"""

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Table

from flyweight.plan.memory import MemoryPlan, size
from flyweight.results import RequestOutput
from flyweight.spec import ModelSpec

SHOW_BAR_ABOVE = 200 << 20  # bytes; less loads in well under two seconds


class Loading:
    """Tells about a load: warnings always, the plan when `verbose` or when the user set a limit."""

    def __init__(self, console: Console, verbose: bool) -> None:
        self.console, self.verbose = console, verbose
        self.bar: Progress | None = None
        self.task: TaskID | None = None

    def planned(self, plan: MemoryPlan, spec: ModelSpec) -> None:
        if self.verbose:
            self.console.print(memory_table(plan))
        else:
            self.console.print(f"[dim]{summary(plan)}[/dim]", highlight=False)

    def progress(self, done: int, total: int) -> None:
        if total < SHOW_BAR_ABOVE or not self.console.is_terminal:
            return
        if self.bar is None:
            columns = (TextColumn("loading weights"), BarColumn(), DownloadColumn(binary_units=True))
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("load", total=total)
        assert self.task is not None
        self.bar.update(self.task, completed=done)
        if done >= total:
            self.bar.stop()

    def warn(self, message: str) -> None:
        self.console.print(f"warning: {message}", style="yellow", highlight=False)


def summary(plan: MemoryPlan) -> str:
    """One line: what this run may take."""
    return (
        f"memory: {size(plan.need)} planned of {size(plan.limit)} allowed "
        f"(weights {size(plan.weights)}, K/V {size(plan.kv)} for {plan.blocks * plan.sizing.block_size} tokens)"
    )


def memory_table(plan: MemoryPlan) -> Table:
    """The memory plan, part by part."""
    table = Table(title="memory plan", title_justify="left", box=None, pad_edge=False)
    table.add_column("what")
    table.add_column("bytes", justify="right")
    for what, amount in plan.rows():
        table.add_row(what, size(amount))
    table.add_row("planned peak", size(plan.need), style="bold")
    table.add_row("allowed", size(plan.limit))
    return table


def figures(out: RequestOutput) -> str:
    """`182 tokens · 1204.3 tokens/s · first token after 3 ms · 5 of 6 prompt tokens from cache`."""
    m = out.metrics
    tokens = sum(len(o.token_ids) for o in out.outputs)
    parts = [f"{tokens} tokens", f"{m.decode_rate:.1f} tokens/s", f"first token after {1000 * m.ttft:.0f} ms"]
    if out.num_cached_tokens:
        parts.append(f"{out.num_cached_tokens} of {len(out.prompt_token_ids)} prompt tokens from cache")
    return " · ".join(parts)
