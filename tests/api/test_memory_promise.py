"""The memory promise, measured: a model of Qwen3-0.6B's shape, in a process of its own, under load
with its K/V full, holds what was planned and never more than was allowed.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from big_model import write_06b

MEASURED = Path(__file__).parent / "measured.py"
# Eight sequences of 96 tokens fill 24 blocks.
LOAD = {"max_model_len": 96, "max_num_seqs": 8, "max_num_batched_tokens": 256, "blocks": 24}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = write_06b(tmp_path_factory.mktemp("06b") / "model.gguf")
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same with two layers and few words: quickly written and read."""
    path = write_06b(tmp_path_factory.mktemp("flat") / "model.gguf", layers=2, vocab=4096)
    yield path
    path.unlink()


def run(
    model: Path, settings: dict[str, Any], prompts: int, tokens: int, task: str = "generate"
) -> dict[str, Any]:
    words = [str(model), json.dumps(settings), str(prompts), str(tokens), task]
    paths = os.pathsep.join(p for p in sys.path if p)  # pytest's, which a child does not inherit
    done = subprocess.run(
        [sys.executable, str(MEASURED), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_under_load_memory_stays_under_the_limit(big: Path) -> None:
    need = run(big, LOAD, 0, 0)["need"]
    got = run(big, {**LOAD, "memory_limit": round(1.03 * need)}, 8, 96)
    assert got["limit"] == round(1.03 * need)
    assert got["stats"]["computed"] == 8 * 95, "every prompt and answer, the last token apart"
    assert got["blocks"] == 24 and got["stats"]["preempted"] == 0
    assert got["peak"] <= got["high_water"] <= got["limit"]
    assert 0.8 * got["need"] <= got["peak"], "the plan asks for much more than is used"
    refused = run(big, {**LOAD, "memory_limit": round(0.97 * need)}, 8, 96)["refused"]
    assert "is too small: this model needs" in refused


@pytest.mark.parametrize("task", ["embed", "search"])
def test_vectors_and_searches_stay_under_the_limit(flat: Path, task: str) -> None:
    """Prompts of full length: their hidden states are never all there at once."""
    load = {"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 512, "blocks": 160}
    need = run(flat, load, 0, 0)["need"]
    got = run(flat, {**load, "memory_limit": round(1.03 * need)}, 8, 1024, task)
    assert got["stats"]["computed"] >= 8 * 1016
    assert got["peak"] <= got["high_water"] <= got["limit"]


def test_what_is_suggested_fits(flat: Path) -> None:
    requested = {"max_model_len": 4096, "max_num_seqs": 2, "max_num_batched_tokens": 256}
    need = run(flat, {**requested, "memory_limit": "99%"}, 0, 0)
    least = need["need"] - (need["blocks"] // 2 - 1) * need["K/V, 258 blocks of 32 tokens"] // 258
    refused = run(flat, {**requested, "memory_limit": round(0.97 * least)}, 0, 0)["refused"]
    ways = suggested(refused)
    assert len(ways) == 3, refused
    for way in ways:
        limit = {"memory_limit": round(0.97 * least)}
        settings = {**requested, **limit, **way}
        got = run(flat, settings, 2, 64)
        assert got["high_water"] <= got["limit"], way
    assert list(ways[1]) == ["max_model_len"] and ways[1]["max_model_len"] < 4096
    assert ways[2] == {"kv_cache_dtype": "int8"}


def suggested(refused: str) -> list[dict[str, Any]]:
    """`a = 1, b = 2 or c = 3MiB` -> the settings of each way."""
    ways = refused.split("nearest settings that fit: ")[1].split(" or ")
    found = []
    for way in ways:
        pairs = re.findall(r"(\w+) = (\w+)", way)
        found.append({name: int(v) if v.isdigit() else v for name, v in pairs})
    return found
