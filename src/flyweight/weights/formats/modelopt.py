"""NVIDIA ModelOpt's folders: NVFP4 and FP8 with a scale a matrix.  Of a matrix [N, K] one of

    M.weight  u8 [N, K / 2]    two codes of E2M1 a byte, with M.weight_scale e4m3 [N, K / 16]
                               and M.weight_scale_2 f32 []
    M.weight  e4m3 [N, K]      with M.weight_scale f32 []

Invariant: w = code * weight_scale * weight_scale_2.  Scales of activations and of a K/V cache are
not used: activations are not rounded to these types here.
"""

from flyweight.validation.untrusted import shown
from flyweight.weights.formats.claims import Claim, Folder, MatrixScheme
from flyweight.weights.formats.compressed_rows import CodedMatrix, Int4Floats

ALGORITHMS = {"NVFP4": "u8", "FP8": "e4m3", "NVFP4_AWQ": "u8", "W4A16_NVFP4": "u8"}
WEIGHT, SCALE, SCALE_2 = ".weight", ".weight_scale", ".weight_scale_2"
INPUT = ".input_scale"
UNUSED = (".k_scale", ".v_scale", ".k_bias", ".v_bias", ".output_scale")


def claim(folder: Folder) -> dict[str, Claim]:
    """Every matrix of the folder in these layouts, by its name."""
    stated = folder.choose("quant_algo", tuple(ALGORITHMS))
    kinds = {s: folder.tensors[s + WEIGHT].kind for s in folder.list_stems(WEIGHT)}
    coded = {stem: kind for stem, kind in kinds.items() if kind in CLAIMS}
    for stem, kind in coded.items():
        if kind != ALGORITHMS[stated]:
            folder.refuse(f"quant_algo = {stated}, but tensor {shown(stem + WEIGHT)} is {kind}")
    return {stem + WEIGHT: CLAIMS[kind](folder, stem) for stem, kind in coded.items()}


def _list_parts(folder: Folder, stem: str) -> dict[str, str]:
    parts = {"codes": stem + WEIGHT, "scales": stem + SCALE}
    if stem + INPUT in folder.tensors:
        folder.check_single(stem + INPUT, shown(stem + WEIGHT))
        parts["input"] = stem + INPUT
    return parts | {stem + end: stem + end for end in UNUSED if stem + end in folder.tensors}


def _claim_nvfp4(folder: Folder, stem: str) -> Claim:
    what = shown(stem + WEIGHT)
    n, half = folder.check(stem + WEIGHT, ("u8",), (None, None), "an NVFP4 matrix").shape
    if half % 16 or not half:
        folder.check(stem + WEIGHT, ("u8",), (n, half // 16 * 16 or 16), "whole groups of 32")
    folder.check(stem + SCALE, ("e4m3",), (n, half // 8), what)
    folder.check_single(stem + SCALE_2, what)
    parts = _list_parts(folder, stem) | {"global": stem + SCALE_2}
    found = Int4Floats(f"{folder.where}: tensor {what}", two_levels=True, inverse=False)
    return Claim((n, half * 2), found.kind, parts, found.parse, MatrixScheme(4, 16))


def _claim_fp8(folder: Folder, stem: str) -> Claim:
    what = shown(stem + WEIGHT)
    n, k = folder.check(stem + WEIGHT, ("e4m3",), (None, None), "an FP8 matrix").shape
    if k % 32 or not k:
        folder.check(stem + WEIGHT, ("e4m3",), (n, k // 32 * 32 or 32), "whole groups of 32")
    folder.check_single(stem + SCALE, what)
    found = CodedMatrix(
        where=f"{folder.where}: tensor {what}",
        shape=(n, k),
        bits=8,
        floats=True,
        packed=False,
        symmetric=True,
        group=k,
        block_rows=1,
        single=True,
        scales="float32",
        ordered=False,
        static=False,
    )
    parts = _list_parts(folder, stem)
    return Claim((n, k), found.kind, parts, found.parse, MatrixScheme(8, -1))


CLAIMS = {"u8": _claim_nvfp4, "e4m3": _claim_fp8}
