"""Fuzzes one target, guided by coverage (atheris, libFuzzer), then prints which lines of the code
under test the corpus reaches.

    python fuzz/run.py TARGET [--seconds 60] [--runs N] [--corpus DIR]

An input may end in a value or in one of flyweight's own errors; any other exception, a warning of
NumPy's, a crash, MOST_SECONDS of the processor or half a GiB is a finding: exit status 1, and the
input is kept in build/findings.  Exit
status 2: fewer than LEAST percent of some reader's lines were reached, in ROUNDS such times: a busy
machine executes a third of what an idle one does.
"""

import argparse
import importlib
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import process_time
from typing import Any

ROOT = Path(__file__).parents[1]
FINDINGS = ROOT / "build" / "findings"
TARGETS = (
    "gguf", "safetensors", "quantized", "torch", "tokenizer", "template", "answers", "schemas",
)  # fmt: skip
READERS = ("gguf", "safetensors", "quantized", "torch")
LEAST, ROUNDS = 90, 4
MOST_INPUT, MOST_SECONDS, MOST_MEMORY = 16384, 5, 512 << 20
HANGS = 300  # seconds by the wall clock: a busy machine may keep a process waiting


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=-1, help="executions, instead of a time")
    parser.add_argument("--corpus", type=Path, help="kept and added to; else a new one, dropped")
    args = parser.parse_args()
    os.environ["RUST_BACKTRACE"] = "0"  # a panic of the tokenizers library is one line
    sys.path[:0] = [str(ROOT / "fuzz"), str(ROOT / "tests")]
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as work:
        folder, corpus = Path(work) / "files", args.corpus or Path(work) / "corpus"
        folder.mkdir()
        for place in (corpus, FINDINGS):
            place.mkdir(parents=True, exist_ok=True)
        limit = f"-runs={args.runs}" if args.runs > 0 else f"-max_total_time={args.seconds}"
        if in_child(partial(plant, args.target, folder, corpus)):
            return 1
        for _ in range(ROUNDS):
            if in_child(partial(fuzz, limit, args.target, folder, corpus)):
                return 1
            status = in_child(partial(cover, args.target, folder, corpus))
            if not status:
                break
        return status


def in_child(work: Callable[[], object]) -> int:
    """Exit status of `work` in a process of its own: each step imports flyweight in its own way."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = work()
        sys.stdout.flush()
        os._exit(status if isinstance(status, int) else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def target(name: str, folder: Path) -> Any:
    return importlib.import_module(f"fuzz_{name}").Target(folder)


def plant(name: str, folder: Path, corpus: Path) -> None:
    for seed in target(name, folder).seeds():
        (corpus / sha256(seed).hexdigest()[:20]).write_bytes(seed)


def fuzz(limit: str, name: str, folder: Path, corpus: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["flyweight", "jinja2"]):
        chosen = target(name, folder)
    options = [limit, f"-max_len={MOST_INPUT}", f"-timeout={HANGS}", "-rss_limit_mb=2048"]
    options += [f"-artifact_prefix={FINDINGS}/{name}-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], partial(watched, chosen.execute))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY,) * 2)
    warnings.simplefilter("error")
    atheris.Fuzz()


def watched(execute: Callable[[bytes], bool], data: bytes) -> None:
    start = process_time()
    execute(data)
    took = process_time() - start
    assert took < MOST_SECONDS, f"one execution took {took:.1f} s"


def cover(name: str, folder: Path, corpus: Path) -> int:
    """Runs the corpus once more under `coverage`; the exit status says whether it suffices."""
    import coverage

    measured = coverage.Coverage(data_file=None, config_file=False, source_pkgs=["flyweight"])
    measured.exclude(r"^ *\.\.\.$")
    measured.start()
    chosen = target(name, folder)
    source = Path(str(sys.modules["flyweight"].__file__)).parent
    inputs = [b"", *(path.read_bytes() for path in sorted(corpus.iterdir()))]
    for data in inputs:
        chosen.execute(data)
    measured.stop()
    print(f"{name}: lines reached by the {len(inputs)} inputs of the corpus")
    worst = 100.0
    for path in (p for pattern in chosen.COVERED for p in sorted(source.glob(pattern))):
        _, lines, _, missing, where = measured.analysis2(str(path))
        share = 100 - 100 * len(missing) / max(1, len(lines))
        worst = min(worst, share)
        print(f"  {share:5.1f} %  {path.relative_to(source)}{where and ', not ' + where}")
    return 2 if name in READERS and worst < LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
