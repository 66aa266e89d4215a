"""Tiles of products and splits of weights: what to tune.

Invariant: the rows of a call choose among tiles that give the same bits; splits and BK, on which
bits depend, belong to the weight.
"""

# By class: (most rows, BN, BT, BK, warps, stages); the last line is for any number of rows.  BK is
# the same in a class: it is part of the order of a sum.  Weights are "small" where they occupy few
# programs, dense ones "wide" where they have one split.
Tile = tuple[int, int, int, int, int, int]
Launch = tuple[int, int, int, int, int]  # a tile without its rows
TILES: dict[str, list[Tile]] = {
    "dense": [
        (16, 128, 16, 64, 8, 4),
        (32, 128, 32, 64, 8, 4),
        (64, 64, 64, 64, 4, 3),
        (128, 128, 128, 64, 8, 4),
        (0, 128, 128, 64, 8, 4),
    ],
    "small": [
        (16, 64, 16, 64, 4, 5),
        (32, 64, 32, 64, 4, 5),
        (64, 64, 64, 64, 4, 3),
        (128, 64, 64, 64, 4, 5),
        (0, 128, 128, 64, 8, 4),
    ],
    "wide": [
        (16, 128, 16, 64, 8, 3),
        (32, 128, 32, 64, 8, 4),
        (64, 64, 64, 64, 4, 3),
        (128, 128, 128, 64, 8, 3),
        (0, 256, 128, 64, 8, 4),
    ],
    "small_codes": [
        (16, 64, 16, 128, 4, 4),
        (32, 64, 32, 128, 4, 4),
        (64, 64, 64, 128, 4, 3),
        (128, 64, 128, 128, 4, 3),
        (0, 128, 128, 128, 8, 3),
    ],
    "packed": [
        (16, 128, 16, 128, 8, 4),
        (32, 128, 32, 128, 4, 4),
        (64, 128, 64, 128, 8, 3),
        (128, 64, 128, 128, 4, 3),
        (0, 128, 128, 128, 8, 3),
    ],
    "bytes": [
        (16, 128, 16, 128, 4, 3),
        (32, 128, 32, 128, 4, 3),
        (64, 128, 64, 128, 8, 3),
        (0, 128, 128, 128, 8, 3),
    ],
    "wide_codes": [
        (16, 128, 16, 128, 8, 4),
        (32, 128, 32, 128, 4, 3),
        (64, 128, 64, 128, 8, 3),
        (128, 64, 128, 128, 4, 3),
        (0, 128, 256, 128, 8, 2),
    ],
    "exact_dense": [(16, 64, 16, 32, 4, 2), (0, 64, 32, 32, 4, 2)],
    "exact_packed": [(16, 64, 16, 128, 4, 1), (0, 64, 32, 128, 4, 1)],
    "exact_bytes": [(16, 64, 16, 128, 4, 1), (0, 64, 32, 128, 4, 1)],
}
PROGRAMS = {"dense": 200, "packed": 528, "bytes": 528}  # at most, of all splits and few rows
SHORTEST = {"dense": 256, "packed": 512, "bytes": 512}  # along K, of a split
MOST = 8  # splits: their sums are written and read, which many rows feel
REGISTERS = 128  # of a thread, where tiles are small: more programs at a time on a multiprocessor


def count_splits(tiles: int, most: int, programs: int) -> int:
    """Enough splits to occupy the device with few rows of x."""
    splits = 1
    while 2 * splits * tiles <= programs and 2 * splits <= most:
        splits *= 2
    return splits


def choose_tile(tiles: list[Tile], count: int) -> Launch:
    return next(tile for most, *tile in tiles if count <= most or not most)  # type: ignore[return-value]


def limit_registers(tile: Launch, count: int, dense: bool) -> int | None:
    """What a thread may hold, for `count` rows."""
    bn, bt, _, warps, _ = tile
    few = bt <= 32 or (dense and count <= 128 and bn * bt <= 64 * 32 * warps)
    return REGISTERS if few else None
