"""The folder of a quantised model: config, tokenizer files, and one file of tensors.

Invariant: a folder under its final name is whole: until then it has another name.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "generation_config.json", "chat_template.jinja", "chat_template.json", "vocab.json",
    "merges.txt", "tokenizer.model", "tekken.json", "LICENSE", "LICENSE.txt", "NOTICE",
)  # fmt: skip
WEIGHTS = "model.safetensors"


def copy_companions(source: Path, folder: Path) -> None:
    """The files of a model's folder that are neither weights nor config."""
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    for file in source.glob("*.tiktoken"):
        shutil.copyfile(file, folder / file.name)


def find_draft(path: Path) -> Path:
    """Where a file is while it is written."""
    return path.with_name(f".{path.name}.draft")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    draft = find_draft(path)
    with draft.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def publish(made: Path, out: Path) -> None:
    """Gives a finished folder or file its final name."""
    made.rename(out)
    directory = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
