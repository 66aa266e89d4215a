"""Whole-engine speed at batch 1: prefill and decode tokens/s of a model file, as one JSON line.

    python bench/decode.py MODEL.gguf [--threads 2] [--prompt 512] [--tokens 64] [--context 4]

Prompts are random ids, so nothing is found in the prefix cache; decode starts after `--context`
tokens and excludes the first.
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
    parser.add_argument(
        "--context", type=int, default=4, help="tokens before the decode that is timed"
    )
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--activations", default="int8")
    args = parser.parse_args()
    length = max(args.prompt, args.context) + args.tokens + 64
    llm = LLM(
        args.model,
        threads=args.threads,
        activations=args.activations,
        max_model_len=length,
        max_num_seqs=1,
        block_size=args.block_size,
    )
    prefill, decode = [], []
    for i in range(args.repeats):
        prompt = random_ids(llm, i, args.prompt)
        prefill.append(args.prompt / run(llm, prompt, 1).ttft)
        context = random_ids(llm, 100 + i, args.context)
        decode.append(run(llm, context, args.tokens).decode_rate)
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


def random_ids(llm: LLM, seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, llm.loaded.spec.vocab, count).tolist()


def run(llm: LLM, prompt: list[int], tokens: int):
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return llm.generate([prompt], params, use_tqdm=False)[0].metrics


if __name__ == "__main__":
    main()
