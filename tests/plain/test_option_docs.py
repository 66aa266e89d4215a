"""What is made from declared options and settings: tables of the docs, and columns of a step."""

import importlib.util
import re
from dataclasses import fields
from pathlib import Path

from flyweight.config import Settings
from flyweight.sampling.arrays import RECORD
from flyweight.sampling.options import LAYOUT, UNPACKED
from flyweight.sampling.options import RECORD as PACKED
from flyweight.types import OPTIONS
from flyweight.wire import CutRow, SampleBatch

ROOT = Path(__file__).parents[2]


def test_tables_are_those_of_the_declarations() -> None:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "tools" / "option_tables.py")
    assert spec and spec.loader
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.write_page(page) == page, "run: python tools/option_tables.py"
    assert sorted(re.findall(r"^\| `(\w+)` \| .* \|$", page.split("## Reproducibility")[0], re.M)) \
        == sorted(OPTIONS)  # fmt: skip


def test_columns_are_those_of_the_declarations() -> None:
    assert (*UNPACKED, "mu") == CutRow._fields
    assert RECORD.itemsize == PACKED.size and LAYOUT.keys() <= set(SampleBatch.__slots__)
    columns = {one.column for one in OPTIONS.values()} - {""}
    assert columns <= set(SampleBatch.__slots__)


def test_every_engine_setting_is_in_the_page_about_python() -> None:
    page = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    assert [known.name for known in fields(Settings) if f"`{known.name}`" not in page] == [
        "model"  # the first argument
    ]
