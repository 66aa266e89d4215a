"""Shares the random models of tests/model."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "model"))
