"""docs/sampling.md lists the declared sampling options, each once, as they are declared."""

import importlib.util
import re
from pathlib import Path

from flyweight.types import OPTIONS

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
