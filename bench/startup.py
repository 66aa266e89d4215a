"""From command to first token: a first start, which packs, and second ones, which map what it kept.

    python bench/startup.py [MODEL.gguf] [--rounds 5] [--vocabulary DIR] [--prompt Hi]

Without a model it writes one of Qwen3-0.6B's shape in Q4_0 with random weights; --vocabulary names
a folder with Qwen's vocab.json, merges.txt and qwen3_tokenizer_config.json to give it.  The clock
runs from before the process begins to the first byte of its answer; then the parts of a second
start, in one process, and the memory it held.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

PARTS = """
import json, sys, time
clock, parts = time.perf_counter, {}
def lap(name):
    global began
    parts[name] = clock() - began
    began = clock()
began = clock()
import flyweight.cli.main, flyweight.cli.session, flyweight.cli.show, flyweight.text.chat
import flyweight.ops.cpu
from flyweight import LLM, SamplingParams, build
from flyweight.config import Settings
from flyweight.plan.machine import machine
from flyweight.weights.checkpoint import open_checkpoint
lap("imports")
settings, path = Settings(model=sys.argv[1], max_num_seqs=1), build.Path(sys.argv[1])
open_checkpoint(path).close()
lap("header")
found = build.describe(path)
parts["tokenizer, plan"] = clock() - began - parts["header"]
began = clock()
ops = build.backend(settings, machine().cores)
lap("threads")
weights = build.load_kept(settings, found, ops, build.Silent())
lap("weights")
del weights
llm = LLM(sys.argv[1], max_num_seqs=1, prompt_logprob_rows=0)
began = clock()
prompt = {"prompt_token_ids": llm.tokenizer.encode(sys.argv[2])}
llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
lap("first token")
print(json.dumps(parts))
"""


def first_byte(model: str, prompt: str, env: dict[str, str]) -> tuple[float, float, int]:
    """Seconds to the first byte of the answer, processor seconds to the end, and peak resident
    bytes, of a command.
    """
    words = [sys.executable, "-m", "flyweight.cli.main", "run", model, prompt]
    began = time.perf_counter()
    child = subprocess.Popen(
        [*words, "--max-tokens", "1", "--temperature", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
    )
    assert child.stdout is not None
    child.stdout.read(1)
    took = time.perf_counter() - began
    child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, "the command failed"
    after = used.ru_utime + used.ru_stime
    return took, after, 1024 * used.ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--prompt", default="Hi")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or written(Path(folder) / "06b.gguf", args.vocabulary)
        env = {**os.environ, "FLYWEIGHT_CACHE": f"{folder}/kept"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        measure(str(model), args.prompt, env, args.rounds)


def written(path: Path, vocabulary: Path | None) -> Path:
    tests = Path(__file__).parents[1] / "tests"
    sys.path[:0] = [str(tests), str(tests / "api")]
    from big_model import qwen_words, write_06b

    return write_06b(path, words=qwen_words(vocabulary) if vocabulary else None)


def measure(model: str, prompt: str, env: dict[str, str], rounds: int) -> None:
    first_byte("stories", prompt, env)  # Python's own caches are warm
    seen = [first_byte(model, prompt, env) for _ in range(rounds + 1)]
    (wall, busy, _), later = seen[0], seen[1:]
    print(f"first start   {wall:.2f} s to the first token, {busy:.2f} s of processor time")
    columns = list(zip(*later, strict=True))
    print(
        f"second starts {median(columns[0]):.2f} s (best {min(columns[0]):.2f}), "
        f"{median(columns[1]):.2f} s of processor time, {max(columns[2]) / 1e6:.0f} MB resident "
        f"for a file of {Path(model).stat().st_size / 1e6:.0f} MB"
    )
    words = [sys.executable, "-c", PARTS, model, prompt]
    runs = [
        json.loads(subprocess.run(words, env=env, check=True, capture_output=True).stdout)
        for _ in range(rounds)
    ]
    for name in runs[0]:
        times = [run[name] for run in runs]
        print(f"  {name:16s} {1000 * median(times):6.0f} ms (best {1000 * min(times):.0f})")


if __name__ == "__main__":
    main()
