"""What transformers' beam search and hidden states are on the checkpoints of tests/data/models.

    python tests/model/make_decoding_fixtures.py MODELS_DIR OUT_DIR

Needs torch and transformers.  Ends of sequences are tokens that the beams are seen to take, so
that hypotheses end early, late and not at all.  A case is kept only if noise in the logits far
above float error changes none of its sequences, so that "equal" has one meaning.
"""

import sys
from itertools import product
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList

NAMES = ("llama3", "qwen3")
PROMPT, STEPS = 20, 24
WIDTHS, PENALTIES, EARLY = (2, 4, 5), (0.5, 1.0, 2.0), (False, True, "never")
CASES = [*product(WIDTHS, PENALTIES, EARLY), *product((4,), (0.0, -0.5), EARLY)]
NOISE = 2e-4  # ours and transformers' log-probabilities differ by a few 1e-6


class Noise(LogitsProcessor):
    """The same small error for the same tokens, another for each seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = []
        for row in ids:
            key = hash((self.seed, *row.tolist())) % 2**32
            rows.append(np.random.default_rng(key).uniform(-NOISE, NOISE, scores.shape[1]))
        return scores + torch.from_numpy(np.array(rows, np.float32))


def beams(model: torch.nn.Module, prompt: torch.Tensor, case: tuple, eos: list[int], noise=()):
    """Sequences after the prompt, padded with -1, and their scores, best first."""
    width, penalty, early = case
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        num_beams=width,
        num_return_sequences=width,
        length_penalty=penalty,
        early_stopping=early,
        max_new_tokens=STEPS,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=eos[0],
        output_scores=True,
        return_dict_in_generate=True,
        logits_processor=LogitsProcessorList([Noise(n) for n in noise]),
    )
    tokens = np.full((max(WIDTHS), STEPS), -1, np.int32)
    scores = np.full(max(WIDTHS), np.nan, np.float32)
    for i, row in enumerate(out.sequences[:, PROMPT:].tolist()):
        end = next((j + 1 for j, t in enumerate(row) if t in eos), len(row))
        tokens[i, :end] = row[:end]
        scores[i] = float(out.sequences_scores[i])
    return tokens, scores


def ends(model: torch.nn.Module, prompt: torch.Tensor) -> list[list[int]]:
    """One end, and two: tokens the beams take at some steps when nothing ends them."""
    free, _ = beams(model, prompt, (5, 1.0, False), [0])
    seen = [int(t) for t in free[:, 4:16].T.ravel() if t >= 0]
    once = list(dict.fromkeys(seen))
    return [[once[len(once) // 2]], sorted((once[len(once) // 3], once[-1]))]


def beam_cases(model: torch.nn.Module, prompt: torch.Tensor) -> dict[str, np.ndarray]:
    found: dict[str, list] = {k: [] for k in ("case", "eos", "tokens", "scores")}
    for eos, case in product(ends(model, prompt), CASES):
        tokens, scores = beams(model, prompt, case, eos)
        if any((beams(model, prompt, case, eos, [n])[0] != tokens).any() for n in range(2)):
            continue
        width, penalty, early = case
        found["case"].append((width, penalty, EARLY.index(early)))
        found["eos"].append((eos * 2)[:2])
        found["tokens"].append(tokens)
        found["scores"].append(scores)
    kinds = {"case": np.float64, "eos": np.int32, "tokens": np.int32, "scores": np.float32}
    return {name: np.array(values, kinds[name]) for name, values in found.items()}


def main(models: Path, out: Path) -> None:
    torch.set_num_threads(1)  # tiny matrices
    out.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        model = AutoModelForCausalLM.from_pretrained(
            models / name, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        model.generation_config.eos_token_id = None
        long = torch.from_numpy(np.load(models / name / "expected.npz")["prompt"]).long()[None]
        with torch.no_grad():
            hidden = model(long, output_hidden_states=True).hidden_states[-1][0]
            found = beam_cases(model, long[:, :PROMPT])
        np.savez_compressed(
            out / f"{name}.npz",
            mean=hidden.mean(0).numpy(),
            last=hidden[-1].numpy(),
            cls=hidden[0].numpy(),
            **found,
        )
        lengths = (found["tokens"] >= 0).sum(2)
        ended = (lengths < STEPS) & (lengths > 0)
        print(name, len(found["case"]), "cases;", int(ended.sum()), "hypotheses ended early")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
