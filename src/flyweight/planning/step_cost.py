"""What a step of any shape takes: a cost model fitted to a few timed steps.

    seconds = layers(tokens) + decoding positions × a + (query, key) pairs of prompts × b
              + head(rows) + the engine's loop

`layers` and `head` are lines between the points that were timed.

Invariant: a cost depends on the step's shape alone, so a simulation on it repeats exactly.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from flyweight.plan.roofline import StepShape, count_pairs
from flyweight.planning.loop_cost import LoopCost
from flyweight.planning.speed import make_decode

SHORT = 32  # positions: what attention over them takes is part of `layers`
DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PROMPTS = (128, 256, 512, 1024, 2048)
EVERYTHING = 1 << 62
Measure = Callable[[StepShape], float]


@dataclass(frozen=True, slots=True)
class CostLine:
    """Seconds at rising numbers, with lines between them; beyond the ends it goes on as it was."""

    at: tuple[float, ...]
    seconds: tuple[float, ...]

    def compute_seconds(self, number: float) -> float:
        if len(self.at) == 1:
            return self.seconds[0] * number / self.at[0]
        i = min(max(1, bisect_left(self.at, number)), len(self.at) - 1)
        (a, b), (low, high) = self.at[i - 1 : i + 1], self.seconds[i - 1 : i + 1]
        return max(0.0, low + (high - low) * (number - a) / (b - a))


@dataclass(frozen=True, slots=True)
class StepCostModel:
    """`position` seconds for each position that a decoding token sees beyond the first few, `pair`
    for each pair of a prompt's tokens and what they see.
    """

    layers: CostLine
    head: CostLine
    position: float
    pair: float
    loop: LoopCost

    def compute_seconds(self, seen: StepShape) -> float:
        """The cost of one step."""
        far = sum(max(0, context - SHORT) for count, context in seen.chunks if count == 1)
        pairs = sum(count_pairs(n, c, EVERYTHING) for n, c in seen.chunks if n > 1)
        seconds = self.layers.compute_seconds(seen.tokens)
        seconds += self.position * far + self.pair * pairs
        if seen.rows:
            seconds += self.head.compute_seconds(seen.rows)
        return seconds + self.loop.compute_seconds(len(seen.chunks))

    def measure_drift(self, earlier: "StepCostModel") -> float:
        """How many times as long as `earlier` the layers take, the median of what was timed."""
        return median(
            self.layers.compute_seconds(n) / earlier.layers.compute_seconds(n)
            for n in self.layers.at
        )


def fit_steps(
    layers: Measure, head: Callable[[int], float], loop: LoopCost, sizes: tuple[int, int, int]
) -> StepCostModel:
    """Times steps with `layers` and rows of logits with `head`; `sizes` are the most sequences and
    tokens of a step, and the longest context.  Steps of prompts are timed up to the most tokens,
    however short one prompt is: a line that goes on from a few tokens multiplies their noise.
    """
    seqs, tokens, longest = sizes
    many = [n for n in DECODES if n < seqs] + [seqs]
    reach = min(longest, max(4 * SHORT, longest // 2))
    few = min(4, seqs)
    near, far = layers(make_decode(few, SHORT)), layers(make_decode(few, reach))
    position = max(0.0, (far - near) / (few * (reach - SHORT))) if reach > SHORT else 0.0
    chunk = min(tokens, longest)
    pair = fit_pair(layers, chunk, longest)
    points = {n: layers(make_decode(n, SHORT)) for n in many if n <= tokens}
    most = min(tokens, seqs * longest)
    for n in (*(one for one in PROMPTS if one < most), most):
        if n > many[-1]:
            seen = make_prompts(n, longest)
            pairs = sum(count_pairs(count, c, EVERYTHING) for count, c in seen.chunks)
            points[n] = max(0.0, layers(seen) - pair * pairs)
    rows = {n: head(n) for n in many}
    return StepCostModel(make_line(points), make_line(rows), position, pair, loop)


def make_prompts(tokens: int, longest: int) -> StepShape:
    """A step of whole prompts, as long as they may be, and the beginning of one more."""
    whole, rest = divmod(tokens, longest)
    lengths = (longest,) * whole + ((rest,) if rest else ())
    return StepShape(tuple((n, n) for n in lengths), 0, tokens)


def fit_pair(layers: Measure, chunk: int, longest: int) -> float:
    """Seconds of a pair, from one chunk of a prompt at two contexts."""
    size = max(2, min(chunk, longest // 4))
    near = StepShape(((size, size),), 0, size)
    far = StepShape(((size, longest),), 0, longest)
    more = count_pairs(size, longest, EVERYTHING) - count_pairs(size, size, EVERYTHING)
    return max(0.0, (layers(far) - layers(near)) / more) if more > 0 else 0.0


def make_line(points: dict[int, float]) -> CostLine:
    """A line through points; more never costs less, as noise may say."""
    at: Sequence[int] = sorted(points)
    seconds: list[float] = []
    for number in at:
        seconds.append(max([points[number], *seconds[-1:]]))
    return CostLine(tuple(map(float, at)), tuple(seconds))
