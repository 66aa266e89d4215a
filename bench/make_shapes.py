"""Models of real shapes with random weights, as GGUF files: speed does not depend on the values.

    python bench/make_shapes.py OUT [--shapes qwen3-0.6b,llama-3.2-1b] [--types q4_0,q8_0,...]

Writes OUT/SHAPE/TYPE.gguf where it is not there yet.  Quantised types are mixed as llama.cpp's
quantiser mixes them by default (Q4_0 and Q4_K_M keep the head in Q6_K), and their blocks are drawn
directly: random codes under scales that give weights of a usual size.  The vocabulary is a dummy of
the right length.  Needs the `gguf` package.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import LlamaFileType as FileType
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
SPREAD = 0.02  # standard deviation of a weight
SPECIALS = ("<|bos|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class Shape:
    """A published model's dimensions."""

    arch: str
    layers: int
    hidden: int
    heads: int
    kv: int
    head: int
    inner: int
    vocab: int
    context: int
    theta: float
    eps: float


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6, 1e-6),
    "llama-3.2-1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, 1e-5),
}
TYPES = {
    "f16": (Kind.F16, FileType.MOSTLY_F16),
    "bf16": (Kind.BF16, FileType.MOSTLY_BF16),
    "q8_0": (Kind.Q8_0, FileType.MOSTLY_Q8_0),
    "q4_0": (Kind.Q4_0, FileType.MOSTLY_Q4_0),
    "q4_k_m": (Kind.Q4_K, FileType.MOSTLY_Q4_K_M),
}


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes [N, K]; vectors are norms."""
    q, kv = shape.heads * shape.head, shape.kv * shape.head
    hidden, inner = shape.hidden, shape.inner
    yield "token_embd.weight", (shape.vocab, hidden)
    for i in range(shape.layers):
        at = f"blk.{i}."
        yield at + "attn_norm.weight", (hidden,)
        yield at + "attn_q.weight", (q, hidden)
        yield at + "attn_k.weight", (kv, hidden)
        yield at + "attn_v.weight", (kv, hidden)
        yield at + "attn_output.weight", (hidden, q)
        if shape.arch == "qwen3":
            yield at + "attn_q_norm.weight", (shape.head,)
            yield at + "attn_k_norm.weight", (shape.head,)
        yield at + "ffn_norm.weight", (hidden,)
        yield at + "ffn_gate.weight", (inner, hidden)
        yield at + "ffn_up.weight", (inner, hidden)
        yield at + "ffn_down.weight", (hidden, inner)
    yield "output_norm.weight", (hidden,)


def kind_of(name: str, size: tuple[int, ...], kind: Kind, layers: int) -> Kind:
    """What llama.cpp's default mixture stores a tensor as."""
    if len(size) == 1:
        return Kind.F32
    if kind not in (Kind.Q4_0, Kind.Q4_K):
        return kind
    if name == "token_embd.weight":  # the head too
        return Kind.Q6_K
    if kind == Kind.Q4_K and name.endswith(("attn_v.weight", "ffn_down.weight")):
        i, eighth = int(name.split(".")[1]), layers // 8
        if i < eighth or i >= 7 * eighth or (i - eighth) % 3 == 2:
            return Kind.Q6_K
    return kind


