"""How much faster drafts that read the text alone could make a replayed workload, by what steps of
1, 2, 3, ... rows cost on this machine.

    python bench/spec_bound.py MODEL [--workload manual] [--drafts 10] [--input-len 4000]
                               [--output-len 128] [--rounds 10]

"as proposed" verifies every draft token that the drafter proposes; "in hindsight" verifies those
that are right and no other, which no controller can know.  Both are bounds: time that the drafter
itself takes is left out.  Steps with drafts are those of `bench/rows.py`, with a prompt of the same
length; those without, which the bounds are relative to, are of an engine without a drafter.
"""

import argparse
import time
from array import array
from collections.abc import Sequence
from statistics import median

from rows import RowsBench

from flyweight import LLM, SamplingParams
from flyweight.bench.facts import Surroundings
from flyweight.config import Settings, find_data_folder
from flyweight.describe import describe, find
from flyweight.draft.drafter import Drafter, DraftRequest
from flyweight.draft.ngram import NgramDrafter
from flyweight.draft.suffix import SuffixDrafter
from flyweight.prove.spec_texts import SpecPrompt, TextLimits, list_workloads
from flyweight.types import Request

DRAFTERS: dict[str, type[Drafter]] = {"ngram": NgramDrafter, "suffix": SuffixDrafter}
PLAIN = 200  # steps without drafts that are timed
Step = tuple[int, int]  # draft tokens proposed, and those that are right


def count_drafts(drafter: Drafter, id: str, prompt: SpecPrompt, most: int) -> list[Step]:
    """Every step after the first token of an answer, which comes with the prompt."""
    text, left = array("i", [*prompt.tokens, prompt.answer[0]]), [*prompt.answer[1:]]
    found: list[Step] = []
    while left:
        limit = min(most, len(left) - 1)
        draft = drafter.propose([DraftRequest(id, text, (), limit)])[0].tokens if limit else ()
        right = 0
        while right < len(draft) and draft[right] == left[right]:
            right += 1
        found.append((len(draft), right))
        text.extend(left[: right + 1])
        del left[: right + 1]
    drafter.forget(id)
    return found


def measure_costs(model: str, depth: int, most: int, rounds: int) -> list[float]:
    """Milliseconds of a step by its draft tokens, none first."""
    rows = [*range(1, most + 2)]
    steps = (rounds + 4) * (len(rows) + 1)
    length = depth + steps + 2 * len(rows)
    options = {"max_num_seqs": 1, "draft_tokens": len(rows), "max_model_len": length}
    bench = RowsBench(model, rows, options)
    bench.start(depth, steps + len(rows))
    bench.measure(2)
    found = bench.measure(rounds)
    return [1e3 * median(times[n]["step"] for times in found) for n in rows]


def measure_plain(model: str, depth: int) -> float:
    """Milliseconds of a step without drafts."""
    llm = LLM(model, max_num_seqs=1, max_model_len=depth + PLAIN + 1)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=PLAIN)
    prompt = tuple(1000 + i % 500 for i in range(depth))
    llm.loop.driver.add(Request("plain", prompt, params, max_tokens=PLAIN))
    times: list[float] = []
    for _ in range(PLAIN):
        began = time.perf_counter()
        llm.loop.driver.step()
        times.append(time.perf_counter() - began)
    return 1e3 * median(times[1:])  # the first has the prompt


def show(label: str, steps: Sequence[Step], plain: float, costs: Sequence[float]) -> None:
    tokens = sum(right + 1 for _, right in steps)
    proposed = tokens * plain / sum(costs[made] for made, _ in steps)
    hindsight = tokens * plain / sum(costs[right] for _, right in steps)
    print(
        f"| `{label}` | {tokens} | {len(steps)} | {sum(made for made, _ in steps)} "
        f"| {tokens / len(steps):.2f} | {proposed:.2f} | {hindsight:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--workload", default="manual")
    parser.add_argument("--drafts", type=int, default=10)
    parser.add_argument("--input-len", type=int, default=4000)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    model = describe(find(Settings.of(model=given.model)))
    drafted = (given.rounds + 6) * (given.drafts + 4)
    spare = max(drafted, PLAIN + 1)  # tokens of the steps that are timed
    context = min(model.spec.context, given.input_len + given.output_len)
    limits = TextLimits(model.tokenizer, model.spec.vocab, context, given.output_len)
    work = next(w for w in list_workloads(find_data_folder()) if w.name == given.workload)
    texts = [prompt for round in range(given.rounds) for prompt in work.make(limits, round)]
    depth = min(max(len(one.tokens) for one in texts), model.spec.context - spare)
    model.checkpoint.close()
    costs = measure_costs(given.model, depth, given.drafts, given.rounds)
    around = Surroundings.here()
    print(f"{around.cpu}, {around.cores} cores; {around.commit}; prompts of {depth} tokens")
    plain = measure_plain(given.model, depth)
    print(f"ms of a step without drafts: {plain:.3f}")
    print("ms of a step by rows:", ", ".join(f"{cost:.3f}" for cost in costs), "\n")
    print("| drafter | tokens | steps | drafted | tokens a step | as proposed | in hindsight |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for label, make in DRAFTERS.items():
        drafter = make()
        steps = [
            step
            for i, prompt in enumerate(texts)
            for step in count_drafts(drafter, f"{i}", prompt, given.drafts)
        ]
        show(label, steps, plain, costs)


if __name__ == "__main__":
    main()
