"""Where a step's time goes, op by op: products by shape, attention, norms, sampling, and the rest.

    python bench/profile.py MODEL [--threads 2] [--prompt 512] [--depth 0] [--seqs 1] [--steps 32]
                            [--activations int8] [--json]

Two tables: steps that compute `--prompt` tokens of one sequence, and steps in which `--seqs`
sequences decode one token each after `--depth` tokens.  The layers run in the finer ops, which give
the same bits as the one call of an ordinary step.  That call's time stands above: the difference is
what dispatch costs, and for prompts what the call saves by using outputs while they are in cache.
Wall time of the middle step; GB/s and Gop/s are of packed bytes.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any, cast

from flyweight import LLM, SamplingParams
from flyweight.ops.cpu.gemm import PackedWeight
from flyweight.ops.stack import SteppedStack

OPS = (
    "embed", "rotation", "norm", "add_norm", "layer_norm", "linear", "rope_store", "attend", "act",
    "activate", "add", "take", "route", "experts", "linear_heads", "sample",
)  # fmt: skip


class Profile:
    """Seconds by op of every step, with the tokens it computed."""

    def __init__(self, llm: LLM) -> None:
        self.engine = cast(Any, llm.loaded.engine)
        self.model = self.engine.runner.model
        self.now: dict[str, float] = defaultdict(float)
        self.work: dict[str, tuple[float, float]] = {}  # bytes and operations of a step
        self.steps: list[tuple[int, dict[str, float], dict[str, tuple[float, float]]]] = []
        kind = cast(Any, type(self.model.ops))
        for name in OPS:
            setattr(kind, name, self._timed(getattr(kind, name), name))
        self.engine.step = self._stepped(self.engine.step)

    def _timed(self, inner: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            start = time.perf_counter()
            out = inner(*args, **more)
            label = self._label(name, args)
            self.now[label] += time.perf_counter() - start
            return out

        return timed

    def _label(self, name: str, args: tuple[Any, ...]) -> str:
        """A product's name has its shape; what it read and computed is noted."""
        if name == "embed":
            self.tokens = len(args[2])
        if name != "linear":
            return name
        parts = args[2] if isinstance(args[2], tuple) else (args[2],)
        packed = [part for part in parts if isinstance(part, PackedWeight)]
        rows, columns = sum(p.shape[0] for p in packed), packed[0].shape[1]
        label = f"linear {rows} x {columns} {'+'.join(dict.fromkeys(p.kind for p in packed))}"
        read, done = self.work.get(label, (0.0, 0.0))
        mine = sum(p.nbytes for p in packed), 2.0 * rows * columns * len(args[1])
        self.work[label] = read + mine[0], done + mine[1]
        return label

    def _stepped(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any) -> Any:
            self.now.clear()
            self.work.clear()
            self.tokens = 0
            start = time.perf_counter()
            events = inner(*given)
            self.now["step"] = time.perf_counter() - start
            self.steps.append((self.tokens, dict(self.now), dict(self.work)))
            return events

        return step

    def whole(self, tokens: int) -> float:
        """Seconds of the middle step of so many tokens."""
        return median([now["step"] for count, now, _ in self.steps if count == tokens] or [0.0])

    def rows(self, tokens: int) -> list[dict[str, Any]]:
        """The ops of the middle step of so many tokens, longest first."""
        found = [(now, work) for count, now, work in self.steps if count == tokens]
        found.sort(key=lambda pair: pair[0]["step"])
        now, work = found[len(found) // 2]
        rest = now["step"] - sum(t for name, t in now.items() if name != "step")
        rows = []
        for name, seconds in [*now.items(), ("schedule, batch, commit, dispatch", rest)]:
            if name == "step":
                continue
            row: dict[str, Any] = {"op": name, "us": 1e6 * seconds, "share": seconds / now["step"]}
            if name in work:
                read, done = work[name]
                row |= {"gbps": read / seconds / 1e9, "gops": done / seconds / 1e9}
            rows.append(row)
        return sorted(rows, key=lambda row: -row["us"])


def run(llm: LLM, prompts: list[list[int]], steps: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
    llm.generate(prompts, params, use_tqdm=False)


def show(title: str, rows: list[dict[str, Any]], call: float) -> None:
    total = sum(row["us"] for row in rows)
    print(f"\n{title}: {total / 1e3:.2f} ms in finer ops, {1e3 * call:.2f} ms as one call\n")
    print("| op | us | share | GB/s | Gop/s |\n|---|---:|---:|---:|---:|")
    for row in rows:
        rates = f"{row['gbps']:.1f} | {row['gops']:.0f}" if "gbps" in row else " | "
        print(f"| {row['op']} | {row['us']:.0f} | {row['share']:.1%} | {rates} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--seqs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--activations", default="int8")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    length = max(args.prompt, args.depth or 4) + args.steps + 64
    llm = LLM(
        args.model,
        threads=args.threads,
        max_model_len=length,
        activations=args.activations,
        max_num_seqs=args.seqs,
        max_num_batched_tokens=max(args.prompt, args.seqs),
        enable_prefix_caching=False,
    )
    draw = random.Random(1)
    ids = [draw.randrange(llm.loaded.spec.vocab) for _ in range(length)]
    profile = Profile(llm)
    calls, tables = {}, {}
    stack = profile.model.stack
    for finer in (False, True):
        profile.steps.clear()
        profile.model.stack = SteppedStack(stack.layers) if finer else stack
        for _ in range(3):
            run(llm, [ids[: args.prompt]], 1)
        start = ids[: args.depth or 4]
        run(llm, [start] * args.seqs, args.steps)
        for title, tokens in (("prompt", args.prompt), ("decode", args.seqs)):
            if finer:
                tables[title] = profile.rows(tokens)
            else:
                calls[title] = profile.whole(tokens)
    if args.json:
        print(json.dumps({"one_call_s": calls, "ops": tables}))
        return
    show(f"{args.prompt} tokens of a prompt", tables["prompt"], calls["prompt"])
    show(f"{args.seqs} x decode after {args.depth or 4}", tables["decode"], calls["decode"])


if __name__ == "__main__":
    main()
