"""`--explain` of the bench commands: prints what each of their figures means, and exits.

Invariant: a command is unchanged where the option is not given.  Measures nothing.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

Result = TypeVar("Result")


def add_definitions(command: Callable[..., Result], name: str) -> Callable[..., Result]:
    """The command with the option."""

    def show(wanted: bool) -> None:
        if wanted:
            print_definitions(name)
            raise typer.Exit

    option = typer.Option(
        "--explain", callback=show, is_eager=True, help="Define each figure, and exit."
    )

    def call(explain: bool = False, **values: Any) -> Result:
        return command(**values)

    own = inspect.signature(command, eval_str=True)
    explain = inspect.Parameter(
        "explain",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, option],
    )
    rows = [row.replace(kind=inspect.Parameter.KEYWORD_ONLY) for row in own.parameters.values()]
    rows.append(explain)
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__signature__ = own.replace(parameters=rows)  # type: ignore[attr-defined]
    call.__annotations__ = {row.name: row.annotation for row in rows}
    return call


def print_definitions(name: str) -> None:
    """A table that fits the terminal."""
    from flyweight.bench.definitions import BY_COMMAND
    from flyweight.cli.show import make_console, make_table

    table = make_table(f"Figures of flyweight bench {name}", "figure", "unit", "definition")
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for one in BY_COMMAND[name]:
        table.add_row(one.name, one.unit, one.text)
    make_console().print(table)
