"""A server that is started again answers a long prompt from its blocks on disk, in at most a tenth
of the time.

The model has the shape of Qwen3-0.6B: smaller ones compute blocks about as fast as they are read.
What is asserted is a ratio of two medians of one test, over prompts that have nothing in common.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from big_model import HEAD, KV_HEADS, LAYERS, write_06b
from http_server import Running, started

pytestmark = pytest.mark.long
PROMPTS, TOKENS, NEW, BLOCK = 3, 3000, 8, 32
BLOCK_BYTES = BLOCK * LAYERS * KV_HEADS * HEAD * 2 * 2  # K and V in float16
# K/V memory has room for all prompts: none is lost before it is written.
WORDS = ("--max-model-len", "3072", "--max-num-seqs", str(PROMPTS), "--memory-limit", "4GiB")
MOST = 0.1  # of the cold time to the first token


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """`ttft` is the time to the first token in ms."""

    text: str
    cached: int
    ttft: float


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = write_06b(tmp_path_factory.mktemp("06b") / "model.gguf")
    yield path
    path.unlink()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Of blocks: about 1 GiB of them, which are not kept."""
    yield tmp_path
    for path in tmp_path.glob("*.blocks"):
        path.unlink()


@contextmanager
def serving(model: Path, folder: Path) -> Iterator[Running]:
    """A server that has computed already, less than a block."""
    with started(str(model), *WORDS, "--prefix-cache-dir", str(folder)) as running:
        assert complete(running, [299] * 16).cached == 0
        yield running


def complete(running: Running, prompt: list[int]) -> TimedAnswer:
    body = {"prompt": prompt, "max_tokens": NEW, "temperature": 0, "ignore_eos": True}
    reply = running.post("/v1/completions", body).json
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return TimedAnswer(
        reply["choices"][0]["text"], cached, reply["metrics"]["time_to_first_token_ms"]
    )


def count_saved(folder: Path) -> int:
    """Bytes of blocks on disk."""
    return sum(path.stat().st_size for path in folder.glob("*.blocks"))


def test_a_restarted_server_answers_a_long_prompt_in_a_tenth_of_the_time(
    model: Path, folder: Path
) -> None:
    rng = random.Random(0)
    prompts = [[rng.randrange(300, 450) for _ in range(TOKENS)] for _ in range(PROMPTS)]
    blocks = PROMPTS * ((TOKENS + NEW - 1) // BLOCK)
    with serving(model, folder) as running:
        cold = [complete(running, prompt) for prompt in prompts]
        running.until(lambda: count_saved(folder) >= blocks * BLOCK_BYTES)
        assert running.stop() == 0
    with serving(model, folder) as running:
        warm = [complete(running, prompt) for prompt in prompts]
    assert [one.cached for one in cold] == [0] * PROMPTS
    assert [one.cached for one in warm] == [(TOKENS - 1) // BLOCK * BLOCK] * PROMPTS
    assert [one.text for one in warm] == [one.text for one in cold]
    share = median(one.ttft for one in warm) / median(one.ttft for one in cold)
    assert share <= MOST, (warm, cold)
