"""Decoding with K/V blocks of several sizes, in turn in one process: what `--block-size` costs.

    python bench/blocks.py MODEL [--sizes 16,32] [--seqs 16] [--depth 512] [--rounds 9] [--steps 8]

Each round decodes `--steps` steps of `--seqs` sequences after `--depth` tokens with every size in
turn: once with prompts of their own, once behind one shared prompt.  A line a size: wall and
processor milliseconds of a step, the middle round's and the least, and their ratio to the first
size, round by round.  Processor time says more on a machine that others use.
"""

import argparse
import time
from random import Random
from statistics import median

from flyweight import LLM, SamplingParams

Times = list[tuple[float, float]]


class Decoding:
    """One engine, with its sequences at `depth` and all decoding."""

    def __init__(self, args: argparse.Namespace, size: int) -> None:
        longest = args.depth + args.rounds * 2 * args.steps + 64
        self.llm = LLM(
            args.model, block_size=size, max_num_seqs=args.seqs, max_model_len=longest,
            threads=args.threads, packed_cache=False,
        )  # fmt: skip
        self.args, self.size = args, size

    def begin(self, shared: bool) -> None:
        """Prompts, to the first step in which all decode."""
        random, args = Random(0), self.args
        self.llm.reset_prefix_cache()
        vocab, depth = self.llm.loaded.spec.vocab, args.depth
        tail = depth // 8
        common = [random.randrange(vocab // 2) for _ in range(depth - tail)]
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        engine = self.llm.loaded.engine
        for i in range(args.seqs):
            own = Random(i + 1)
            begin = common if shared else [own.randrange(vocab // 2) for _ in common]
            prompt = begin + [own.randrange(vocab // 2) for _ in range(tail)]
            engine.add(self.llm.make_collector(prompt, params).request)
            if shared and not i:  # the others find it in the cache
                engine.step()
                while engine.scheduler.running[0].computed < depth - 1:
                    engine.step()
        while engine.scheduler.waiting or any(
            seq.computed + 1 < len(seq.tokens) for seq in engine.scheduler.running
        ):
            engine.step()

    def step(self) -> tuple[float, float]:
        """Milliseconds of a step: wall, processor."""
        engine = self.llm.loaded.engine
        wall, spent = time.perf_counter(), time.process_time()
        for _ in range(self.args.steps):
            engine.step()
        scale = 1000 / self.args.steps
        return (time.perf_counter() - wall) * scale, (time.process_time() - spent) * scale

    def end(self) -> None:
        engine = self.llm.loaded.engine
        for seq in list(engine.scheduler.running):
            engine.abort(seq.request.id)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--sizes", default="32,16")
    parser.add_argument("--seqs", type=int, default=16)
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    engines = [Decoding(args, int(size)) for size in args.sizes.split(",")]
    for shared in (False, True):
        found: dict[int, Times] = {engine.size: [] for engine in engines}
        for engine in engines:
            engine.begin(shared)
            engine.step()
        for _ in range(args.rounds):
            for engine in engines:
                found[engine.size].append(engine.step())
        for engine in engines:
            engine.end()
        first = found[engines[0].size]
        for size, times in found.items():
            wall, spent = ([time[i] for time in times] for i in (0, 1))
            ratios = [time[1] / other[1] for time, other in zip(times, first, strict=True)]
            print(
                f"{'shared prompt' if shared else 'own prompts':14} block {size:3}: wall "
                f"{median(wall):7.1f} ms (least {min(wall):7.1f}), processor {median(spent):7.1f} "
                f"(least {min(spent):7.1f}), ratio {median(ratios):.3f} "
                f"[{min(ratios):.3f}..{max(ratios):.3f}]",
                flush=True,
            )


if __name__ == "__main__":
    main()
