"""Folders quantised by bitsandbytes, fp8, hqq and torchao that lie, one lie each: refused in one
line that names the tensor or the config's field, the value, and what was expected.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edited_folder import EditedFolder, Lie, Q, W, check_lie, config, drop, load_all, put, replace
from flyweight.errors import CheckpointError

NF4 = f"{W}.quant_state.bitsandbytes__nf4"


def state(**fields: Any) -> Callable[[EditedFolder], Any]:
    """What quant_state says; None leaves a field out."""

    def change(folder: EditedFolder) -> None:
        found = json.loads(folder.tensors[NF4][1].tobytes()) | fields
        found = {key: value for key, value in found.items() if value is not None}
        folder.tensors[NF4] = ("U8", np.frombuffer(json.dumps(found).encode(), np.uint8))

    return change


def entry(name: str = W, **fields: Any) -> Callable[[EditedFolder], Any]:
    """What the header's text says of a torchao tensor; `data` is merged into what it has."""

    def change(folder: EditedFolder) -> None:
        found = json.loads(folder.text[name])
        found["_data"] |= fields.pop("data", {})
        folder.text[name] = json.dumps(found | fields)

    return change


def cut(old: Any) -> Any:
    return old[:-1]


BITSANDBYTES: dict[str, Lie] = {
    "no absmax": ("bnb-nf4", drop(f"{W}.absmax"), "q_proj.weight.absmax' is missing"),
    "no map": ("bnb-nf4", drop(f"{W}.quant_map"), "q_proj.weight.quant_map' is missing"),
    "no codes": ("bnb-nf4", drop(W), "q_proj.weight' is missing"),
    "no state": ("bnb-nf4", drop(NF4), "quant_state.bitsandbytes__nf4' is missing"),
    "no nested map": ("bnb-nf4-double", drop(f"{W}.nested_quant_map"), "nested_quant_map' is mis"),
    "no nested absmax": (
        "bnb-nf4-double",
        drop(f"{W}.nested_absmax"),
        "nested_absmax' is missing",
    ),
    "absmax short": ("bnb-nf4", replace(f"{W}.absmax", cut), "[63]; f16 or bf16 or f32 [64] exp"),
    "absmax of bytes": (
        "bnb-nf4",
        replace(f"{W}.absmax", lambda old: old.astype(np.uint8), "U8"),
        "absmax' is u8 [64]; f16 or bf16 or f32 [64] expected",
    ),
    "absmax NaN": ("bnb-nf4", put(f"{W}.absmax", np.nan), "absmax' has values that are not fin"),
    "nested NaN": ("bnb-nf4-double", put(f"{W}.nested_absmax", np.inf), "nested_absmax' has val"),
    "another table": ("bnb-nf4", put(f"{W}.quant_map", 3), "quant_map' is not the table of nf4"),
    "codes short": ("bnb-nf4", replace(W, cut), "holds 4094 codes, but its quant_state has shape"),
    "codes of int64": (
        "bnb-nf4",
        replace(W, lambda old: old.reshape(-1).view("<i8")[:, None], "I64"),
        "is i64 [256, 1]; u8 or i8 or f16 or bf16 or f32 [any, 1] expected",
    ),
    "type in state": ("bnb-nf4", state(quant_type="fp4"), "quant_type = 'fp4'; nf4 expected"),
    "another block": ("bnb-nf4", state(blocksize=128), "absmax' is f32 [64]; f16 or bf16 or f32"),
    "odd block": ("bnb-nf4", state(blocksize=48), "blocksize = 48; a power of 2 expected"),
    "block a string": ("bnb-nf4", state(blocksize="64"), "blocksize = '64'; a power of 2"),
    "no block": ("bnb-nf4", state(blocksize=None), "blocksize = null; a power of 2"),
    "shape of one": ("bnb-nf4", state(shape=[4096]), "shape = [4096]; [rows, columns]"),
    "shape below 0": ("bnb-nf4", state(shape=[-64, -64]), "shape = [-64, -64]; [rows, col"),
    "shape larger": ("bnb-nf4", state(shape=[64, 128]), "holds 4096 codes, but its quant_state"),
    "shape turned": ("bnb-nf4", state(shape=[128, 32]), "has shape [128, 32], expected [64, 64]"),
    "offset a string": (
        "bnb-nf4-double",
        state(nested_offset="1"),
        "nested_offset = '1'; a number expected",
    ),
    "offset infinite": ("bnb-nf4-double", state(nested_offset=1e999), "nested_offset = Infinity"),
    "offset of 400 digits": (
        "bnb-nf4-double",
        state(nested_offset=10**400),
        "nested_offset = 1000",
    ),
    "nested block 0": ("bnb-nf4-double", state(nested_blocksize=0), "nested_blocksize = 0; a pow"),
    "state not JSON": (
        "bnb-nf4",
        replace(NF4, np.frombuffer(b"{'a': 1}", np.uint8)),
        "bitsandbytes__nf4': not valid JSON",
    ),
    "state of megabytes": ("bnb-nf4", replace(NF4, np.zeros(1 << 20, np.uint8)), "at most 4096"),
    "said to be 8 bits": ("bnb-nf4", config(load_in_4bit=False), "load_in_4bit = false, but"),
    "no SCB": ("bnb-int8", drop(f"{Q}.SCB"), "SCB' is missing; 'model"),
    "SCB short": ("bnb-int8", replace(f"{Q}.SCB", cut), "SCB' is f32 [63]; f32 [64] expected"),
    "SCB NaN": ("bnb-int8", put(f"{Q}.SCB", np.nan), "SCB' has values that are not finite"),
    "codes of bytes": (
        "bnb-int8",
        replace(W, lambda old: old.view("u1"), "U8"),
        "is u8 [64, 64]; i8 [any, any] expected",
    ),
    "a GPU's order": (
        "bnb-int8",
        replace(f"{Q}.weight_format", np.array(2, np.uint8)),
        "weight_format' = [2], an order of a GPU; 0, row by row, expected",
    ),
    "said to be 4 bits": ("bnb-int8", config(load_in_8bit=False), "load_in_8bit = false, but"),
}
FP8: dict[str, Lie] = {
    "no scale": ("fp8-block", drop(f"{W}_scale_inv"), "weight_scale_inv' is missing"),
    "scale of another grid": (
        "fp8-block",
        replace(f"{W}_scale_inv", np.ones((2, 1), np.float32)),
        "weight_scale_inv' is f32 [2, 1]; ",
    ),
    "scale of int8": (
        "fp8-block",
        replace(f"{W}_scale_inv", np.ones((1, 1), np.int8), "I8"),
        "is i8 [1, 1]; ",
    ),
    "scale NaN": ("fp8-block", put(f"{W}_scale_inv", np.nan), "scale_inv' has values that are"),
    "power NaN": ("fp8-power", put(f"{W}_scale_inv", 255), "scale_inv' has values that are not"),
    "code NaN": ("fp8-block", put(W, 0x7F, 130), "code 0x7f in column 2 is no number of e4m3"),
    "code minus NaN": ("fp8-rows", put(W, 0xFF), "q_proj.weight': code 0xff in column 0 is no nu"),
    "code infinite": (
        "fp8-static",
        put("model.layers.0.mlp.up_proj.weight", 0x7C),
        "code 0x7c in column 0 is no number of e5m2",
    ),
    "rows of another size": (
        "fp8-rows",
        replace(f"{W}_scale", np.ones((32, 1), np.float32)),
        "weight_scale' is f32 [32, 1]; ",
    ),
    "block of one": ("fp8-block", config(weight_block_size=[128]), "weight_block_size = [128]; ["),
    "block 0": ("fp8-block", config(weight_block_size=[0, 128]), "weight_block_size = [0, 128]"),
    "block of text": ("fp8-block", config(weight_block_size="128"), "weight_block_size = '128'"),
    "another block": ("fp8-block", config(weight_block_size=[64, 64]), "is f32 [1, 2]; "),
    "a scheme": ("fp8-block", config(activation_scheme="none"), "activation_scheme = 'none'; one"),
    "no static scale": (
        "fp8-static",
        drop(f"{Q}.input_scale"),
        "q_proj.input_scale' is missing; activation_scheme = static",
    ),
    "static of int32": (
        "fp8-static",
        replace(f"{Q}.input_scale", np.array(1, np.int32), "I32"),
        "input_scale' is i32 []; f16 or bf16 or f32 [] expected",
    ),
}
HQQ: dict[str, Lie] = {
    **{
        f"no {key}": ("hqq-4", drop(f"{Q}.{key}"), f"q_proj.{key}' is missing")
        for key in ("scale", "zero", "nbits", "axis", "shape", "group_size")
    },
    "7 bits": ("hqq-4", put(f"{Q}.nbits", 7), "nbits' = 7; one of 1, 2, 3, 4, 5, 6, 8"),
    "axis 2": ("hqq-4", put(f"{Q}.axis", 2), "axis' = 2; one of 0, 1 expected"),
    "other bits": ("hqq-4", put(f"{Q}.nbits", 2), "W_q' is u8 [32, 64]; u8 or f16"),
    "other axis": ("hqq-4", put(f"{Q}.axis", 0), "scale' is f16 [64, 1]; f16 or bf16 or f32 [1,"),
    "group 48": ("hqq-4", put(f"{Q}.group_size", 48), "group_size' = 48; a divisor of the 64 x 6"),
    "group 0": ("hqq-4", put(f"{Q}.group_size", 0), "group_size' = 0; a divisor of the 64 x 64"),
    "group below 0": ("hqq-4", put(f"{Q}.group_size", -64), "group_size' = -64; a divisor"),
    "group of the half": ("hqq-4", put(f"{Q}.group_size", 32), "scale' is f16 [64, 1]; "),
    "shape below 0": ("hqq-4", put(f"{Q}.shape", -1), "shape' = [-1, 64]; [rows, columns] exp"),
    "shape of three": (
        "hqq-4",
        replace(f"{Q}.shape", np.array([1, 64, 64])),
        "shape' = [1, 64, 64]; [rows, columns] expected",
    ),
    "shape turned": ("hqq-4", put(f"{Q}.shape", [32, 128], slice(2)), "has shape [32, 128], exp"),
    "scale NaN": ("hqq-4", put(f"{Q}.scale", np.nan), "scale' has values that are not finite"),
    "zero infinite": ("hqq-4", put(f"{Q}.zero", np.inf), "zero' has values that are not finite"),
    "zero of float32": (
        "hqq-4",
        replace(f"{Q}.zero", lambda old: old.astype("<f4"), "F32"),
        "zero' is f32 [64, 1]; f16 [64, 1] expected",
    ),
    "quantised scales": ("hqq-4", put(f"{Q}.quant_scale", 1), "quant_scale' = 1; one of 0 exp"),
    "codes short": ("hqq-4", replace(f"{Q}.W_q", cut), "W_q' is u8 [31, 64]; "),
    "codes past 6 bits": ("hqq-6", put(f"{Q}.W_q", 64), "W_q' holds the code 64, which is no"),
}
TORCHAO: dict[str, Lie] = {
    "no codes": ("torchao-int8", drop(f"{Q}._weight_qdata"), "_weight_qdata' is missing"),
    "no scale": ("torchao-int8", drop(f"{Q}._weight_scale"), "_weight_scale' is missing"),
    "a part that is nowhere": (
        "torchao-int8",
        entry(_tensor_data_names=["qdata", "scale", "act_quant_scale"]),
        "_weight_act_quant_scale' is missing",
    ),
    "scale not listed": (
        "torchao-int8",
        entry(_tensor_data_names=["qdata"]),
        "metadata of tensor 'model.layers.0.self_attn.q_proj.weight' lists no scale",
    ),
    "scale of groups": (
        "torchao-int8",
        replace(f"{Q}._weight_scale", np.ones((64, 2), np.float32)),
        "_weight_scale' is f32 [64, 2]; f16 or bf16 or f32 [64, 1] expected",
    ),
    "scale NaN": ("torchao-int8", put(f"{Q}._weight_scale", np.nan), "_weight_scale' has values"),
    "zero point": ("torchao-int8", put(f"{Q}._weight_zero_point", 3), "zero point 3; 0 expected"),
    "zero points": (
        "torchao-int8",
        replace(f"{Q}._weight_zero_point", np.zeros((64, 2), np.int8)),
        "_weight_zero_point' is i8 [64, 2]; i8 [64, 1] expected",
    ),
    "block 48": ("torchao-intx4", entry(data={"block_size": [1, 48]}), "block_size = [1, 48] does"),
    "block of text": ("torchao-int8", entry(data={"block_size": "1"}), "block_size = '1'; [rows"),
    "int9": (
        "torchao-intx4",
        entry(data={"target_dtype": {"_type": "torch.dtype", "_data": "int9"}}),
        "target_dtype = 'int9'; one of int1, int2",
    ),
    "int3": (
        "torchao-intx4",
        entry(data={"target_dtype": {"_type": "torch.dtype", "_data": "int3"}}),
        ", which is no int3",
    ),
    "code 8": ("torchao-intx4", put(f"{Q}._weight_qdata", 8), "_weight_qdata' holds 8, which is"),
    "tiles of a GPU": (
        "torchao-int4",
        entry(_type="Int4TilePackedTo4dTensor"),
        'save it with int4_packing_format="plain", or dequantised',
    ),
    "MXFP4": ("torchao-int4", entry(_type="MXTensor"), "_type = 'MXTensor'; readable: Int8Tensor"),
    "no type": ("torchao-int4", entry(_type=None), "_type = None; readable"),
    "scaled inputs": (
        "torchao-int8",
        entry(_tensor_data_names=["qdata", "scale", "act_pre_scale"]),
        "has act_pre_scale, by which inputs are multiplied",
    ),
    "text not JSON": (
        "torchao-int8",
        lambda folder: folder.text.update({W: "{"}),
        "metadata of tensor 'model.layers.0.self_attn.q_proj.weight': not valid JSON",
    ),
    "no text": (
        "torchao-int8",
        lambda folder: folder.text.clear(),
        "quant_method = 'torchao', but no tensor is in that format",
    ),
    "float8 NaN": ("torchao-float8", put(f"{Q}._weight_qdata", 0x7F), "code 0x7f in column 0"),
    "float8 scale": (
        "torchao-float8",
        replace(f"{Q}._weight_scale", np.ones((32, 1), np.float32)),
        "_weight_scale' is f32 [32, 1]; f32 [64, 1] expected",
    ),
    "int4 of another group": (
        "torchao-int4",
        entry(data={"block_size": [1, 64]}),
        "_weight_scale' is bf16 [2, 64]; f16 or bf16 or f32 [1, 64] expected",
    ),
    "int4 zero infinite": (
        "torchao-int4",
        put(f"{Q}._weight_zero_point", 0x7F80),
        "_weight_zero_point' has values that are not finite",
    ),
}
MIXED: dict[str, Lie] = {
    "hqq over nf4": ("bnb-nf4", config(quant_method="hqq"), "but no tensor is in that format"),
    "nf4 over fp8": ("fp8-rows", config(quant_method="bitsandbytes"), "but no tensor is in that"),
    "fp8 over int8": ("bnb-int8", config(quant_method="fp8"), "but no tensor is in that format"),
    "matrix twice": (
        "hqq-4",
        lambda folder: folder.tensors.update({W: ("F32", np.zeros((64, 64), np.float32))}),
        "is present twice",
    ),
}
CASES = [
    pytest.param(lie, id=f"{family} {name}")
    for family, lies in (
        ("bitsandbytes", BITSANDBYTES),
        ("fp8", FP8),
        ("hqq", HQQ),
        ("torchao", TORCHAO),
        ("mixed", MIXED),
    )
    for name, lie in lies.items()
]


