"""The founding documents' command with a draft model serves, as it is written but for a key, which
an address that others reach needs, and for the port, which is a free one.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyweight import LLM, SamplingParams
from http_server import Running, running
from opt_pair import COMMIT, LARGE, SMALL, write_pair

COMMAND = """
python -m vllm.entrypoints.openai.api_server \\
    --host 0.0.0.0 \\
    --port 8000 \\
    --model facebook/opt-6.7b \\
    --seed 42 \\
    -tp 1 \\
    --gpu_memory_utilization 0.8 \\
    --speculative_config '{"model": "facebook/opt-125m","num_speculative_tokens": 5}'
"""
PROMPT = "The first of all the stories is about"


def list_words() -> list[str]:
    words = shlex.split(COMMAND.replace("\\\n", " "))[1:]
    words[words.index("8000")] = "0"
    return [word.replace("vllm.", "flyweight.") for word in words]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write_pair(folder)
    return folder


@pytest.fixture(scope="module")
def server(cache: Path) -> Iterator[Running]:
    paths = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    with running([*list_words(), "--api-key", "key"], paths) as started:
        yield started


def test_off_loopback_a_key_is_demanded(cache: Path) -> None:
    paths = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    said = r"it ended with 2 and said:\n.*--api-key"
    with pytest.raises(AssertionError, match=said), running(list_words(), paths):
        pass


def find_folder(cache: Path, name: str) -> str:
    return str(cache / f"models--{name.replace('/', '--')}" / "snapshots" / COMMIT)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_are_those_of_the_large_model_alone(
    server: Running, cache: Path, temperature: float
) -> None:
    body: dict[str, Any] = {
        "model": LARGE, "prompt": PROMPT, "max_tokens": 60, "temperature": temperature, "seed": 3,
        "ignore_eos": True,
    }  # fmt: skip
    got = server.post("/v1/completions", body, authorization="Bearer key")
    assert got.status == 200, got.body
    params = SamplingParams(temperature=temperature, max_tokens=60, seed=3, ignore_eos=True)
    (alone,) = LLM(find_folder(cache, LARGE)).generate([PROMPT], params, use_tqdm=False)
    assert got.json["choices"][0]["text"] == alone.outputs[0].text


def test_the_server_says_what_drafts(server: Running) -> None:
    effective = server.get("/v1/engine/effective", authorization="Bearer key").json
    (row,) = [row for row in effective["features"] if row["feature"] == "speculation"]
    assert row["effective"] == "draft_model" and SMALL in row["reason"]
    assert effective["speculation"]["ended"] is False


def test_drafts_of_the_small_model_come_true(cache: Path) -> None:
    """At every step, whether that pays for models of this size or not."""
    config = {
        "model": find_folder(cache, SMALL), "num_speculative_tokens": 5, "adaptive": False,
    }  # fmt: skip
    llm = LLM(find_folder(cache, LARGE), speculative_config=config)
    params = SamplingParams(temperature=0.8, max_tokens=60, seed=3, ignore_eos=True)
    llm.generate([PROMPT], params, use_tqdm=False)
    stats = llm.stats()
    assert 10 < stats["accepted"] < stats["proposed"]
