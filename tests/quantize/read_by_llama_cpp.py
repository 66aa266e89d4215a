"""Makes every GGUF type with `flyweight quantize` and reads the files with llama.cpp.

    python tests/quantize/read_by_llama_cpp.py OUT

Needs flyweight and llama-cpp-python.  llama.cpp's log-probabilities of a text's tokens must be
those of our reader but for rounding: it multiplies with activations in 8 bits, which ours do too.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from flyweight import LLM, SamplingParams
from flyweight.describe import ASSETS
from flyweight.quantize.ggml.recipes import RECIPES

WORDS = "Once upon a time there was a little girl who had a red ball. She went to the park. " * 4
OPTIONS = {name: ["--type", name] for name in RECIPES}
OPTIONS["mixed"] = ["--layer-precision", "0=q5_1,1-2=q4_0,3-5=iq4_nl,lm_head=q8_0"]
OPTIONS["gptq"] = ["--type", "Q4_K_S", "--method", "gptq"]
NEAR = 0.1  # mean difference, nats; a wrong layout gives more than 1


def make_plain_params() -> Any:
    """Parameters without repacked weights: on AMX, llama.cpp ends in a segmentation fault where it
    multiplies repacked weights of a model this small.
    """
    params = DEFAULT_PARAMS()
    params.use_extra_bufts = False
    return params


DEFAULT_PARAMS = llama_cpp.llama_model_default_params
llama_cpp.llama_cpp.llama_model_default_params = make_plain_params


def score_with_llama(path: Path) -> tuple[list[int], NDArray[np.float64]]:
    model = llama_cpp.Llama(str(path), n_ctx=256, logits_all=True, n_threads=2, verbose=False)
    ids = model.tokenize(WORDS.encode())
    model.eval(ids)
    logits = model.scores[: len(ids) - 1].astype(np.float64)
    logits -= np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return ids, logits[np.arange(len(ids) - 1), ids[1:]]


def score_with_flyweight(path: Path, ids: list[int]) -> NDArray[np.float64]:
    with LLM(model=str(path)) as llm:
        [got] = llm.generate(
            [{"prompt_token_ids": ids}], SamplingParams(max_tokens=1, prompt_logprobs=1)
        )
    steps = (got.prompt_logprobs or [])[1:]
    return np.array([step[i].logprob for step, i in zip(steps, ids[1:], strict=True)])


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, options in OPTIONS.items():
        path = out / f"{name}.gguf"
        words = [sys.executable, "-m", "flyweight", "quantize", str(ASSETS / "stories.gguf")]
        words += [str(path), *options, "--requantize", "--eval-tokens", "0"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ids, theirs = score_with_llama(path)
        off = float(np.abs(score_with_flyweight(path, ids) - theirs).mean())
        assert off <= NEAR, f"{name}: log-probabilities differ by {off} on average"
        print(f"{name}: log-probabilities differ by {off:.4f} on average", flush=True)


if __name__ == "__main__":
    main()
