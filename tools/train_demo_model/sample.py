"""Samples shards of stories from a larger story model through flyweight itself.

A shard depends on its number and the options alone: every story has a seed of its own, and the
engine gives the same tokens in any batch. Half the stories begin freely, half with the first words
of one of the excerpt's training stories. Only stories the model ended itself are kept.
"""

import argparse
import random
import time
from pathlib import Path

from stories import clean, split_excerpt, write_stories

from flyweight import LLM, SamplingParams

FREE = 0.5  # share of stories that begin from nothing
OPENING_WORDS = (2, 6)
SHORTEST, LONGEST = 200, 3000  # characters


def openings(excerpt: list[str], count: int, shard: int) -> list[str]:
    """What each story of the shard begins with; "" is a free beginning."""
    rng = random.Random(f"openings {shard}")
    chosen = []
    for _ in range(count):
        words = rng.choice(excerpt).split()[: rng.randint(*OPENING_WORDS)]
        chosen.append("" if rng.random() < FREE else " ".join(words))
    return chosen


def acceptable(story: str) -> bool:
    """Whole, plain and not stuck: no sentence three times, no odd characters."""
    sentences = [s for s in story.replace("!", ".").replace("?", ".").split(".") if s.strip()]
    stuck = len(sentences) - len(set(sentences)) > max(2, len(sentences) // 5)
    plain = story.isascii() and story[-1] in '.!?"'
    return SHORTEST <= len(story) <= LONGEST and plain and not stuck


def sample(llm: LLM, excerpt: list[str], shard: int, args: argparse.Namespace) -> list[str]:
    """The shard's stories, without repetitions, in the given order."""
    prompts, params = [], []
    for number, opening in enumerate(openings(excerpt, args.stories, shard)):
        prompts.append({"prompt_token_ids": [args.bos, *opening_ids(llm, opening)]})
        params.append(
            SamplingParams(
                temperature=args.temperature,
                top_p=args.top_p,
                seed=shard * 1_000_000 + number,
                stop_token_ids=(args.bos,),
                max_tokens=None,
            )
        )
    stories: dict[str, None] = {}  # a set that keeps its order
    for result in llm.generate(prompts, params, use_tqdm=args.progress):
        output = result.outputs[0]
        if output.finish_reason != "stop":
            continue
        ids = [i for i in (*result.prompt_token_ids, *output.token_ids) if i != args.bos]
        story = clean(llm.tokenizer.decode([args.bos, *ids]))
        if story and acceptable(story):
            stories[story] = None
    return list(stories)


def opening_ids(llm: LLM, opening: str) -> list[int]:
    return llm.tokenizer.encode(opening, add_special=False) if opening else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the sampling model: a directory or .gguf")
    parser.add_argument("--excerpt", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("shards"))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1, help="shards, up from --first")
    parser.add_argument("--stories", type=int, default=1000, help="number of each shard")
    parser.add_argument("--temperature", type=float, default=0.75)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--bos", type=int, default=1, help="begins and ends the model's stories")
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--activations", default="int8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--progress", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    excerpt, _ = split_excerpt(args.excerpt)
    llm = LLM(
        args.model,
        threads=args.threads,
        activations=args.activations,
        max_num_seqs=args.max_num_seqs,
        memory_limit="2GiB",
        offline=True,
    )
    for shard in range(args.first, args.first + args.count):
        path = args.out / f"shard-{shard:05d}.txt"
        if path.exists():
            continue
        start = time.monotonic()
        stories = sample(llm, excerpt, shard, args)
        write_stories(path, stories)
        seconds, size = time.monotonic() - start, path.stat().st_size
        print(f"{path.name}: {len(stories)} stories, {size:,} bytes, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
