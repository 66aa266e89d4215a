"""Rows of a batch, and the texts that `LLM.generate` has for them."""

import json
from pathlib import Path
from typing import Any

from flyweight import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The cat", "Lily and Tom", "One day", "The dog was", "A big tree"]
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_tokens": 12}
ROWS: list[Any] = [{"custom_id": text, "prompt": text, **OPTIONS} for text in PROMPTS]


def write_rows(file: Path, rows: list[Any]) -> Path:
    """A row that is a text is written as it is."""
    texts = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


def write_table(file: Path, rows: list[dict[str, Any]], size: int = 2) -> Path:
    """A Parquet file whose row groups have `size` rows."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=size)
    return file


def read_texts(file: Path) -> dict[str, str]:
    """The texts of an output, by their custom_id; errors are left out."""
    lines = map(json.loads, file.read_text().splitlines())
    return {
        line["custom_id"]: line["response"]["body"]["choices"][0]["text"]
        for line in lines
        if line["error"] is None
    }


def generate_texts() -> dict[str, str]:
    with LLM("stories", threads=1) as llm:
        found = llm.generate(PROMPTS, SamplingParams(**OPTIONS), use_tqdm=False)
    return {text: out.outputs[0].text for text, out in zip(PROMPTS, found, strict=True)}
