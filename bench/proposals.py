"""What a proposal costs where a drafter needs no model, on texts of the bundled story tokenizer.

    python bench/proposals.py [--tokens 8192] [--drafts 10]

The text grows by a token from one proposal to the next.  "first" is the first proposal, which
indexes the whole text.  The manual repeats itself, the help texts of Python seldom do.
"""

import argparse
import gc
import time
from array import array
from collections.abc import Callable
from statistics import mean, median

from flyweight.config import Settings
from flyweight.describe import describe, find
from flyweight.draft.drafter import Drafter, DraftRequest
from flyweight.draft.ngram import NgramDrafter
from flyweight.draft.suffix import SuffixDrafter
from flyweight.prove.techniques.ngram import STEP
from flyweight.text.sample_text import EVALUATION, read_sample

ROUNDS = 1000
DRAFTERS: dict[str, Callable[[], Drafter]] = {"ngram": NgramDrafter, "suffix": SuffixDrafter}


def time_proposals(drafter: Drafter, tokens: list[int], known: int, drafts: int) -> list[float]:
    """Seconds of each proposal, the first one first."""
    text, seconds = array("i", tokens[:known]), []
    for token in tokens[known : known + ROUNDS]:
        request = DraftRequest("a", text, (), drafts)
        start = time.perf_counter()
        drafter.propose([request])
        seconds.append(time.perf_counter() - start)
        text.append(token)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--drafts", type=int, default=10)
    given = parser.parse_args()
    tokenizer = describe(find(Settings.of(model="stories"))).tokenizer
    need = given.tokens + ROUNDS
    texts = {
        "manual": "".join(STEP.format(number=200 + i) for i in range(need // 8)),
        "help texts": read_sample(EVALUATION)[1],
    }
    gc.disable()
    print("text        drafter  first, ms  median, us  mean, us  95 %, us")
    for name, text in texts.items():
        tokens = tokenizer.encode(text, parse_special=False)
        assert len(tokens) >= need, f"{name}: {len(tokens)} tokens; {need} are needed"
        for label, make in DRAFTERS.items():
            first, *others = time_proposals(make(), tokens, given.tokens, given.drafts)
            late = sorted(others)[int(0.95 * len(others))]
            print(
                f"{name:11s} {label:8s} {1e3 * first:9.2f} {1e6 * median(others):11.1f} "
                f"{1e6 * mean(others):9.1f} {1e6 * late:9.1f}"
            )


if __name__ == "__main__":
    main()
