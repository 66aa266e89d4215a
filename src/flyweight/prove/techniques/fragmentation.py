"""Paged K/V memory: blocks as they are needed, against a reservation of the longest sequence.

The engine has no contiguous memory, so both sides are simulated; blocks are counted by its pool.
"""

from flyweight.bench.fragmentation import SimulatedMemory, make_lengths
from flyweight.prove.engine_side import BLOCK, count_share
from flyweight.prove.simulated import SimulatedSide
from flyweight.prove.technique import Measurement, ProveJob, Technique

REQUESTS, SLOTS, LONGEST = 500, 65_536, 8192
STEP = 0.001  # simulated seconds
SPANS = {"off": LONGEST, "on": BLOCK}


def open_side(job: ProveJob, side: str) -> SimulatedSide:
    def simulate(round: int, share: float) -> Measurement:
        requests = make_lengths(count_share(REQUESTS, share), LONGEST, round + 2)
        use = SimulatedMemory(requests, SLOTS, SPANS[side]).run()
        prompts, answers = (sum(lengths) for lengths in zip(*requests, strict=True))
        figures = {
            "waste, %": 100 * use.waste,
            "sequences at once": use.mean,
            "most sequences": float(use.most),
        }
        return Measurement(use.steps * STEP, len(requests), prompts, answers, figures=figures)

    return SimulatedSide("simulated: a step takes 1 ms, however many sequences it has", simulate)


TECHNIQUE = Technique(
    name="fragmentation",
    what="paged K/V memory: more sequences fit, as none reserves what it may never need",
    workload=f"a trace of {REQUESTS} requests in K/V memory of {SLOTS:,} tokens",
    off=f"each sequence reserves the longest, {LONGEST:,} tokens",
    on=f"blocks of {BLOCK} tokens as they are needed",
    metric="throughput",
    open=open_side,
    instead="simulated",
)
