"""Completing a data set by batches: a plain class that Ray Data, Apache Beam or a loop can call.

    python examples/batch_inference.py [MODEL] [--batch-size 4]

With Ray installed:  ray.data.from_items(ROWS).map_batches(Predictor, concurrency=1)
In Apache Beam:      a `DoFn` whose `setup` makes a `Predictor` and whose `process` calls it.
Without either, `map_batches` below does the same in this process.
"""

import argparse
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from flyweight import LLM, SamplingParams

Batch = dict[str, list[str]]
ROWS = [{"prompt": text} for text in ("Once upon a time", "The cat", "Lily and Tom", "One day")]


class Predictor:
    """Loads the model once a worker; called with columns, returns columns."""

    def __init__(self, model: str | None = None) -> None:
        self.llm = LLM(model)
        self.params = SamplingParams(temperature=0, max_tokens=24)

    def __call__(self, batch: Batch) -> Batch:
        prompts = [str(prompt) for prompt in batch["prompt"]]  # Ray hands over arrays
        outs = self.llm.generate(prompts, self.params, use_tqdm=False)
        return {"prompt": prompts, "text": [out.outputs[0].text for out in outs]}


def map_batches(
    rows: Iterable[dict[str, str]], predict: Callable[[Batch], Batch], batch_size: int
) -> Iterator[dict[str, str]]:
    """What Ray's `map_batches` does, in one process."""
    left = iter(rows)
    while part := list(islice(left, batch_size)):
        columns = predict({name: [row[name] for row in part] for name in part[0]})
        yield from (
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        rows = map_batches(ROWS, Predictor(args.model), args.batch_size)
    else:
        import ray

        ds = ray.data.from_items(ROWS)
        rows = ds.map_batches(
            Predictor,
            fn_constructor_args=(args.model,),
            batch_size=args.batch_size,
            concurrency=1,
        ).iter_rows()
    for row in rows:
        print(f"{row['prompt']!r} -> {row['text']!r}")


if __name__ == "__main__":
    main()
