"""What torch computes of exact_models.py, in float64 and in float32.

    PYTHONPATH=src:tests python tests/model/make_exact.py OUT [NAME ...]

Needs torch and transformers.  OUT/<name>.npz holds the float64 `logits` of every eighth row and the
`scores` of torch itself: the rms error of its float32 logits.  Angles of the rotation are what the
model defines them to be, products in float32; all else is float64.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exact_models import EVERY, MODELS, make, prompt
from make_fixtures import settle_rope
from transformers import AutoModelForCausalLM


@contextmanager
def widened() -> Iterator[None]:
    """Norms, softmax and routers ask for float32 by name: they get float64."""
    narrow = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    yield
    torch.float32, torch.float, torch.Tensor.float = narrow


def exact(model: torch.nn.Module, tokens: torch.Tensor) -> np.ndarray:
    """Logits in float64."""
    single = torch.float32
    model = model.double()
    model.config._experts_implementation = "eager"  # the other knows no float64
    rotary = model.model.rotary_emb

    def rotate(_: Any, position_ids: torch.Tensor, **__: Any) -> Any:
        inverse = rotary.inv_freq.to(single)
        angles = (position_ids[0].to(single)[:, None] * inverse).double()[None]
        scale = rotary.attention_scaling
        if "DeepseekV2" in type(rotary).__name__:
            return torch.polar(torch.ones_like(angles), angles) * scale
        if "GptOss" not in type(rotary).__name__:
            angles = torch.cat([angles, angles], -1)
        return angles.cos() * scale, angles.sin() * scale

    rotary.forward = rotate
    with torch.no_grad(), widened():
        found = model(tokens).logits[0]
    assert found.dtype == torch.float64
    return np.asarray(found.numpy())


def expect(name: str, folder: Path) -> dict[str, np.ndarray]:
    """float64 logits, and how far torch's float32 ones are from them."""
    model = AutoModelForCausalLM.from_pretrained(
        make(name, folder), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    if name.endswith("longrope"):
        settle_rope(model, model.config.max_position_embeddings)
    tokens = torch.from_numpy(prompt(name))[None]
    with torch.no_grad():
        single = model(tokens).logits[0].numpy()
    wide = exact(model, tokens)
    rms = np.sqrt(np.square(single - wide).mean())
    print(name, f"std {wide.std():.2f}, torch's rms error {rms:.2e}")
    return dict(logits=wide[::EVERY], scores=rms)


def main(out: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    for name in names or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            np.savez_compressed(out / f"{name}.npz", **expect(name, Path(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
