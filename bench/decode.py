"""Whole-engine speed at batch 1: prefill and decode tokens/s of a model file, as one JSON line.

    python bench/decode.py MODEL.gguf [--threads 2] [--prompt 512] [--tokens 64] [--repeats 3]

Prompts are random ids, so nothing is found in the prefix cache; decode excludes the first token.
"""

import argparse
import json
from pathlib import Path
from statistics import median

import numpy as np

from flyweight import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--activations", default="int8")
    args = parser.parse_args()
    length = args.prompt + args.tokens + 64
    llm = LLM(
        args.model,
        threads=args.threads,
        activations=args.activations,
        max_model_len=length,
        max_num_seqs=1,
    )
    prefill, decode = [], []
    for i in range(args.repeats):
        prompt = np.random.default_rng(i).integers(0, llm.loaded.spec.vocab, args.prompt).tolist()
        prefill.append(args.prompt / run(llm, prompt, 1).ttft)
        decode.append(run(llm, prompt[:4], args.tokens).decode_rate)
    size = (
        Path(args.model).stat().st_size if Path(args.model).is_file() else llm.loaded.memory.weights
    )
    print(
        json.dumps(
            {
                "prefill": median(prefill),
                "decode": median(decode),
                "gbps": median(decode) * size / 1e9,
            }
        )
    )


def run(llm: LLM, prompt: list[int], tokens: int):
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return llm.generate([prompt], params, use_tqdm=False)[0].metrics


if __name__ == "__main__":
    main()
