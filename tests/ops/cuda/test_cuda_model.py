"""A whole model on the CUDA backend: the tokens of the CPU's float32, in any company."""

from pathlib import Path

import numpy as np
import pytest

from flyweight import LLM, KVCacheModel, SamplingParams
from flyweight.config import find_data_folder

DATA = find_data_folder()
MODEL = Path(DATA or "") / "stories260k" / "stories260K-f32.gguf"
PROMPTS = ["Once upon a time", "The little dog", "One day, Lily"]
GREEDY = SamplingParams(temperature=0, max_tokens=3)

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="FLYWEIGHT_DATA is not set")


def generate(prompts: list[str], params: SamplingParams = GREEDY, **settings: object) -> list[str]:
    llm = LLM(str(MODEL), max_model_len=64, **settings)  # type: ignore[arg-type]
    return [out.outputs[0].text for out in llm.generate(prompts, params, use_tqdm=False)]


def test_greedy_tokens_are_the_cpu_s(device: str) -> None:
    want = generate(PROMPTS, activations="f32")
    assert generate(PROMPTS, backend="cuda", activations="f32") == want


@pytest.mark.long  # minutes in the interpreter
def test_tokens_do_not_depend_on_company(device: str) -> None:
    """In bfloat16, drawn with a seed: alone, and in one batch."""
    params = SamplingParams(temperature=1, seed=5, max_tokens=2)
    on_gpu = {"device": "cuda", "deterministic": True}
    together = generate(PROMPTS, params, **on_gpu)
    assert [generate([prompt], params, **on_gpu)[0] for prompt in PROMPTS[:1]] == together[:1]


def test_logits_by_hand_are_on_the_host(device: str) -> None:
    model = KVCacheModel(MODEL, backend="cuda", max_model_len=16)
    logits = model.prefill(PROMPTS[0])
    assert isinstance(logits, np.ndarray) and logits.shape == (model.loaded.spec.vocab,)


@pytest.mark.long  # minutes in the interpreter
def test_features_read_and_write_host_arrays(device: str) -> None:
    """Choices that share a prompt, a caller's logits processor, scores of a prompt, embeddings."""

    def choose(generated: object, row: np.ndarray) -> np.ndarray:
        row[5] = row.max() + 1
        return row

    params = [
        SamplingParams(temperature=1, seed=7, n=2, max_tokens=2),
        SamplingParams(temperature=0, max_tokens=1, logits_processors=[choose]),
        SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2),
    ]
    found = []
    for backend in ("cpu", "cuda"):
        llm = LLM(MODEL, backend=backend, activations="f32", kv_cache_dtype="f32", max_model_len=64)
        outs = llm.generate(PROMPTS, params, use_tqdm=False)
        scores = [list(of or ()) for of in outs[2].prompt_logprobs or ()]
        found.append(([[o.token_ids for o in out.outputs] for out in outs], scores))
        vector = np.asarray(llm.embed(PROMPTS[0], use_tqdm=False)[0].outputs.embedding)
        if backend == "cpu":
            want = vector
    assert found[0] == found[1] and found[0][0][1] == [[5]]
    assert np.abs(vector - want).max() < 1e-4
