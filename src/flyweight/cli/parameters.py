"""Parameters of commands as data: a table of options takes the place of one parameter.

Invariant: a command gets the values of a table as one object: a mapping by the options' names, or
the dataclass whose fields are the options.  Knows no option.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Self, TypeVar, get_type_hints

import typer

Result = TypeVar("Result")
Values = dict[str, Any]


class OptionTable:
    """Options that take the place of one parameter, which is an `Annotated[Values,
    OptionTable(rows)]`, or annotated with a dataclass.  `make` makes the object that the command
    gets.
    """

    def __init__(self, rows: Iterable[inspect.Parameter], make: Callable[..., Any] = dict) -> None:
        self.rows, self.make = tuple(rows), make

    @classmethod
    def of_fields(cls, kind: type[Any]) -> Self:
        """The fields of a dataclass, annotated with their options."""
        types = get_type_hints(kind, include_extras=True)
        rows = (
            inspect.Parameter(
                known.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=known.default,
                annotation=types[known.name],
            )
            for known in fields(kind)
        )
        return cls(rows, kind)

    @classmethod
    def find(cls, annotation: Any) -> Self | None:
        """The table that an annotation names, if any."""
        if is_dataclass(annotation) and isinstance(annotation, type):
            return cls.of_fields(annotation)
        return next(
            (one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, cls)), None
        )


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
        table = OptionTable.find(parameter.annotation)
        if table is not None:
            tables[parameter.name] = table
            rows += table.rows
        else:
            rows.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def call(**values: Any) -> Result:
        grouped = {
            name: table.make(**{row.name: values.pop(row.name) for row in table.rows})
            for name, table in tables.items()
        }
        return command(**values, **grouped)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__signature__ = own.replace(parameters=rows)  # type: ignore[attr-defined]
    call.__annotations__ = {row.name: row.annotation for row in rows}
    return call
