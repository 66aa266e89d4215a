"""Batches in Parquet files, read and written with pyarrow.

Invariant: an output in Parquet is written once, from the lines of a journal next to it, when all
rows are answered; until then the journal says what is done.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Never

import msgspec

from flyweight.batch.output import OutputFile, name_output
from flyweight.batch.rows import Row, RowIndex, name_input, parse_row_id
from flyweight.errors import ConfigError

ROWS = 256  # read at a time, and of a group written
JOURNAL = ".partial.jsonl"  # after the output's name
COLUMNS = ("id", "custom_id", "status_code", "text", "response", "error")


def import_parquet(name: str, path: Path) -> Any:
    """pyarrow's readers and writers of Parquet.  Raises `ConfigError` without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        problem = "needs pyarrow; pip install pyarrow"
        raise ConfigError(problem, name, value=str(path), allowed="a .jsonl file") from None
    return pyarrow


class GroupBatch(NamedTuple):
    """Rows from number `first` on, of a row group that has the rows before number `end`."""

    first: int
    end: int
    rows: Any


class ParquetRows:
    """A file whose rows are numbered in order; columns and fields of structs that are null in a row
    are left out.

    A row group can be decoded only from its beginning.  So a read keeps its place, and the next one
    goes on there where it begins in the same group and not before.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._arrow = path, import_parquet("input", path)
        self._place: tuple[GroupBatch, Iterator[GroupBatch]] | None = None
        self._open().close()

    def read(self, number: int = 1, position: int = 0) -> Iterator[Row]:
        with name_input(self.path):
            batch, rest = self._find_place(number)
            while batch is not None:
                skipped = max(0, number - batch.first)
                rows = batch.rows.slice(skipped).to_pylist()
                try:
                    for at, row in enumerate(rows, batch.first + skipped):
                        yield Row(at, 0, encode_row(row))
                except GeneratorExit:  # the reader has the rows that it wants
                    self._place = batch, rest
                    raise
                batch = next(rest, None)

    def _find_place(self, number: int) -> tuple[GroupBatch | None, Iterator[GroupBatch]]:
        """The batch with a row, and those after it."""
        place, self._place = self._place, None
        if place is not None and place[0].first <= number < place[0].end:
            batch: GroupBatch | None
            batch, rest = place
        else:
            rest = self._read_batches(number)
            batch = next(rest, None)
        while batch is not None and batch.first + batch.rows.num_rows <= number:
            batch = next(rest, None)
        return batch, rest

    def _read_batches(self, number: int) -> Iterator[GroupBatch]:
        """From the beginning of the row group that has the row `number`."""
        with self._open() as file:
            at = 1
            for group in range(file.num_row_groups):
                first, at = at, at + file.metadata.row_group(group).num_rows
                if at <= number:
                    continue
                for rows in file.iter_batches(ROWS, row_groups=[group]):
                    yield GroupBatch(first, at, rows)
                    first += rows.num_rows

    def _open(self) -> Any:
        try:
            return self._arrow.parquet.ParquetFile(self.path)
        except (self._arrow.ArrowInvalid, OSError) as error:
            why = getattr(error, "strerror", None) or "this is not a Parquet file"
            raise ConfigError(f": {why}", "input", value=str(self.path)) from None


def encode_row(row: dict[str, Any]) -> bytes:
    """A row as JSON; a `body` that is text is the JSON text of one."""
    fields = drop_nulls(row)
    if isinstance(fields.get("body"), str):
        fields["body"] = msgspec.Raw(fields["body"].encode())
    return msgspec.json.encode(fields)


def drop_nulls(value: Any) -> Any:
    """Without the fields that are null: all rows of a column have the same ones.  Null items of a
    list are kept.
    """
    if isinstance(value, dict):
        return {name: drop_nulls(one) for name, one in value.items() if one is not None}
    return [drop_nulls(one) for one in value] if isinstance(value, list) else value


class ParquetOutput(OutputFile):
    """Lines in a journal next to a Parquet file, which is made of them in the end."""

    def __init__(self, path: Path) -> None:
        self._arrow, self._final = import_parquet("output", path), path
        super().__init__(path.with_name(path.name + JOURNAL))

    def recover(self, index: RowIndex) -> None:
        """See `OutputFile.recover`; a file that is complete has all rows."""
        super().recover(index)
        if not self._final.exists():
            return
        with name_output(self._final):
            try:
                with self._arrow.parquet.ParquetFile(self._final) as file:
                    for batch in file.iter_batches(columns=["id", "error"]):
                        for row in batch.to_pylist():
                            self._mark(row, index)
            except (self._arrow.ArrowInvalid, KeyError):
                self._refuse()
        if index.done < index.rows:
            self._refuse()

    def finish(self) -> None:
        """Writes the Parquet file and removes the journal."""
        if self._final.exists():
            self.path.unlink()
            return
        part = self._final.with_name(self._final.name + ".partial")
        schema = self._arrow.schema(
            [(n, self._arrow.int64() if n == "status_code" else self._arrow.string())
             for n in COLUMNS]
        )  # fmt: skip
        with name_output(self._final):
            with self._arrow.parquet.ParquetWriter(part, schema) as writer:
                for rows in self._read_groups():
                    writer.write_table(self._arrow.Table.from_pylist(rows, schema))
            part.replace(self._final)
            self.path.unlink()

    def _read_groups(self) -> Iterator[list[dict[str, Any]]]:
        found = []
        with self.path.open("rb") as lines:
            for line in lines:
                found.append(make_columns(line))
                if len(found) == ROWS:
                    yield found
                    found = []
        yield found

    def _mark(self, row: dict[str, Any], index: RowIndex) -> None:
        id = parse_row_id(row["id"] or "")
        if id is None:
            self._refuse()
        self.failed += index.mark(*id, f"output {str(self._final)!r}") and row["error"] is not None

    def _refuse(self) -> Never:
        """The file is there, and is not the complete output for these rows."""
        problem = "exists and does not answer all rows of the input"
        raise ConfigError(problem, "output", value=str(self._final), allowed="another file")


def make_columns(line: bytes) -> dict[str, Any]:
    """A line of the output as a row: the first choice's text, and the rest as JSON."""
    fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    response = msgspec.json.decode(fields["response"])
    found = {name: msgspec.json.decode(fields[name]) for name in ("id", "custom_id")}
    error = bytes(fields["error"]).decode()
    choice: dict[str, Any] = next(iter(response["body"].get("choices", ())), {})
    return {
        **found,
        "status_code": response["status_code"],
        "text": choice.get("text", choice.get("message", {}).get("content")),
        "response": msgspec.json.encode(response["body"]).decode(),
        "error": None if error == "null" else error,
    }