def drawn(rng: np.random.Generator, size: tuple[int, ...], kind: Kind) -> NDArray:
    """Random weights as their bytes: [N, bytes of a row]."""
    if kind == Kind.F32:
        return np.ones(size, np.float32)
    rows, columns = size
    if kind == Kind.F16:
        return normal(rng, size).astype(np.float16)
    if kind == Kind.BF16:
        return (normal(rng, size).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    width, nbytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = BLOCKS[kind](rng, rows * columns // width)
    assert blocks.shape[1] == nbytes
    return blocks.reshape(rows, -1)


def normal(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float32]:
    values = rng.standard_normal(size, np.float32)
    values *= np.float32(SPREAD)
    return values


def q4_0(rng: np.random.Generator, count: int) -> Bytes:
    """Scale, 32 codes of 4 bits: scale * (code - 8)."""
    return np.hstack((scale(SPREAD / 4.6, count), noise(rng, count, 16)))


def q8_0(rng: np.random.Generator, count: int) -> Bytes:
    """Scale, 32 codes: scale * code."""
    return np.hstack((scale(SPREAD / 73.9, count), noise(rng, count, 32)))


def q4_k(rng: np.random.Generator, count: int) -> Bytes:
    """Two scales, 8 scales and 8 minima of 6 bits, 256 codes: d * scale * code - m * minimum."""
    d = SPREAD / (4.6 * 32)
    return np.hstack((scale(d, count), scale(7.5 * d, count), noise(rng, count, 12 + 128)))


def q6_k(rng: np.random.Generator, count: int) -> Bytes:
    """Codes of 6 bits in two planes, 16 scales, a scale of those: d * scale * (code - 32)."""
    scales = rng.integers(32, 96, (count, 16), np.uint8)
    return np.hstack((noise(rng, count, 192), scales, scale(SPREAD / (18.5 * 64), count)))


BLOCKS = {Kind.Q4_0: q4_0, Kind.Q8_0: q8_0, Kind.Q4_K: q4_k, Kind.Q6_K: q6_k}


def scale(value: float, count: int) -> Bytes:
    return np.full((count, 1), value, np.float16).view(np.uint8)


def noise(rng: np.random.Generator, count: int, width: int) -> Bytes:
    return np.frombuffer(rng.bytes(count * width), np.uint8).reshape(count, width)


def vocabulary(size: int) -> list[str]:
    """The 256 bytes, as many words as it takes, the special tokens."""
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in letters]
    named = {b: chr(b) for b in letters} | {b: chr(256 + i) for i, b in enumerate(others)}
    words = [f"Ġ{i:x}" for i in range(size - 256 - len(SPECIALS))]
    return [*(named[b] for b in range(256)), *words, *SPECIALS]


def describe(writer: gguf.GGUFWriter, name: str, shape: Shape, file_type: FileType) -> None:
    """The metadata."""
    writer.add_name(name)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_freq_base(shape.theta)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_vocab_size(shape.vocab)
    if shape.arch == "llama":
        writer.add_rope_dimension_count(shape.head)
    writer.add_file_type(file_type)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary(shape.vocab))
    writer.add_token_merges(["a a"])
    writer.add_token_types([1] * (shape.vocab - 3) + [3] * 3)
    writer.add_bos_token_id(shape.vocab - 3)
    writer.add_eos_token_id(shape.vocab - 1)
    writer.add_pad_token_id(shape.vocab - 1)
    writer.add_add_bos_token(False)


def write(path: Path, name: str, kind: str) -> None:
    """One file, a tensor in memory at a time; it has its name only when it is whole."""
    shape, (main, file_type) = SHAPES[name], TYPES[kind]
    part = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(part, shape.arch)
    describe(writer, name, shape, file_type)
    plan = [(t, size, kind_of(t, size, main, shape.layers)) for t, size in tensors(shape)]
    for tensor, size, stored in plan:
        width, nbytes = gguf.GGML_QUANT_SIZES[stored]
        row = (*size[:-1], size[-1] // width * nbytes)
        total = int(np.prod(row))
        writer.add_tensor_info(tensor, row, np.dtype(np.uint8), total, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, (_, size, stored) in enumerate(plan):
        writer.write_tensor_data(drawn(np.random.default_rng(number), size, stored))
    writer.close()
    os.replace(part, path)


def make(out: Path, shapes: list[str], types: list[str]) -> None:
    for name in shapes:
        for kind in types:
            path = out / name / f"{kind}.gguf"
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            print(f"writing {path}", flush=True)
            write(path, name, kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--types", default=",".join(TYPES))
    args = parser.parse_args()
    shapes, types = args.shapes.split(","), args.types.split(",")
    for what, given, known in (("shape", shapes, SHAPES), ("type", types, TYPES)):
        for one in given:
            if one not in known:
                parser.error(f"unknown {what} {one!r}; known: {', '.join(known)}")
    make(args.out, shapes, types)


if __name__ == "__main__":
    main()
