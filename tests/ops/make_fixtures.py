"""Makes warpers.npz: random logits, and what transformers' logits processors leave of them.

`python tests/ops/make_fixtures.py OUT_DIR` (tests/data/sampling); the result is the same on every
run.  Needs torch and transformers.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers.generation import logits_process as theirs

ROWS, VOCAB, LENGTH = 12, 300, 20
MASSES = (0.05, 0.2, 0.5, 0.9, 0.99)
WARPERS = {
    "typical_p": (theirs.TypicalLogitsWarper, MASSES),
    "top_p": (theirs.TopPLogitsWarper, MASSES),
    "min_p": (theirs.MinPLogitsWarper, (0.01, 0.1, 0.5)),
    "top_k": (theirs.TopKLogitsWarper, (1, 7, 100)),
}
BAD = [[7], [3, 4], [5, 6, 8], [9, 9]]


def main(out: Path) -> None:
    rng = np.random.default_rng(11)
    spread = np.linspace(0.2, 6, ROWS)[:, None]
    logits = (rng.standard_normal((ROWS, VOCAB)) * spread).astype(np.float32)
    tokens = rng.integers(0, 10, (ROWS, LENGTH))
    for row, bad in enumerate(BAD * 2):  # some end one token before a bad word
        tokens[row, LENGTH + 1 - len(bad) :] = bad[:-1]
    ids, rows = torch.from_numpy(tokens), torch.from_numpy(logits)
    arrays: dict[str, np.ndarray] = {"logits": logits, "tokens": tokens}
    for name, (warper, values) in WARPERS.items():
        for value in values:
            left = warper(value)(ids, rows.clone())
            arrays[f"{name}={value}"] = np.isfinite(left.numpy())
    processed = theirs.NoBadWordsLogitsProcessor(BAD, eos_token_id=[])(ids, rows.clone())
    arrays["bad_words"] = np.isfinite(processed.numpy())
    arrays["repetition_penalty=1.3"] = theirs.RepetitionPenaltyLogitsProcessor(1.3)(
        ids, rows.clone()
    ).numpy()
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "warpers.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
