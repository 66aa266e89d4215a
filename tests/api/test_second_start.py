"""A second start keeps to the bound on resident memory: a file of Qwen3-0.6B's shape that has
Qwen's own vocabulary.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from big_model import qwen_words, write_06b

MEASURED = Path(__file__).parent / "measured.py"
LOAD = {"max_model_len": 512, "max_num_seqs": 1, "max_num_batched_tokens": 256}
SPARE = 250 * 10**6  # bytes next to 1.15 times the file, and K/V


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, data: Callable[[str], Path]) -> Iterator[Path]:
    words = qwen_words(data("tokenizer-qwen2"))
    path = write_06b(tmp_path_factory.mktemp("06b") / "model.gguf", words=words)
    yield path
    path.unlink()


def start(model: Path, kept: Path, **settings: Any) -> dict[str, Any]:
    """What a process of its own held, that answered one prompt."""
    paths = os.pathsep.join(p for p in sys.path if p)
    reported = json.dumps({**LOAD, **settings})
    done = subprocess.run(
        [sys.executable, str(MEASURED), str(model), reported, "1", "64"],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": paths,
            "FLYWEIGHT_CACHE": str(kept),
            "FLYWEIGHT_CACHE_SIZE": "1GiB",
        },
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_second_start_holds_the_file_once(model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = start(model, kept)
    assert first["peak"] <= first["need"]
    [file] = kept.iterdir()
    before = file.stat()
    second = start(model, kept, memory_limit=round(1.03 * first["need"]))
    after = file.stat()
    assert after.st_ino == before.st_ino and after.st_mtime_ns > before.st_mtime_ns, "it was used"
    assert second["peak"] <= second["high_water"] <= second["limit"]
    kv = next(amount for what, amount in second.items() if what.startswith("K/V"))
    assert second["high_water"] <= 1.15 * model.stat().st_size + kv + SPARE
