"""compressed-tensors' layouts (Neural Magic, vLLM's llm-compressor): of a matrix [N, K] one of

    M.weight_packed  i32 [N, K bits / 32]    whole numbers, plus half their range
    M.weight_packed  u8 [N, K / 2]    two codes of E2M1 a byte, the first in the low half
    M.weight         i8 or e4m3 [N, K]

with M.weight_scale ([1], [N, 1], [N, groups] or one a block), and as the kind has them
M.weight_zero_point, M.weight_g_idx, M.weight_shape, M.weight_global_scale, M.input_scale.

Invariant: w = scale * (code - zero), for NVFP4 divided by the global scale.  What a matrix is, its
tensors say; one group of `config_groups` must describe it.  Patterns of `targets` and `ignore` are
not read: matching an untrusted regular expression may never end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from flyweight.errors import CheckpointError, nearest
from flyweight.validation.untrusted import shown, spell
from flyweight.weights.formats.claims import SCALES, Claim, Folder, MatrixScheme
from flyweight.weights.formats.compressed_rows import CodedMatrix, Int4Floats
from flyweight.weights.tensorinfo import TensorInfo

PACKED, PLAIN, SCALE, ZERO = ".weight_packed", ".weight", ".weight_scale", ".weight_zero_point"
GLOBAL, ORDER, SHAPE = ".weight_global_scale", ".weight_g_idx", ".weight_shape"
INPUT, INPUT_ZERO = ".input_scale", ".input_zero_point"
UNUSED = (".input_global_scale", ".output_scale", ".output_zero_point")
CACHE = (".k_scale", ".v_scale", ".q_scale", ".k_zero_point", ".v_zero_point", ".q_zero_point")
FORMATS = (
    "pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "mixed-precision",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "dense",
)  # fmt: skip
STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block")
ORDERS = {"group": True, "dynamic": True, "weight": False, "static": False}
DENSE = ("dense", None)


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """What a group of the config says of weights: `group` is 0 for a scale a row or a matrix,
    `block` the rows and columns of one; `static` activations have scales of their own in the file.
    """

    bits: int
    kind: str
    symmetric: bool
    strategy: str
    group: int
    block: tuple[int, int]
    ordered: bool
    static: bool

    def scales_of(self, n: int, k: int) -> tuple[int, int]:
        """The shape of a matrix's scales; zeros where the matrix is not whole groups."""
        if self.strategy == "block":
            rows, columns = self.block
            return (-(-n // rows), k // columns) if k % columns == 0 else (0, 0)
        if self.group:
            return (n, k // self.group) if k % self.group == 0 else (0, 0)
        return (1, 1) if self.strategy == "tensor" else (n, 1)

    def simplify(self) -> MatrixScheme:
        group = self.block[1] if self.strategy == "block" else self.group or -1
        return MatrixScheme(self.bits, group, self.symmetric, self.ordered)

    def __str__(self) -> str:
        size = f" of {self.group}" if self.group else ""
        return f"{self.bits}-bit {self.kind}, a scale a {self.strategy}{size}"


def claim(folder: Folder) -> dict[str, Claim]:
    """Every matrix of the folder in these layouts, by the name of its weight."""
    folder.choose("format", FORMATS, "dense")
    for key in ("sparsity_config", "transform_config"):
        given = folder.read_object(key)
        if given and given.get("format", "") not in DENSE:
            folder.refuse(f"{key} = {spell(given)}; sparse or rotated weights are not read")
    schemes = list(dict.fromkeys(_list_schemes(folder)))
    stems = [*folder.list_stems(PACKED)]
    coded = ("i8", "e4m3")
    stems += [s for s in folder.list_stems(PLAIN) if folder.tensors[s + PLAIN].kind in coded]
    return {f"{stem}.weight": _claim_matrix(folder, stem, schemes) for stem in stems}


def _list_schemes(folder: Folder) -> Iterator[WeightScheme]:
    groups = folder.config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        folder.refuse(f"config_groups = {spell(groups)}; an object of schemes expected")
        return
    for name, scheme in groups.items():
        label = f"config_groups.{name if name.isidentifier() else shown(name)}"
        path = f"{folder.path}.{label}"
        within = partial(Folder, tensors=folder.tensors, where=folder.where)
        weights = scheme.get("weights") if isinstance(scheme, Mapping) else None
        inputs = scheme.get("input_activations") if isinstance(scheme, Mapping) else None
        if not isinstance(weights, Mapping):
            folder.refuse(f"{label} = {spell(scheme)}; a scheme with weights expected")
            return
        static = False
        if isinstance(inputs, Mapping):
            static = _read_inputs(within(inputs, path=f"{path}.input_activations"))
        elif inputs is not None:
            folder.refuse(f"{label}.input_activations = {spell(inputs)}; an object expected")
        yield _read_scheme(within(weights, path=f"{path}.weights"), static)


def _read_inputs(args: Folder) -> bool:
    """Whether activations have scales of the file's.  `args` has the scheme's input_activations for
    its config.
    """
    kind = args.choose("type", ("int", "float"), "int")
    args.choose("num_bits", (8,) if kind == "int" else (4, 8), 8)
    if not args.choose("symmetric", (True, False), True):
        args.refuse("symmetric = false; activations have no zero points here")
    local = args.config.get("dynamic") == "local"  # NVFP4's: a scale a group, found as they come
    return not local and not args.choose("dynamic", (True, False), False)


def _read_scheme(args: Folder, static: bool) -> WeightScheme:
    """`args` has the scheme's weights for its config."""
    args.choose("dynamic", (False,), False)
    kind = args.choose("type", ("int", "float"), "int")
    bits = args.choose("num_bits", range(2, 9) if kind == "int" else (4, 8), 8)
    group = args.config.get("group_size") or 0
    if not isinstance(group, int) or isinstance(group, bool) or group < -1:
        args.refuse(f"group_size = {spell(group)}; -1 or a whole number expected")
    named = args.config.get("strategy")
    inferred = "group" if group > 0 else "channel" if group else "tensor"
    strategy = args.choose("strategy", STRATEGIES) if named is not None else inferred
    block = args.config.get("block_structure") or (0, 0)
    sizes = isinstance(block, list | tuple) and [type(x) for x in block] == [int, int]
    if not sizes or (strategy == "block") != (min(block) > 0):
        args.refuse(f"block_structure = {spell(block)} for strategy {strategy}")
    if ("group" in strategy) != (group > 0):
        args.refuse(f"group_size = {group} for strategy {strategy}")
    return WeightScheme(
        bits=bits,
        kind=kind,
        symmetric=args.choose("symmetric", (True, False), True),
        strategy=strategy,
        group=max(group, 0),
        block=(block[0], block[1]),
        ordered=_read_order(args),
        static=static,
    )


def _read_order(args: Folder) -> bool:
    """Whether columns are in another order in the file; "weight" only made them so."""
    given = args.config.get("actorder")
    if given is None or isinstance(given, bool):
        return bool(given)
    word = given.lower() if isinstance(given, str) else given
    near = nearest(word, ORDERS) if isinstance(word, str) else ""
    if word not in (*ORDERS,):
        args.refuse(f"actorder = {spell(given)}; one of {', '.join(ORDERS)}, true, false{near}")
    return ORDERS[word]


def _claim_matrix(folder: Folder, stem: str, schemes: list[WeightScheme]) -> Claim:
    codes = folder.tensors.get(stem + PACKED) or folder.tensors[stem + PLAIN]
    if stem + PACKED in folder.tensors and stem + PLAIN in folder.tensors:
        raise CheckpointError(
            f"{folder.where}: tensor {shown(stem + PLAIN)} is present twice, dense and packed"
        )
    folder.check(codes.name, ("i32", "u8", "i8", "e4m3"), (None, None), "a compressed matrix")
    scale = folder.tensors.get(stem + SCALE)
    if scale is None:
        folder.check(stem + SCALE, tuple(SCALES), (None, None), shown(codes.name))
        raise AssertionError("check refuses what is missing")
    scheme, k = _find_scheme(folder, schemes, codes, scale)
    parts = {"codes": codes.name, "scales": scale.name}
    extras = (*((stem + end) for end in UNUSED), *_list_cache_scales(stem))
    parts |= {name: name for name in extras if name in folder.tensors}
    if codes.kind == "u8":
        return _claim_floats(folder, stem, (codes.shape[0], k), parts)
    return _claim_codes(folder, stem, scheme, k, parts)


def _find_scheme(
    folder: Folder, schemes: list[WeightScheme], codes: TensorInfo, scale: TensorInfo
) -> tuple[WeightScheme, int]:
    """The scheme that describes a matrix by its tensors' kinds and shapes, and its columns."""
    n, width = codes.shape
    found: list[tuple[WeightScheme, int]] = []
    for one in schemes:
        if codes.kind == "i32":
            fits, k = one.kind == "int", width * 32 // one.bits
        elif codes.kind == "u8":
            fits, k = (one.kind, one.bits) == ("float", 4), width * 2
        else:
            fits, k = (one.kind, one.bits) == ("int" if codes.kind == "i8" else "float", 8), width
        rows, columns = one.scales_of(n, k)
        flat = one.strategy == "tensor" and scale.shape in ((), (1,))
        shaped = scale.shape == (rows, columns) or (columns == 1 and scale.shape == (rows,))
        if fits and rows and k and k % 32 == 0 and (flat or shaped):
            found.append((one, k))
    if len({(one.bits, one.symmetric, one.group, k) for one, k in found}) == 1:
        (one, k), static = found[0], {each.static for each, _ in found}
        inputs = codes.name.rpartition(".")[0] + INPUT in folder.tensors
        return replace(one, static=inputs if len(static) > 1 else one.static), k
    what = "several schemes" if found else "no scheme"
    known = "; ".join(str(one) for one in schemes)
    raise CheckpointError(
        f"{folder.where}: tensor {shown(codes.name)} {codes.kind} {list(codes.shape)} with scales "
        f"{scale.kind} {list(scale.shape)} fits {what} of "
        f"quantization_config.config_groups: {known}"
    )


def _list_cache_scales(stem: str) -> Iterator[str]:
    """Scales of a K/V cache, which has the requested type here: they belong to k_proj."""
    module, _, last = stem.rpartition(".")
    if last == "k_proj":
        yield from (module + end for end in CACHE)


def _claim_floats(
    folder: Folder, stem: str, shape: tuple[int, int], parts: dict[str, str]
) -> Claim:
    """NVFP4 and MXFP4."""
    n, k = shape
    what = shown(stem + PACKED)
    if folder.tensors[stem + SCALE].kind == "e4m3":
        folder.check(stem + SCALE, ("e4m3",), (n, k // 16), what)
        folder.check_single(stem + GLOBAL, what)
        parts["global"] = stem + GLOBAL
    else:
        folder.check(stem + SCALE, ("u8", "e8m0"), (n, k // 32), what)
    found = Int4Floats(f"{folder.where}: tensor {what}", "global" in parts)
    scheme = MatrixScheme(4, 16 if "global" in parts else 32)
    return Claim(shape, found.kind, parts, found.parse, scheme)


def _claim_codes(
    folder: Folder, stem: str, scheme: WeightScheme, k: int, parts: dict[str, str]
) -> Claim:
    """Whole numbers and FP8."""
    codes, scale = folder.tensors[parts["codes"]], folder.tensors[stem + SCALE]
    n, packed, what = codes.shape[0], codes.kind == "i32", shown(codes.name)
    folder.check(stem + SCALE, (*SCALES, *(("u8", "e8m0") if scheme.kind == "float" else ())),
                 scale.shape, what)  # fmt: skip
    parts = parts | _list_companions(folder, stem, scheme, codes, k)
    parts |= _list_inputs(folder, stem, scheme, codes)
    found = CodedMatrix(
        where=f"{folder.where}: tensor {what}",
        shape=(n, k),
        bits=scheme.bits,
        floats=scheme.kind == "float",
        packed=packed,
        symmetric=scheme.symmetric,
        group=(scheme.block[1] if scheme.strategy == "block" else scheme.group) or k,
        block_rows=scheme.block[0] if scheme.strategy == "block" else 1,
        single=scheme.strategy == "tensor",
        scales=SCALES.get(scale.kind, "float32"),
        ordered=scheme.ordered and "order" in parts and scheme.group < k,
        static="input" in parts and codes.kind == "i8" and scheme.symmetric,
    )
    return Claim((n, k), found.kind, parts, found.parse, scheme.simplify())


def _list_companions(
    folder: Folder, stem: str, scheme: WeightScheme, codes: TensorInfo, k: int
) -> dict[str, str]:
    """The tensors by role that say a matrix's shape, its order of columns and its zero points."""
    found: dict[str, str] = {}
    n, packed, what = codes.shape[0], codes.kind == "i32", shown(codes.name)
    if packed and stem + SHAPE in folder.tensors:
        folder.check(stem + SHAPE, ("i64", "i32"), (2,), what)
        found["shape"] = stem + SHAPE
    if packed and stem + ORDER in folder.tensors:
        folder.check(stem + ORDER, ("i32", "i64"), (k,), what)
        found["order"] = stem + ORDER
    elif scheme.ordered:
        folder.check(stem + ORDER, ("i32",), (k,), f"{what} with actorder = group")
    if stem + ZERO in folder.tensors or not scheme.symmetric:
        whole = not scheme.symmetric and packed
        words = -(-n * scheme.bits // 32)
        groups = scheme.scales_of(n, k)[1]
        shape = (words, groups) if whole else folder.tensors[stem + SCALE].shape
        folder.check(stem + ZERO, ("i32",) if whole else ("i8",), shape, what)
        found["zeros"] = stem + ZERO
    return found


def _list_inputs(
    folder: Folder, stem: str, scheme: WeightScheme, codes: TensorInfo
) -> dict[str, str]:
    """The tensors by role that a matrix has for static activations."""
    found: dict[str, str] = {}
    what = shown(codes.name)
    if stem + INPUT in folder.tensors and codes.kind == "i8" and not scheme.static:
        folder.refuse(
            "config_groups has no input_activations.dynamic = false, but the folder has tensor "
            f"{shown(stem + INPUT)}"
        )
    if stem + INPUT in folder.tensors or scheme.static:
        static = f"{what} with input_activations.dynamic = false" if scheme.static else what
        folder.check_single(stem + INPUT, static)
        found["input"] = stem + INPUT
    if stem + INPUT_ZERO in folder.tensors:
        found["input_zero"] = stem + INPUT_ZERO
    return found
