"""Makes ggml_blocks.npz: random blocks and what the `gguf` package dequantises them to.

`python tests/weights/make_fixtures.py OUT_DIR` (tests/data/weights); the result is the same on
every run. `... OUT_DIR LLAMA_QUANTIZE` (tests/data/llama_cpp) makes written_blocks.npz
instead: blocks that llama.cpp's program of that name wrote, and what the package makes of those.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Bytes where a float16 lies; none in MXFP4 and NVFP4, in parts in IQ1_M.
PLACES = {"q2_k": (80, 82), "q3_k": (108,), "q6_k": (208,), "tq1_0": (52,), "tq2_0": (64,)}
PLACES |= dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (0, 2))
PLACES |= dict.fromkeys(("q4_0", "q5_0", "q8_0", "iq4_nl", "iq4_xs"), (0,))
PLACES |= dict.fromkeys(("iq1_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"), (0,))
PLACES |= dict.fromkeys(("iq1_m", "mxfp4", "nvfp4"), ())
OFTEN = {"q8_0", "q4_0", "q4_k", "q6_k"}  # 6 rows of 512; the others' rows are fewer


def main(out: Path, quantize: str | None = None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if quantize:
        np.savez_compressed(out / "written_blocks.npz", **written(quantize))
    else:
        np.savez_compressed(out / "ggml_blocks.npz", **random())


def both(kind: str, raw: np.ndarray) -> dict[str, np.ndarray]:
    values = dequantize(raw, GGMLQuantizationType[kind.upper()])
    return {f"{kind}_bytes": raw, f"{kind}_values": values}


def random() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    arrays = {}
    for kind, places in PLACES.items():
        block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind.upper()]]
        rows, columns = (6, 512) if kind in OFTEN else (4, 256)
        raw = rng.integers(0, 256, (rows * columns // block, nbytes), dtype=np.uint8)
        for at in places:
            scale = rng.standard_normal(len(raw)).astype(np.float16)
            scale[:3] = (0.0, 6e-8, -65504.0)  # zero, the smallest subnormal, the largest
            raw[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
        if kind == "iq1_m":
            raw[:, 55] &= 0xBF  # an exponent bit of the scale: no infinity, no NaN
        arrays |= both(kind, raw.reshape(rows, -1))
    return arrays


def written(quantize: str) -> dict[str, np.ndarray]:
    """Two rows of a small model's matrix in every type that llama-quantize writes."""
    arrays = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, importance = write_model(folder / "f32.gguf"), write_importance(folder / "i.gguf")
        for kind in PLACES:
            to = folder / f"{kind}.gguf"
            options = ["--imatrix", str(importance), "--tensor-type", f"ffn_up={kind}"]
            command = [quantize, *options, str(model), str(to), "Q4_0", "1"]
            subprocess.run(command, check=True, capture_output=True)
            tensors = {t.name: t for t in GGUFReader(to).tensors}
            up = tensors["blk.0.ffn_up.weight"]
            assert up.tensor_type.name.lower() == kind, (kind, up.tensor_type.name)
            arrays |= both(kind, np.array(up.data[:2]))
    return arrays


SHAPES = {"token_embd": (64, 256), "blk.0.ffn_up": (256, 256), "blk.0.ffn_gate": (256, 256)}
SHAPES |= {"blk.0.ffn_down": (256, 256), "output": (64, 256), "output_norm": (256,)}
SHAPES |= {f"blk.0.attn_{x}": (256, 256) for x in ("q", "k", "v", "output")}
SHAPES |= {"blk.0.attn_norm": (256,), "blk.0.ffn_norm": (256,)}


def write_model(path: Path) -> Path:
    writer, rng = GGUFWriter(path, "llama"), np.random.default_rng(3)
    writer.add_context_length(64)
    writer.add_embedding_length(256)
    writer.add_block_count(1)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(64)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(64)])
    writer.add_token_scores([0.0] * 64)
    writer.add_token_types([1] * 64)
    for name, shape in SHAPES.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    return finished(writer, path)


def write_importance(path: Path) -> Path:
    writer, rng = GGUFWriter(path, "llama"), np.random.default_rng(4)
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["random"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 64)
    for name, shape in SHAPES.items():
        if len(shape) == 2:
            squares = rng.uniform(0.5, 2, (1, shape[1])).astype(np.float32)
            writer.add_tensor(f"{name}.weight.in_sum2", squares)
            writer.add_tensor(f"{name}.weight.counts", np.ones((1, 1), np.float32))
    return finished(writer, path)


def finished(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
