"""What a step of beam search costs compared with a greedy one: A B A B ..., the median of the
pairwise ratios.

    python bench/beam.py [MODEL.gguf] [--width 4] [--tokens 48] [--rounds 15] [--threads 2]

Without a model, the one in the package; `06b` writes a file of Qwen3-0.6B's shape with random
weights, and removes it.  Each round decodes the same prompt greedily and with a search that nothing
ends; a step is a token of either.  Times are of the engine alone, from the first token's step on.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from flyweight import LLM, BeamSearchParams, SamplingParams
from flyweight.types import Request

PROMPT = tuple(range(3, 35))


def step_ms(llm: LLM, tokens: int, width: int) -> float:
    """Milliseconds a step, prompt and first token left out; width 0 is greedy."""
    engine = llm.loaded.engine
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    beam = BeamSearchParams(width, tokens, early_stopping="never") if width else None
    engine.add(Request("bench", PROMPT, params, max_tokens=tokens, beam=beam))
    while engine.scheduler.waiting:
        engine.step()
    start, steps = time.perf_counter(), 0
    while engine.busy:
        engine.step()
        steps += 1
    return (time.perf_counter() - start) / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a file, or 06b")
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model
        if model == "06b":
            tests = Path(__file__).parents[1] / "tests"
            sys.path.insert(0, str(tests))
            from big_model import write_06b

            model = str(write_06b(Path(folder) / "06b.gguf"))
        llm = LLM(model, threads=args.threads, max_model_len=256, max_num_seqs=8)
        pairs = [
            (step_ms(llm, args.tokens, 0), step_ms(llm, args.tokens, args.width))
            for _ in range(args.rounds + 1)
        ][1:]
    greedy, beams = (median(column) for column in zip(*pairs, strict=True))
    ratio = median(b / a for a, b in pairs)
    print(
        f"greedy {greedy:.3f} ms a step, {args.width} beams {beams:.3f} ms; "
        f"median of {len(pairs)} pairwise ratios {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
