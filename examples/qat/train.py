"""Quantisation-aware training: a model learns to be itself with weights of 2 or 3 bits.

    python examples/qat/train.py MODEL OUT --bits 3 --text stories.txt
    flyweight quantize OUT OUT-3bit --method rtn --bits 3 --group-size 64

MODEL is a Hugging Face folder or a GGUF file.  Every matrix of a layer computes with its rounded
weights, in the grid of `flyweight quantize --method rtn`, and gradients pass the rounding as if it
were not there (the straight-through estimator, Bengio et al., 2013).  The loss is the divergence
from the model as it was.  What is written are the weights before rounding; quantising them gives
what was trained.  `--steps 0` writes the model as a folder, unchanged.

Needs torch and transformers, and `gguf` for a GGUF file.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax
from torch.nn.utils import parametrize
from transformers import AutoModelForCausalLM, AutoTokenizer


class FakeQuantize(nn.Module):
    """A matrix [N, K] as it is after rounding to `bits` bits in groups of columns."""

    def __init__(self, bits: int, group: int) -> None:
        super().__init__()
        self.bits, self.group = bits, group

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (round_to_grid(weight.detach(), self.bits, self.group) - weight).detach()


def round_to_grid(weight: Tensor, bits: int, group: int) -> Tensor:
    """The nearest of scale * code, where codes are -2^(bits-1) to 2^(bits-1) - 1 and a group's
    scale, which files hold as float16, spans its largest weight.
    """
    half = 2 ** (bits - 1)
    cells = weight.reshape(len(weight), -1, group)
    scale = cells.abs().amax(dim=-1, keepdim=True) / (half - 0.5)
    scale = scale.half().float().clamp(min=1e-7)
    codes = (cells / scale).round().clamp(-half, half - 1)
    return (codes * scale).reshape(weight.shape)


def load(source: Path) -> tuple[nn.Module, nn.Module, object]:
    """The model twice, as what learns and as the teacher, and its tokenizer."""
    file = {"gguf_file": source.name} if source.suffix == ".gguf" else {}
    folder = str(source.parent if file else source)
    pair = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **file) for _ in range(2)
    ]
    pair[1].requires_grad_(False)
    return pair[0], pair[1], AutoTokenizer.from_pretrained(folder, **file)


def cut_windows(tokenizer: object, text: Path, length: int) -> Tensor:
    """Windows [W, length] of the text's tokens, each with the beginning token, if there is one."""
    ids = tokenizer(text.read_text("utf-8"), add_special_tokens=False).input_ids
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    room = length - len(begin)
    rows = [begin + ids[i : i + room] for i in range(0, len(ids) - room + 1, room)]
    return torch.tensor(rows)


def train(
    student: nn.Module, teacher: nn.Module, windows: Tensor, given: argparse.Namespace
) -> None:
    """AdamW with a learning rate that rises for a twentieth of the steps and falls to 0."""
    for name, module in student.named_modules():
        if isinstance(module, nn.Linear) and "layers." in name:
            parametrize.register_parametrization(
                module, "weight", FakeQuantize(given.bits, given.group_size)
            )
    weights = [weight for weight in student.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=given.rate, weight_decay=0.0, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, 20 * (step + 1) / given.steps) * (1 - step / given.steps)
    )
    began = time.monotonic()
    for step in range(given.steps):
        batch = windows[torch.randint(len(windows), (given.batch,))]
        with torch.no_grad():
            wanted = log_softmax(teacher(batch).logits, dim=-1)
        found = log_softmax(student(batch).logits, dim=-1)
        loss = kl_div(found, wanted, reduction="none", log_target=True).sum(-1).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 25 == 0 or step == given.steps - 1:
            seconds = time.monotonic() - began
            print(f"step {step + 1} of {given.steps}: KLD {loss.item():.4f}, {seconds:.0f} s")
    for module in student.modules():
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)


def save(model: nn.Module, tokenizer: object, out: Path) -> None:
    """A Hugging Face folder in float32, with the weights before rounding."""
    out.mkdir(parents=True)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    tensors = {k: v.contiguous() for k, v in model.state_dict().items() if k not in tied}
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = model.config.to_diff_dict() | {"architectures": [type(model).__name__]}
    config.pop("quantization_config", None)  # of a GGUF file
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--text", type=Path, help="training text in UTF-8")
    parser.add_argument("--bits", type=int, default=3, choices=(2, 3, 4, 8))
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    student, teacher, tokenizer = load(given.model)
    if given.steps:
        if given.text is None:
            parser.error("--text is needed")
        train(student, teacher, cut_windows(tokenizer, given.text, given.length), given)
    save(student, tokenizer, given.out)


if __name__ == "__main__":
    main()