@pytest.mark.parametrize("lie", CASES)
def test_false_values_are_refused(lie: Lie, tmp_path: Path) -> None:
    check_lie(lie, tmp_path)


FOLDERS = ("bnb-nf4-double", "bnb-int8", "fp8-block", "hqq-3", "torchao-intx4", "torchao-int4")


@pytest.mark.parametrize("name", FOLDERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """A tensor gone, of another shape or of other values, or another entry in the config."""
    folder = EditedFolder.read(name)
    chosen = data.draw(st.sampled_from([key for key in folder.tensors if "layers.0" in key]))
    dtype, values = folder.tensors.pop(chosen)
    how = data.draw(st.sampled_from(("gone", "cut", "zeros", "ones", "turned")))
    if how == "cut" and values.ndim:
        folder.tensors[chosen] = (dtype, values[: data.draw(st.integers(0, len(values)))])
    elif how == "turned":
        folder.tensors[chosen] = (dtype, values.T)
    elif how != "gone":
        folder.tensors[chosen] = (dtype, np.full_like(values, how == "ones"))
    try:
        load_all(folder.write(tmp_path / "folder"))
    except CheckpointError as error:
        assert str(error).isprintable() and len(str(error)) < 600
    except KeyError as missing:
        assert missing.args[0] == W  # a plain tensor is looked for by the weight plan
