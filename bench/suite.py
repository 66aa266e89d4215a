"""The measurements of docs/performance.md, one `flyweight bench kernels` after another; resumable.

    python bench/suite.py short|all [--models DIR] [--results FILE] [--repetitions 3]

`short` is the 0.6B shape in Q4_0 and bf16 up to 2k of context; `all` is the rest.  Rows go to FILE;
what is in it already is passed over.  Peers are those FLYWEIGHT_PEER_PYTHON (or this interpreter)
can import; LLAMA_BENCH names llama.cpp's llama-bench instead, LLAMA_BENCH_AVX2 one built for AVX2,
IK_LLAMA_BENCH that of ik_llama.cpp.
Models that are missing are made (make_shapes.py).
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL, LARGE = "qwen3-0.6b", "llama-3.2-1b"
NO_FLASH = "llama.cpp -fa off"  # faster than its default at length, on a processor
IK = "ik_llama.cpp -rtr 1"  # weights repacked for the processor as they are loaded
STORIES = "stories260k"  # FLYWEIGHT_DATA has it; made for 128 tokens
DEEP = ("llama.cpp", NO_FLASH, IK, "openvino")
BATCHES = ("llama.cpp", "openvino")  # the fork's llama-bench decodes one sequence
MODULES = {"llama.cpp": "llama_cpp", "openvino": "openvino_genai"}


@dataclass(frozen=True)
class Part:
    """One command: a model file (SHAPE/TYPE, or a name of flyweight's own), options of
    `bench kernels`, the peers, and an instruction set that is forced (llama.cpp is then
    LLAMA_BENCH_AVX2).
    """

    model: str
    options: tuple[str, ...]
    peers: tuple[str, ...] = ("llama.cpp", IK, "openvino")
    isa: str = ""


def small(kind: str, depth: str = "2048") -> Iterator[Part]:
    """Prompts, decoding, at depth, and in batches, of the 0.6B shape."""
    model = f"{SMALL}/{kind}"
    yield Part(model, ("-p", "512,2048", "-n", "128"))
    deep = ("-p", "0", "-n", "32", "-d", depth)
    yield Part(model, deep, DEEP)
    yield Part(model, ("-p", "0", "-n", "0", "-b", "2,4,8,16,64", "--batch-gen", "16"), BATCHES)


def short() -> Iterator[Part]:
    for kind in ("q4_0", "bf16"):
        yield from small(kind)


def rest() -> Iterator[Part]:
    for kind in ("q8_0", "q4_k_m"):
        yield from small(kind)
    q4 = f"{SMALL}/q4_0"
    deep = ("-p", "0", "-n", "32", "-d", "8192")
    yield Part(q4, deep, DEEP)
    shared = ("-p", "0", "-n", "0", "-b", "16", "--batch-gen", "16", "--shared-prefix", "3000")
    yield Part(q4, shared, ("llama.cpp",))
    yield Part(q4, ("-p", "512", "-n", "128", "--busy", "1"))
    yield Part("stories", ("-p", "128", "-n", "128", "-b", "4"), ("llama.cpp",))
    if tiny().is_file():
        yield Part(STORIES, ("-p", "64", "-n", "64"), ("llama.cpp",))
    yield Part(q4, ("-p", "512", "-n", "128"), (), isa="avx2")
    yield Part(f"{SMALL}/q8_0", ("-p", "512", "-n", "128"), (), isa="avx2")
    for kind in ("q4_0", "q4_k_m", "q8_0", "bf16"):
        model = f"{LARGE}/{kind}"
        yield Part(model, ("-p", "512,2048", "-n", "64"))
        batches = ("-p", "0", "-n", "0", "-b", "2,4,8,16,64", "--batch-gen", "16")
        yield Part(model, batches, BATCHES)
    for depth in ("2048", "8192"):
        deep = ("-p", "0", "-n", "32", "-d", depth)
        yield Part(f"{LARGE}/q4_0", deep, DEEP)


def tiny() -> Path:
    """Where the smallest model is, if it is."""
    return Path(os.environ.get("FLYWEIGHT_DATA", "")) / STORIES / "stories260K-f32.gguf"


def peers_here() -> set[str]:
    """Which peers can be run."""
    python = os.environ.get("FLYWEIGHT_PEER_PYTHON") or sys.executable
    programs = {"llama.cpp": "LLAMA_BENCH", "ik_llama.cpp": "IK_LLAMA_BENCH"}
    found = {name for name, variable in programs.items() if os.environ.get(variable)}
    for name, module in MODULES.items():
        probe = [python, "-c", f"import {module}"]
        if subprocess.run(probe, capture_output=True).returncode == 0:
            found.add(name)
    for name in sorted(set(MODULES) - found):
        print(f"without {name}: {python} has no {MODULES[name]}", file=sys.stderr)
    if "ik_llama.cpp" not in found:
        print("without ik_llama.cpp: IK_LLAMA_BENCH is not set", file=sys.stderr)
    if not os.environ.get("LLAMA_BENCH_AVX2"):
        print("without llama.cpp for avx2: LLAMA_BENCH_AVX2 is not set", file=sys.stderr)
    return found


def command(part: Part, args: argparse.Namespace, here: set[str]) -> list[str]:
    """The command line of a part."""
    own = "/" not in part.model
    file = part.model if own else str(args.models / f"{part.model}.gguf")
    file = str(tiny()) if part.model == STORIES else file
    words = [sys.executable, "-m", "flyweight.cli.main", "bench", "kernels", file, *part.options]
    words += ["-r", str(args.repetitions), "--results", str(args.results)]
    if part.isa == "avx2":
        binary = os.environ.get("LLAMA_BENCH_AVX2")
        return [*words, "--vs", "llama.cpp", "--vs-binary", binary] if binary else words
    if os.environ.get("LLAMA_BENCH"):
        words += ["--vs-binary", os.environ["LLAMA_BENCH"]]
    if os.environ.get("IK_LLAMA_BENCH") and IK in part.peers:
        words += ["--vs-binary", f"ik_llama.cpp={os.environ['IK_LLAMA_BENCH']}"]
    for peer in part.peers:
        if peer.split()[0] in here:
            words += ["--vs", name_peer(peer, part.model, args.models)]
    return words


def name_peer(peer: str, model: str, models: Path) -> str:
    """OpenVINO reads no bf16 from GGUF; it gets the same shape in f16."""
    if peer == "openvino" and model.endswith("/bf16"):
        return f"openvino={models / f'{Path(model).parent}/f16.gguf'}"
    return peer


def run(parts: list[Part], args: argparse.Namespace) -> int:
    here, failed = peers_here(), 0
    start = time.monotonic()
    for number, part in enumerate(parts, 1):
        words = command(part, args, here)
        minutes = (time.monotonic() - start) / 60
        print(f"[{number}/{len(parts)}, {minutes:.0f} min] {part.model} {' '.join(part.options)}")
        sys.stdout.flush()
        environment = os.environ | ({"FLYWEIGHT_ISA": part.isa} if part.isa else {})
        failed += subprocess.run(words, env=environment).returncode != 0
    return failed


def models(parts: list[Part], folder: Path) -> None:
    """Makes what the parts need and is not there."""
    from make_shapes import make  # needs a package that measuring does not

    for shape in (SMALL, LARGE):
        kinds = {part.model.split("/")[1] for part in parts if part.model.startswith(f"{shape}/")}
        more = {"f16"} if "bf16" in kinds else set()
        make(folder, [shape] if kinds else [], sorted(kinds | more))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("plan", choices=("short", "all"))
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "bench" / "models")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bench" / "results.jsonl")
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    args.results.parent.mkdir(parents=True, exist_ok=True)
    parts = [*(short() if args.plan == "short" else rest())]
    models(parts, args.models)
    sys.exit(run(parts, args) > 0)


if __name__ == "__main__":
    main()
