"""Makes tests/data/quantize/libraries.npz: a small matrix, and what bitsandbytes and hqq make of
it.

Needs torch, bitsandbytes and hqq, none of which the engine or its tests do:

    python tests/quantize/make_fixtures.py tests/data/quantize
"""

import sys
from pathlib import Path

import bitsandbytes.functional as bnb
import numpy as np
import torch
from hqq.core.quantize import Quantizer

HQQ_BITS = (8, 4, 3, 2)
ODD = (33, 70)  # blocks run on from row to row, and the last is not full


def draw_weights() -> np.ndarray:
    """[130, 64] float16: more than 256 blocks of 32, outliers, a block of zeros."""
    rng = np.random.default_rng(3)
    w = (rng.standard_t(5, (130, 64)) * 0.03).astype(np.float16)
    w[7, :32] = 0
    w[9, 3] = 0
    return w


def quantize_floats(w: torch.Tensor, name: str, table: str, block: int) -> dict[str, np.ndarray]:
    """bitsandbytes' bytes and scales, without and with double quantisation."""
    packed, state = bnb.quantize_4bit(w, blocksize=block, quant_type=table)
    _, double = bnb.quantize_4bit(w, blocksize=block, quant_type=table, compress_statistics=True)
    return {
        f"{name} bytes": packed.numpy().reshape(-1),
        f"{name} absmax": state.absmax.numpy(),
        f"{name} nested codes": double.absmax.numpy(),
        f"{name} nested scales": double.state2.absmax.numpy(),
        f"{name} offset": double.offset.numpy(),
    }


def measure_hqq(w: torch.Tensor, bits: int) -> np.ndarray:
    """Mean |error|, mean |error|^0.7 and mean error^2 of hqq's float32 result, groups of 64."""
    codes, meta = Quantizer.quantize(
        w.clone(), nbits=bits, group_size=64, axis=1, round_zero=bits == 4, bitpack=False,
        device="cpu",
    )  # fmt: skip
    values = ((codes.float() - meta["zero"].float()) * meta["scale"].float()).reshape(w.shape)
    error = (values - w).abs().double()
    return np.array([float(error.mean()), float((error**0.7).mean()), float((error**2).mean())])


def main(out: Path) -> None:
    weights = draw_weights()
    w = torch.from_numpy(weights.astype(np.float32))
    odd = w.reshape(-1)[: ODD[0] * ODD[1]].reshape(ODD)
    found: dict[str, np.ndarray] = {"weights": weights}
    found["table"] = bnb.create_dynamic_map().numpy()
    for table in ("nf4", "fp4"):
        found |= quantize_floats(w, table, table, 32)
        found |= quantize_floats(odd, f"{table} odd", table, 64)
    found |= {f"mean hqq {bits}": measure_hqq(w, bits) for bits in HQQ_BITS}
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "libraries.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
