"""The files of a batch by their names: Parquet, or JSON Lines.

Invariant: pyarrow is imported for a Parquet file alone.
"""

from pathlib import Path

from flyweight.batch.output import OutputFile
from flyweight.batch.rows import JsonLines, RowFile
from flyweight.errors import ConfigError

PARQUET = ".parquet"


def open_rows(path: Path) -> RowFile:
    """An input.  Raises `ConfigError`."""
    if path.suffix.lower() == PARQUET:
        from flyweight.batch.parquet import ParquetRows

        return ParquetRows(path)
    if not path.is_file():
        why = "is not a file" if path.exists() else "does not exist"
        raise ConfigError(why, "input", value=str(path), allowed="a .jsonl or .parquet file")
    return JsonLines(path)


def open_output(path: Path) -> OutputFile:
    """An output.  Raises `ConfigError`."""
    if path.suffix.lower() == PARQUET:
        from flyweight.batch.parquet import ParquetOutput

        return ParquetOutput(path)
    return OutputFile(path)
