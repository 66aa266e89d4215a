"""Dynamic batching: requests that come within a window are computed together.

The engine has no window, as requests join a running batch; the timeline is simulated.
"""

from flyweight.bench.batch_window import BatchWindow, simulate_window
from flyweight.planning.window import SEED_ARRIVALS
from flyweight.prove.simulated import SimulatedSide
from flyweight.prove.technique import Measurement, ProveJob, Technique

ON = BatchWindow()
WINDOWS = {"off": BatchWindow(0.0, 1, ON.single, ON.single), "on": ON}


def open_side(job: ProveJob, side: str) -> SimulatedSide:
    def simulate(round: int, share: float) -> Measurement:
        found = simulate_window(WINDOWS[side], SEED_ARRIVALS)
        latencies = tuple(ms / 1000 for ms in found.latencies)
        figures = {"mean latency, ms": found.mean, "longest latency, ms": max(found.latencies)}
        seconds, count = found.last / 1000, len(latencies)
        return Measurement(seconds, count, 0, 0, ttfts=latencies, figures=figures)

    return SimulatedSide(
        f"simulated: one request takes {ON.single:g} ms, {ON.preferred} together {ON.batch:g}; "
        "these are the founding document's times, not this machine's",
        simulate,
    )


TECHNIQUE = Technique(
    name="window",
    what="dynamic batching: requests wait for others for some milliseconds",
    workload=f"W13: {len(SEED_ARRIVALS)} requests within {SEED_ARRIVALS[-1]:g} ms",
    off="each request by itself, after the one before",
    on=f"a batch starts after {ON.wait:g} ms, or with {ON.preferred} requests",
    metric="throughput",
    open=open_side,
    seed="2.00x",
    least_share=1.0,
    instead="simulated",
)
