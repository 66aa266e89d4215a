"""What a step costs by its rows: one sequence with 0 to 15 draft tokens, relative to none.

    python bench/rows.py MODEL [--rows 1,2,3,5,8,16] [--rounds 20] [--depth 64] [--threads 2]
                         [--isa avx512] [--activations bf16] [--json]

Every row's logits are computed and a token is drawn from them, as when drafts are verified.  Steps
of all row counts alternate in one process; ratios are medians over rounds of each step to the one
of one row in the same round.  Below: what the products of a step read and compute, as shares of
the read bandwidth and the int8 rate that are sampled between the rounds.
"""

import argparse
import json
import time
from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import Any, cast

from flyweight import LLM, SamplingParams
from flyweight.bench.facts import ModelFacts, Surroundings
from flyweight.bench.limits import LimitSample, LimitSampler
from flyweight.bench.ours import RunNotes
from flyweight.describe import SilentListener
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.plan.roofline import StepShape, make_shape, sum_work
from flyweight.types import Request
from flyweight.wire import Batch, Tensor

PARTS = ("layers", "head", "sample")  # of a step; the rest is scheduling and drafts
Times = dict[str, float]


class FixedDrafter:
    """Proposes `count` tokens that the model would not, so that a step settles one token."""

    taps: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.count = 0

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """Learns nothing."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(tuple(range(100, 100 + self.count))) for _ in requests]

    def forget(self, id: Hashable) -> None:
        """Keeps nothing."""


class RowsBench:
    """One model with one sequence, and the times of its steps by part."""

    def __init__(self, model: str, rows: list[int], options: dict[str, Any]) -> None:
        notes = RunNotes(SilentListener())
        self.llm = LLM(model, notify=notes, **options)
        loaded, found = self.llm.loaded, notes.found
        assert found is not None, "loading reports the model that it found"
        loaded.moving.settle()
        self.facts, self.isa = ModelFacts.of(found), loaded.isa
        kv, rounding = loaded.memory.sizing.kv_dtype, options["activations"]
        self.shape = make_shape(found.checkpoint, found.plan, found.spec, rounding, kv)
        engine = cast(Any, loaded.engine)
        self.drafter = FixedDrafter()
        engine.drafts.calls.use(self.drafter)
        self.rows, self.spent = rows, dict.fromkeys(PARTS, 0.0)
        for owner, name, part in (
            (engine.runner.model, "compute_hidden", "layers"),
            (engine.runner.model, "compute_logits", "head"),
            (engine.runner.ops, "sample", "sample"),
        ):
            setattr(owner, name, self._timed(getattr(owner, name), part))
        self.sampler = LimitSampler(engine.runner.ops.threads, self.isa, self.facts.nbytes)
        self.limits: list[LimitSample] = []

    def _timed(self, inner: Any, part: str) -> Any:
        def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            out = inner(*args, **more)
            self.spent[part] += time.perf_counter() - began
            return out

        return timed

    def start(self, depth: int, length: int) -> None:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=length)
        prompt = tuple(1000 + i % 500 for i in range(depth))
        self.llm.loop.driver.add(Request("rows", prompt, params, max_tokens=length))
        self.step(self.rows[0])

    def step(self, following: int) -> Times:
        """One step, after which there are drafts for a step of `following` rows."""
        self.drafter.count = following - 1
        self.spent.update(dict.fromkeys(PARTS, 0.0))
        began = time.perf_counter()
        self.llm.loop.driver.step()
        whole = time.perf_counter() - began
        return {"step": whole, **self.spent, "rest": whole - sum(self.spent.values())}

    def measure(self, rounds: int) -> list[dict[int, Times]]:
        """The times of a step of each number of rows, round by round."""
        found: list[dict[int, Times]] = []
        for round in range(rounds):
            if round % max(1, rounds // 4) == 0:
                self.limits.append(self.sampler.sample())
                self.step(self.rows[0])  # what sampling left in the caches
            following = self.rows[1:] + self.rows[:1]
            found.append(
                {n: self.step(after) for n, after in zip(self.rows, following, strict=True)}
            )
        return found

    def get_limits(self) -> tuple[float, float]:
        """Bytes read and int8 operations a second."""
        seen = [sample.vector for sample in self.limits]
        return median(x.read for x in seen), median(x.int8 for x in seen)


def summarize(bench: RowsBench, found: list[dict[int, Times]], depth: int) -> list[dict[str, Any]]:
    """A line for each number of rows."""
    limits, tile = bench.limits[0].vector, bench.limits[0].tile
    read, int8 = bench.get_limits()
    lines = []
    for n in bench.rows:
        ratios = sorted(times[n]["step"] / times[bench.rows[0]]["step"] for times in found)
        parts = {part: 1e3 * median(times[n][part] for times in found) for part in found[0][n]}
        step = parts["step"] / 1e3
        seen = [StepShape(((n, depth + n),), n, depth + n)]
        work = sum_work(bench.shape, seen, limits)
        products = (parts["layers"] + parts["head"]) / 1e3
        gbps, gops = work.nbytes / products / 1e9, work.operations / products / 1e9
        lines.append({
            "rows": n, "ratio": median(ratios), "low": ratios[len(ratios) // 4],
            "high": ratios[3 * len(ratios) // 4], **parts, "gbps": gbps, "gops": gops,
            "of_read": 1e9 * gbps / read, "of_int8": 1e9 * gops / int8,
            "share": work.seconds / step,
            "of_tile": sum_work(bench.shape, seen, tile).seconds / step if tile else None,
        })  # fmt: skip
    return lines


def show(bench: RowsBench, lines: list[dict[str, Any]]) -> None:
    around, (read, int8) = Surroundings.here(), bench.get_limits()
    print(f"{around.cpu}, {around.cores} cores, {bench.isa}; {around.commit}; {bench.facts.kind}")
    print(f"sampled in the same run: {read / 1e9:.1f} GB/s, {int8 / 1e9:.0f} Gop/s int8\n")
    print("| rows | ratio | quartiles | ms | layers | head | sample | rest | GB/s | Gop/s |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for x in lines:
        print(
            f"| {x['rows']} | {x['ratio']:.2f} | {x['low']:.2f} to {x['high']:.2f} "
            f"| {x['step']:.2f} | {x['layers']:.2f} | {x['head']:.2f} | {x['sample']:.2f} "
            f"| {x['rest']:.2f} | {x['gbps']:.1f} ({x['of_read']:.0%}) "
            f"| {x['gops']:.0f} ({x['of_int8']:.0%}) |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--rows", default="1,2,3,5,8,16")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--isa", default=None)
    parser.add_argument("--activations", default="int8")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [int(n) for n in args.rows.split(",")]
    steps = (args.rounds + 4) * (len(rows) + 1)
    options = {
        "threads": args.threads, "isa": args.isa, "max_num_seqs": 1, "draft_tokens": max(rows),
        "max_model_len": args.depth + steps + max(rows) + 1, "activations": args.activations,
    }  # fmt: skip
    bench = RowsBench(args.model, rows, options)
    bench.start(args.depth, steps + max(rows))
    bench.measure(2)
    lines = summarize(bench, bench.measure(args.rounds), args.depth)
    if args.json:
        read, int8 = bench.get_limits()
        label = f"{bench.isa}, {args.activations}"
        print(json.dumps({"label": label, "read": read, "int8": int8, "lines": lines}))
    else:
        show(bench, lines)


if __name__ == "__main__":
    main()
