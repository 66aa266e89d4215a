"""A tiny model as its outline, planned by the reference backend."""

import json
from pathlib import Path

import pytest

from flyweight.config import Settings
from flyweight.describe import SilentListener
from flyweight.ops.reference import ReferenceOps
from flyweight.planning.memory import MemoryPlanner
from flyweight.planning.outline import ModelOutline, outline_model
from tiny_model import CONFIG


@pytest.fixture
def outline(tmp_path: Path) -> ModelOutline:
    """Known from config.json alone."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return outline_model(Settings(model=str(tmp_path)), SilentListener())


@pytest.fixture
def planner(outline: ModelOutline) -> MemoryPlanner:
    return MemoryPlanner(outline, ReferenceOps("int8"), cores=2, held=64 << 20)
