"""Parameters of commands as data: a table of options takes the place of one parameter.

Invariant: a command gets the values of a table as one mapping, by the options' names.  Knows no
option.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import typer

Result = TypeVar("Result")
Values = dict[str, Any]


class OptionTable:
    """Options that one parameter stands for, which is an `Annotated[Values, OptionTable(rows)]`."""

    def __init__(self, rows: Iterable[inspect.Parameter]) -> None:
        self.rows = tuple(rows)


def make_row(name: str, kind: Any, default: Any, *flags: str, **shown: Any) -> inspect.Parameter:
    """An option of a table; `flags` are its spellings if they are not its name."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer.Option(*flags, **shown)],
    )


def expand(command: Callable[..., Result]) -> Callable[..., Result]:
    """The command with the options of its tables, for typer."""
    own = inspect.signature(command, eval_str=True)
    tables: dict[str, OptionTable] = {}
    rows: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        table = next(iter(getattr(parameter.annotation, "__metadata__", ())), None)
        if isinstance(table, OptionTable):
            tables[parameter.name] = table
            rows += table.rows
        else:
            rows.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def call(**values: Any) -> Result:
        grouped = {
            name: {row.name: values.pop(row.name) for row in table.rows}
            for name, table in tables.items()
        }
        return command(**values, **grouped)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__signature__ = own.replace(parameters=rows)  # type: ignore[attr-defined]
    call.__annotations__ = {row.name: row.annotation for row in rows}
    return call
