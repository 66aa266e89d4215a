"""Speed-up of the drafters of the model inside where decoding is bound by memory.

    FLYWEIGHT_DATA=DIR python bench/deepened.py [--layers 24] [--inner 16384] [--rounds 9]

A step of the model inside takes 0.3 ms, most of it fixed costs.  So it is made larger, without a
change of what it says: layers are added whose output matrices are 0, and all MLPs get inner rows of
0.  Its weights are then read from memory at every step, like those of a real model, and drafts
are accepted as often as those for the model inside.  Prompts are openings of stories that nothing
was trained on, one at a time, greedy.
"""

import argparse
import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, ReaderTensor
from numpy.typing import NDArray

import flyweight
from flyweight.bench.facts import Surroundings
from flyweight.prove.figures import bootstrap, compute_ratios
from flyweight.prove.spec_runs import AGAIN, OFF, SpecRun
from flyweight.prove.spec_session import SpecEngine, open_bench
from flyweight.prove.spec_texts import SpecPrompt, SpecWorkload, TextLimits
from flyweight.speculation import read_speculation

ASSETS = Path(flyweight.__file__).parent / "assets"
DRAFTERS: dict[str, dict[str, Any]] = {
    "draft_model": {"model": "stories-draft", "num_speculative_tokens": 4},
    "cascade": {"model": "stories-draft", "num_speculative_tokens": 16},
    "medusa": {"model": "stories-medusa", "num_speculative_tokens": 4},
    "eagle": {"model": "stories-eagle", "num_speculative_tokens": 5},
    "eagle tree": {"model": "stories-eagle", "num_speculative_tokens": 8, "tree_width": 4},
}
BLOCK, BYTES = 32, 34  # of Q8_0
Raw = NDArray[np.uint8]
SILENT = ("attn_output", "ffn_down")  # of an added layer


def write_deepened(out: Path, layers: int, inner: int) -> None:
    """The model inside with more layers and wider MLPs, whose outputs are the same."""
    reader = GGUFReader(ASSETS / "stories.gguf")
    changed = {"llama.block_count": layers, "llama.feed_forward_length": inner}
    writer = GGUFWriter(out, "llama")
    for name, field in reader.fields.items():
        if (
            not name.startswith("GGUF.")
            and name != "general.architecture"
            and "quality" not in name
        ):
            nested = field.types[1] if len(field.types) > 1 else None
            value = changed.get(name, field.contents())
            writer.add_key_value(name, value, field.types[0], sub_type=nested)
    found = {tensor.name: tensor for tensor in reader.tensors}
    count = int(reader.fields["llama.block_count"].contents())
    for name, tensor in found.items():
        if not name.startswith("blk."):
            add(writer, name, tensor.data, tensor)
    for layer in range(layers):
        for name, tensor in found.items():
            if name.startswith(f"blk.{layer % count}."):
                kind = name.split(".", 2)[2]
                data = pad(kind, tensor.data, inner)
                if layer >= count and kind.startswith(SILENT):
                    data = np.zeros_like(data)
                add(writer, f"blk.{layer}.{kind}", data, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pad(kind: str, data: Raw, inner: int) -> Raw:
    """An MLP's matrix of Q8_0 with zeros up to `inner`: blocks of 0 bytes."""
    rows, size = data.shape if data.ndim == 2 else (0, 0)
    if kind.startswith(("ffn_gate.", "ffn_up.")):
        return np.concatenate([data, np.zeros((inner - rows, size), data.dtype)])
    if kind.startswith("ffn_down."):
        return np.pad(data, ((0, 0), (0, inner // BLOCK * BYTES - size)))
    return data


def add(writer: GGUFWriter, name: str, data: Raw, tensor: ReaderTensor) -> None:
    kind = tensor.tensor_type
    raw = kind if kind == GGMLQuantizationType.Q8_0 else None
    writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=raw)


def copy_heads(name: str, out: Path) -> Path:
    """Heads that do not say which model they are for: the fingerprint is that of its file."""
    path = Path(shutil.copytree(ASSETS / name, out / name))
    config = json.loads((path / "config.json").read_text())
    config.pop("base_fingerprint")
    (path / "config.json").write_text(json.dumps(config))
    return path


def make_stories() -> SpecWorkload:
    text = Path(
        os.environ["FLYWEIGHT_DATA"], "text-tinystories/tinystories-excerpt.txt"
    ).read_text()
    stories = text.split("<|endoftext|>\n")
    openings = [" ".join(x.split(" ")[:16]) for x in stories[round(0.95 * len(stories)) :]]

    def make(limits: TextLimits, round: int) -> list[SpecPrompt]:
        tokens = limits.tokenizer.encode(openings[round % len(openings)], parse_special=False)
        return [limits.fit(tokens, tokens, len(tokens))]

    return SpecWorkload("stories", "openings of held-out stories", make)


def describe(name: str, runs: dict[str, list[SpecRun]], side: str) -> str:
    found = runs[side]
    ratio = bootstrap(compute_ratios([r.without for r in found], [r.pace for r in found]))
    drafts = sum(run.drafts for run in found)
    length = f"{1 + sum(run.accepted for run in found) / drafts:.2f}" if drafts else ""
    pace = 1e3 * float(np.median([run.pace for run in found]))
    gain = f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    return f"| {name} | {pace:.2f} | {length} | {gain} |"


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--layers", type=int, default=24)
    words.add_argument("--inner", type=int, default=16384)
    words.add_argument("--rounds", type=int, default=9)
    words.add_argument("--tokens", type=int, default=128)
    words.add_argument("--drafter", action="append", choices=list(DRAFTERS))
    given = words.parse_args()
    print(Surroundings.here())
    with TemporaryDirectory() as folder:
        model = Path(folder, "deepened.gguf")
        write_deepened(model, given.layers, given.inner)
        print(f"{given.layers} layers, {model.stat().st_size / 1e6:.0f} MB\n")
        print("| drafter | ms a token | tokens a step | speed-up |\n|---|---|---|---|")
        for name in given.drafter or DRAFTERS:
            config = {"method": name.split()[0], **DRAFTERS[name]}
            if config["model"] != "stories-draft":
                config["model"] = str(copy_heads(config["model"], Path(folder, name)))
            made = read_speculation(config)
            assert made is not None
            bench = open_bench(SpecEngine(str(model), {}, 64, given.tokens), {name: made})
            runs = bench.run(make_stories(), given.rounds)
            print(describe(f"off, for {name}", runs, OFF))
            print(describe("off again", runs, AGAIN))
            print(describe(name, runs, name), flush=True)


if __name__ == "__main__":
    main()
