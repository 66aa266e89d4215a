"""Models of four families, and a Llama of every type of GGUF, over ranks that exchange arrays
through gloo: the greedy tokens of one process.

The ranks of one host share memory otherwise; nothing but tests has them use gloo over loopback.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra [distributed] is not installed")

from flyweight import LLM, SamplingParams
from flyweight.parallel import host_exchange
from flyweight.weights.formats import FORMATS

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from format_models import EXPERTS, FAMILIES, VOCAB, write_model

WITHOUT_SHARED_MEMORY = """
import os
from pathlib import Path

from flyweight.parallel import host_exchange

host_exchange._make_folder = lambda size: None
Path(os.environ["RANK_MARKERS"], str(os.getpid())).touch()
"""
PROMPTS = [[3, 60, 17, 8, 8, 41, 0, 22, 13], [5], [9, 9, 31] * 7]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SIZES = [(2, 1), (1, 2), (2, 2)]
WORDS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": [chr(33 + i) for i in range(VOCAB)],
    "tokenizer.ggml.token_type": np.ones(VOCAB, np.int32),
    "tokenizer.ggml.merges": [],
    "tokenizer.ggml.eos_token_id": VOCAB - 1,
}
# With int8 activations the last digits of sums over ranks can be other tokens.
SETTINGS = {
    "memory_limit": "8GiB", "max_model_len": 64, "activations": "f32",
}  # fmt: skip
EVERYWHERE = ("q4_0", "bf16")
KINDS = {"llama": tuple(FORMATS)}
CASES = [
    pytest.param(
        family, kind, id=f"{family}-{kind}",
        marks=[] if (family, kind) == ("qwen3", "q4_0") else [pytest.mark.long],
    )
    for family in FAMILIES for kind in KINDS.get(family, EVERYWHERE)
]  # fmt: skip


@pytest.fixture(autouse=True)
def only_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process and in those of other ranks."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT_SHARED_MEMORY)
    paths = str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")
    (tmp_path / "ranks").mkdir()
    monkeypatch.setenv("RANK_MARKERS", str(tmp_path / "ranks"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setattr(host_exchange, "_make_folder", lambda size: None)


def generate(llm: LLM, prompts: Sequence[list[int]]) -> list[list[int]]:
    given = [{"prompt_token_ids": ids} for ids in prompts]
    return [[*found.outputs[0].token_ids] for found in llm.generate(given, GREEDY, use_tqdm=False)]


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_greedy_tokens_are_those_of_one_process(tmp_path: Path, family: str, kind: str) -> None:
    path = write_model(tmp_path / "model.gguf", family, kind, WORDS)
    with LLM(path, threads=1, **SETTINGS) as alone:
        expected = generate(alone, PROMPTS)
    for tensor, pipeline in SIZES:
        for marker in (tmp_path / "ranks").iterdir():
            marker.unlink()
        with LLM(
            path, threads=tensor * pipeline, tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline, **SETTINGS,
        ) as llm:  # fmt: skip
            group = llm.loaded.engine.runner.group
            assert group.waited is None, "shared memory was used"
            markers = [*(tmp_path / "ranks").iterdir()]
            assert len(markers) == tensor * pipeline - 1, "a rank may have used shared memory"
            assert generate(llm, PROMPTS) == expected, (tensor, pipeline)


def test_ranks_may_have_whole_experts(tmp_path: Path) -> None:
    """Of three experts, rank 0 has two."""
    path = write_model(tmp_path / "model.gguf", "mixtral", "q4_0", WORDS)
    with LLM(path, threads=1, **SETTINGS) as alone:
        expected = generate(alone, PROMPTS)
    with LLM(
        path, threads=2, tensor_parallel_size=2, enable_expert_parallel=True, **SETTINGS
    ) as llm:
        moe = llm.loaded.engine.runner.runner.model.spec.layers[0].moe
        assert moe.route.experts == EXPERTS and moe.held == (0, 2)
        assert generate(llm, PROMPTS) == expected
