"""A whole model on the CUDA backend: the tokens of the CPU's float32, in any company."""

from pathlib import Path

import pytest

from flyweight import LLM, SamplingParams
from flyweight.config import find_data_folder

DATA = find_data_folder()
MODEL = Path(DATA or "") / "stories260k" / "stories260K-f32.gguf"
PROMPTS = ["Once upon a time", "The little dog", "One day, Lily"]
GREEDY = SamplingParams(temperature=0, max_tokens=6)

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="FLYWEIGHT_DATA is not set")


def generate(prompts: list[str], params: SamplingParams = GREEDY, **settings: object) -> list[str]:
    llm = LLM(str(MODEL), max_model_len=64, **settings)  # type: ignore[arg-type]
    return [out.outputs[0].text for out in llm.generate(prompts, params, use_tqdm=False)]


def test_greedy_tokens_are_the_cpu_s(device: str) -> None:
    want = generate(PROMPTS, activations="f32")
    assert generate(PROMPTS, backend="cuda", activations="f32") == want


def test_tokens_do_not_depend_on_company(device: str) -> None:
    """In bfloat16, drawn with a seed: alone, and in one batch."""
    params = SamplingParams(temperature=1, seed=5, max_tokens=4)
    on_gpu = {"device": "cuda", "deterministic": True}
    together = generate(PROMPTS, params, **on_gpu)
    assert [generate([prompt], params, **on_gpu)[0] for prompt in PROMPTS[:2]] == together[:2]
