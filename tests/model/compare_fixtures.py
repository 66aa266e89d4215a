"""Compares two directories of fixtures: files alike byte for byte, arrays exactly, logits
and what is summed of them within float noise.

python tests/model/compare_fixtures.py COMMITTED MADE_ANEW
"""

import sys
from pathlib import Path

import numpy as np

CLOSE = {"logits", "scores", "mean", "last", "cls"}
# float32 sums differ a little between builds of torch and processors, more where they are large
NOISE, RELATIVE_NOISE = 1e-4, 1e-5


def compare(old: Path, new: Path) -> list[str]:
    """One line per difference."""
    files = {(root, p) for root in (old, new) for p in root.rglob("*") if p.is_file()}
    # what is imported from among them leaves a cache there
    names = {p.relative_to(root) for root, p in files if "__pycache__" not in p.parts}
    return [line for name in sorted(names) for line in _differs(old / name, new / name)]


def _differs(old: Path, new: Path) -> list[str]:
    if not (old.is_file() and new.is_file()):
        return [f"{old.name} of {old.parent.name} is in one directory only"]
    if old.suffix != ".npz":
        return [] if old.read_bytes() == new.read_bytes() else [f"{old} differs"]
    was, now = np.load(old), np.load(new)
    if set(was) != set(now):
        return [f"{old}: {sorted(was)} became {sorted(now)}"]
    exact = [k for k in was if k.split()[0] not in CLOSE]
    lines = [f"{old}: {k} differs" for k in exact if was[k].tobytes() != now[k].tobytes()]
    for k in was.keys() - set(exact):
        error = float(np.nan_to_num(np.abs(was[k] - now[k])).max())
        noise = NOISE + RELATIVE_NOISE * float(np.nan_to_num(np.abs(was[k])).max())
        lines += [f"{old}: {k} differ by {error:.2e} > {noise:.2e}"] if error > noise else []
    return lines


if __name__ == "__main__":
    differences = compare(Path(sys.argv[1]), Path(sys.argv[2]))
    print("\n".join(differences) or f"{sys.argv[1]}: made anew, they are the same")
    sys.exit(bool(differences))
