"""What a person sees while a model loads and runs: the memory plan, a progress bar, a line of
figures.

Everything here goes to stderr, so that stdout holds the answer and nothing else.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from flyweight.describe import ModelDescription, describe_kernels
from flyweight.outputs import RequestOutput
from flyweight.plan.memory import MemoryPlan, format_size, summarize
from flyweight.validation.untrusted import printable

SHOW_BAR_ABOVE = 200 << 20  # bytes; less loads in well under two seconds


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints words as they are: `[b]` or `:dog:` may be a file or token."""
    return Console(stderr=stderr, markup=False, emoji=False)


def format_name(path: Path) -> str:
    """A model's name: `.` has one too, and a link its own."""
    return printable(os.path.basename(os.path.abspath(path)) or str(path))


class LoadingDisplay:
    """Tells about a load: notes and warnings, the memory plan in a line or (`verbose`) as a table,
    and a bar for downloads and for large files at a terminal.
    """

    def __init__(self, console: Console, verbose: bool, plan: bool = True) -> None:
        self.console, self.verbose, self.plan = console, verbose, plan
        self.bar: Progress | None = None
        self.task: TaskID | None = None

    def show_plan(self, plan: MemoryPlan, found: ModelDescription) -> None:
        if not self.plan:
            return
        if found.checkpoint.opened:
            opened = describe_kernels(found.checkpoint.opened)
            self.note(f"{format_name(found.checkpoint.path)}: {opened}")
        if self.verbose:
            self.console.print(make_memory_table(plan))
            return
        line = f"{format_name(found.checkpoint.path)}: {summarize(plan)}"
        self.console.print(line, style="dim", highlight=False, soft_wrap=True)

    def report_progress(self, done: int, total: int) -> None:
        if total < SHOW_BAR_ABOVE or not self.console.is_terminal:
            return
        self._advance("loading", done, total)

    def show_download(self, file: str, done: int, total: int) -> None:
        if self.console.is_terminal:
            speed = TransferSpeedColumn(), TimeRemainingColumn()
            self._advance(f"fetching {printable(file)[-40:]}", done, total, *speed)

    def _advance(self, what: str, done: int, total: int, *more: ProgressColumn) -> None:
        if self.bar is None:
            columns = TextColumn("{task.description}", markup=False), BarColumn()
            size = DownloadColumn(binary_units=True)
            self.bar = Progress(*columns, size, *more, console=self.console, transient=True)
            self.bar.start()
            self.task = self.bar.add_task(what, total=total)
        assert self.task is not None
        self.bar.update(self.task, completed=done, total=total, description=what)
        if done >= total:
            self.stop()

    def stop(self) -> None:
        """Removes the bar, at any point of the load."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def note(self, message: str) -> None:
        self.console.print(printable(message), style="dim", highlight=False, soft_wrap=True)

    def warn(self, message: str) -> None:
        line = f"warning: {printable(message)}"
        self.console.print(line, style="yellow", highlight=False, soft_wrap=True)


@contextmanager
def show_loading(*, verbose: bool = False, planned: bool = True) -> Iterator[LoadingDisplay]:
    """A `LoadingDisplay` on stderr, whose bar goes when the block ends, however it ends; `planned`
    prints the memory plan.
    """
    display = LoadingDisplay(make_console(stderr=True), verbose, planned)
    try:
        yield display
    finally:
        display.stop()


def make_table(title: str, *columns: str) -> Table:
    """A table with a title and a line under its head, and nothing else."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=bool(columns),
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def make_memory_table(plan: MemoryPlan) -> Table:
    """The memory plan, part by part."""
    table = make_table("Memory plan", "what", "bytes")
    table.columns[1].justify = "right"
    for what, amount in plan.list_rows():
        table.add_row(what, format_size(amount))
    table.add_row("planned peak", format_size(plan.need), style="bold")
    table.add_row("allowed", format_size(plan.limit))
    return table


def describe_stats(now: Mapping[str, int], block_size: int) -> list[str]:
    """The engine's counters, as `LLM.stats` has them, in sentences."""
    stopped = f", {now['aborted']} stopped early" if now["aborted"] else ""
    answers = "1 answer" if now["finished"] == 1 else f"{now['finished']} answers"
    lines = [
        f"Engine: {answers} finished{stopped}; {now['computed']} tokens computed, "
        f"{now['produced']} written, {now['cached']} found in the prefix cache.",
        f"K/V cache: {now['cached_blocks']} of {now['blocks']} blocks of {block_size} tokens hold "
        "text that can be found again.",
    ]
    if now["proposed"]:
        lines.append(f"Speculation: {now['accepted']} of {now['proposed']} draft tokens accepted.")
    if now["decode_us"]:
        times = now["undrafted_us"] / now["decode_us"]
        lines.append(f"Decoding: {times:.2f} times as fast as without drafts, by measured steps.")
    if now["preempted"]:
        lines.append(f"Preemptions: {now['preempted']}.")
    return lines


def describe_cut(out: RequestOutput, longest: int) -> str:
    """Why an answer ends in the middle, where it does; `longest` is prompt and answer together."""
    if out.outputs[0].finish_reason != "length":
        return ""
    known = len(out.prompt_token_ids) + len(out.outputs[0].token_ids)
    return "context full" if known >= longest else "stopped at max_tokens"


def describe_figures(out: RequestOutput, longest: int) -> str:
    """`182 tokens · 1204.3 tokens/s · first token after 3 ms · 5 of 6 prompt tokens from cache`;
    then why the answer was cut short.
    """
    m = out.metrics
    tokens = sum(len(o.token_ids) for o in out.outputs)
    parts = ["1 token" if tokens == 1 else f"{tokens} tokens"]
    if m.decode_rate:
        parts.append(f"{m.decode_rate:.1f} tokens/s")
    parts.append(f"first token after {1000 * m.ttft:.0f} ms")
    if out.num_cached_tokens:
        parts.append(
            f"{out.num_cached_tokens} of {len(out.prompt_token_ids)} prompt tokens from cache"
        )
    why = describe_cut(out, longest)
    return " · ".join([*parts, why] if why else parts)
