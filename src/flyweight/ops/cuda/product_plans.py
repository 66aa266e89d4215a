"""How each weight is multiplied: its tiles, its splits along K, what kernels are compiled for.

Invariant: a plan depends on the weight alone, never on the rows of a call.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from flyweight.ops.cuda.forms import Form
from flyweight.ops.cuda.tiles import MOST, PROGRAMS, SHORTEST, TILES, Tile, count_splits
from flyweight.ops.cuda.weights import CudaWeight

READS = {"whole": 0, "table": 1, "e2m1": 2, "e4m3": 3, "e5m2": 4, "signed": 5}
LOWS = {"": 0, "zeros": 1, "mins": 2, "float_zeros": 3}
PAIRED = 4  # is added


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """How a weight is multiplied: `steps` of BK along K, `per` of them a split."""

    tiles: list[Tile]
    form: tuple[int, int, int, int, int, int]
    table: Tensor
    steps: int
    per: int
    splits: int
    even: bool


def find_plan(w: CudaWeight, exact: bool) -> ProductPlan:
    """The plan of a weight, made once."""
    held: ProductPlan | None = w.cache.get(exact)
    if held is None:
        held = w.cache[exact] = make_plan(w, exact)
    return held


def make_plan(w: CudaWeight, exact: bool) -> ProductPlan:
    kind = "dense" if w.form is None else "packed" if w.form.packed else "bytes"
    tiles = TILES[f"exact_{kind}" if exact else kind]
    (n, k), (_, bn, _, bk, _, _) = w.shape, tiles[0]
    steps = -(-k // bk)
    most = min(MOST, max(1, steps * bk // SHORTEST[kind]))
    splits = count_splits(-(-n // bn), most, PROGRAMS[kind])
    if not exact and -(-n // bn) * splits < 100:
        tiles = TILES["small" if w.form is None else "small_codes"]
        splits = count_splits(-(-n // 64), max(1, steps * bk // 256), PROGRAMS["dense"])
    elif not exact and splits == 1 and w.kind != "f32":
        tiles = TILES["wide" if w.form is None else "wide_codes"]
    per = -(-steps // splits)
    form = (-1, 0, 0, 0, 0, 0) if w.form is None else list_form(w.form)
    table = w.data
    if w.form is not None and w.form.read == "table":
        table = make_table(w.form.values, not exact and w.kind[:3] in ("nf4", "fp4"), w.data.device)
    return ProductPlan(tiles, form, table, steps, per, -(-steps // per), k % bk == 0)


def list_form(form: Form) -> tuple[int, int, int, int, int, int]:
    """What kernels are compiled for."""
    read = READS["signed" if form.signed else form.read]
    lows = LOWS[form.lows] + PAIRED * form.paired
    return read, form.packed, form.zero, lows, form.group, form.super_group


@cache
def make_table(values: tuple[float, ...], rounds: bool, device: torch.device) -> Tensor:
    """Values of codes, float32; `rounds`: as bf16 products see them.  Behind a table of 16 are the
    low bytes of its bfloat16, then the high ones.
    """
    table = torch.tensor(values, dtype=torch.float32)
    halves = table.bfloat16().view(torch.uint8).view(-1, 2).t().contiguous()
    table = table.bfloat16().float() if rounds else table
    return torch.cat((table, halves.view(torch.float32).flatten())).to(device)
