"""Where the time of a second start goes, part by part, in processor time and by the clock;
`flyweight bench startup` times the command itself.

    python bench/startup.py [MODEL.gguf] [--rounds 5] [--vocabulary DIR] [--write MODEL.gguf]

Without a model it writes one of Qwen3-0.6B's shape in Q4_0 with random weights; --vocabulary names
a folder with Qwen's vocab.json, merges.txt and qwen3_tokenizer_config.json to give it, --write only
writes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

PARTS = """
import json, sys, time
parts = {}
def now():
    return time.perf_counter(), time.process_time()
def lap(name):
    global began
    parts[name] = [after - before for before, after in zip(began, now())]
    began = now()
began = now()
import flyweight.cli.main, flyweight.cli.session, flyweight.cli.show, flyweight.text.chat
import flyweight.ops.cpu
from flyweight import LLM, SamplingParams, build
from flyweight.config import Settings
from flyweight.describe import describe
from flyweight.plan.machine import machine
from flyweight.text.tokenizer import load_tokenizer
from flyweight.weights.checkpoint import open_checkpoint
lap("imports")
settings = Settings(model=sys.argv[1], max_num_seqs=1)
checkpoint = open_checkpoint(sys.argv[1])
lap("header")
load_tokenizer(checkpoint.tokenizer_source)
lap("tokenizer")
found = describe(checkpoint.path)
ops = build.backend(settings, machine().cores)
began = now()
weights, moving = build.load_kept(settings, found, ops, build.Silent())
lap("weights")
moving.settle()
lap("(moved later)")
del weights, moving
llm = LLM(sys.argv[1], max_num_seqs=1, prompt_logprob_rows=0)
began = now()
prompt = {"prompt_token_ids": llm.tokenizer.encode("Hi")}
llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
lap("first token")
print(json.dumps(parts))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    if args.write:
        written(args.write, args.vocabulary)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or written(Path(folder) / "06b.gguf", args.vocabulary)
        env = {**os.environ, "FLYWEIGHT_CACHE": f"{folder}/kept"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        show([start(str(model), env) for _ in range(args.rounds + 1)])


def written(path: Path, vocabulary: Path | None) -> Path:
    tests = Path(__file__).parents[1] / "tests"
    sys.path.insert(0, str(tests))
    from big_model import qwen_words, write_06b

    return write_06b(path, words=qwen_words(vocabulary) if vocabulary else None)


def start(model: str, env: dict[str, str]) -> dict[str, list[float]]:
    words = [sys.executable, "-c", PARTS, model]
    found = subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE).stdout
    return dict(json.loads(found))


def show(runs: list[dict[str, list[float]]]) -> None:
    """The first run packed; the others found what it kept."""
    first, later = runs[0], runs[1:]
    print("part             processor   clock, medians of second starts   (first start's clock)")
    for name in first:
        clock, busy = (1000 * median(run[name][i] for run in later) for i in (0, 1))
        print(f"{name:16s} {busy:6.0f} ms {clock:6.0f} ms {1000 * first[name][0]:28.0f} ms")


if __name__ == "__main__":
    main()
