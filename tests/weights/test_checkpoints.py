"""Opening models by path: folders, single files, shards, GGUF; what is refused, and how."""

import json
import os
import shlex
from pathlib import Path

import numpy as np
import pytest

from filewriters import (
    encode,
    random_tensor,
    safetensors_bytes,
    write_folder,
    write_gguf,
    write_safetensors,
)
from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.ops.grouped import GroupedWeight
from flyweight.weights import gguf_names
from flyweight.weights.checkpoint import TensorInfo, open_checkpoint
from flyweight.weights.survey import find_value_faults

CONFIG = {"model_type": "llama", "eos_token_id": 2, "hidden_size": 8}
RNG = np.random.default_rng(3)
VALUES = RNG.standard_normal((6, 8)).astype(np.float32)
TENSORS = {f"t{i}": encode(VALUES + i, kind) for i, kind in enumerate(("f32", "f16", "bf16"))}
META: dict[str, object] = {
    "general.architecture": "llama",
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.feed_forward_length": 64,
    "llama.context_length": 128,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.eos_token_id": 2,
}
EMBED = {"token_embd.weight": random_tensor(RNG, "q8_0", (10, 32))}


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_folder_reads_rows_of_every_dense_kind(shards: int, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", CONFIG, TENSORS, shards))
    assert dict(checkpoint.tensors) == {
        name: TensorInfo(name, (6, 8), kind) for name, (kind, _, _) in TENSORS.items()
    }
    for name, (kind, _, raw) in TENSORS.items():
        dtype = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[kind]
        rows = checkpoint.read(name, 2, 5)
        assert isinstance(rows, np.ndarray) and rows.dtype == dtype
        assert np.array_equal(rows, np.frombuffer(raw, dtype).reshape(6, 8)[2:5])
    assert checkpoint.config == CONFIG and checkpoint.generation == {}
    assert checkpoint.tokenizer_source == tmp_path / "m"
    assert not checkpoint.converted
    with pytest.raises(IndexError):
        checkpoint.read("t0", 0, 7)
    checkpoint.close()


def test_single_file_takes_the_config_next_to_it(tmp_path: Path) -> None:
    write_folder(tmp_path, CONFIG, {"a": TENSORS["t0"]})
    write_safetensors(tmp_path / "other.safetensors", {"b": TENSORS["t1"]})
    assert list(open_checkpoint(tmp_path / "other.safetensors").tensors) == ["b"]
    assert list(open_checkpoint(tmp_path).tensors) == ["a"]


def test_end_ids_unite_config_and_generation_config(tmp_path: Path) -> None:
    write_folder(tmp_path, CONFIG, TENSORS)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2], "temperature": 0.6}')
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.eos_ids == (2, 7) and checkpoint.generation["temperature"] == 0.6
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": ["x"]}')
    with pytest.raises(CheckpointError, match="eos_token_id"):
        open_checkpoint(tmp_path)


def test_fingerprint_follows_content_alone(tmp_path: Path) -> None:
    first = open_checkpoint(write_folder(tmp_path / "a", CONFIG, TENSORS)).fingerprint
    assert open_checkpoint(write_folder(tmp_path / "b", CONFIG, TENSORS)).fingerprint == first
    changed = TENSORS | {"t2": encode(VALUES, "bf16")}
    assert open_checkpoint(write_folder(tmp_path / "c", CONFIG, changed)).fingerprint != first
    other = write_folder(tmp_path / "d", CONFIG | {"rope_theta": 5.0}, TENSORS)
    assert open_checkpoint(other).fingerprint != first


INDEX_LIES = {
    "tensor in the wrong file": ({"t0": 2, "t1": 2, "t2": 1}, "'t0' is not in"),
    "tensor that is nowhere": ({"t0": 1, "t1": 2, "t2": 1, "t9": 1}, "'t9' is not in"),
    "tensor left out": ({"t0": 1, "t1": 2}, "1 tensors are in the files but not in the index"),
    "file that is not there": ({"t0": 1, "t1": 3, "t2": 1}, "No such file"),
}


@pytest.mark.parametrize("lie", INDEX_LIES)
def test_index_must_agree_with_its_files(lie: str, tmp_path: Path) -> None:
    write_folder(tmp_path, CONFIG, TENSORS, shards=2)
    listed, expected = INDEX_LIES[lie]
    names = {name: f"model-{i:05d}-of-00002.safetensors" for name, i in listed.items()}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../m.safetensors", "/etc/m.safetensors", "a/b.safetensors", "a\\b.safetensors", "..", "",
     "m.bin",
     ".hidden.safetensors", "m\0.safetensors", "C:m.safetensors"],
)  # fmt: skip
def test_index_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m", CONFIG, TENSORS, shards=2)
    write_safetensors(tmp_path / "m.safetensors", TENSORS)
    index = {"weight_map": dict.fromkeys(TENSORS, name)}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="not the plain name"):
        open_checkpoint(tmp_path / "m")


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, CONFIG, TENSORS, shards=2)
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", TENSORS)
    with pytest.raises(CheckpointError, match="in another file too"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{", ""]
)
def test_a_broken_index_is_refused(index: str, tmp_path: Path) -> None:
    write_folder(tmp_path, CONFIG, TENSORS, shards=2)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match="index"):
        open_checkpoint(tmp_path)


REFUSED = {
    "notes.txt": "looked for a .gguf file",
    "model.gguf": "not a GGUF file",
    "model.safetensors": "config.json: missing",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_by_file_say_why(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(CheckpointError, match=REFUSED[name]):
        open_checkpoint(tmp_path / name)


PICKLES = ("consolidated.00.pth", "model.pt", "epoch=3.ckpt", "weights.pkl")


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("by", ["file", "folder"])
def test_pickles_are_refused_with_the_reason_and_the_way_out(
    name: str, by: str, tmp_path: Path
) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / name).write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")  # would run a command
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder / name if by == "file" else folder)
    message = str(error.value)
    assert message.startswith(f"{folder / name}: a pickle in an unknown form, and reading one can")
    command = shlex.split(message.partition("convert it: ")[2])
    assert command[:2] == ["python", "-c"] and command[3:] == [str(folder), f"{folder}-safetensors"]
    compile(command[2], "command", "exec")
    assert "\n" not in message and not Path("opened").exists()


FOLDERS = {
    (): "no model here; looked for",
    ("config.json", "pytorch_model.bin"): "neither a zip archive nor the pickles",
    ("config.json", "training_args.bin"): "a pickle in an unknown form",
    ("a.gguf",): "name one, such as .*a.gguf",
    ("model.safetensors",): "config.json: missing",
    ("config.json", "a.safetensors", "b.safetensors"): "found a.safetensors, b.safetensors",
}


@pytest.mark.parametrize("names", FOLDERS, ids=str)
def test_refusals_by_folder_say_why(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=FOLDERS[names]):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("path", ["nowhere", "nul\0byte", "x" * 5000])
def test_a_path_to_nothing_says_what_was_looked_for(path: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="looked for"):
        open_checkpoint(tmp_path / path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="not a regular file; looked for"):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', "[" * 5000, "\udcff"])
def test_a_broken_config_is_refused(text: str, tmp_path: Path) -> None:
    write_folder(tmp_path, CONFIG, TENSORS)
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("context", [1 << 20, 10 << 20, 1 << 24, (1 << 24) + 1])
def test_contexts_of_millions_are_read(context: int, tmp_path: Path) -> None:
    shape = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 10}
    config = CONFIG | shape | {"num_hidden_layers": 1, "max_position_embeddings": context}
    write_folder(tmp_path, config, TENSORS)
    found = open_checkpoint(tmp_path).config
    if context <= 1 << 24:
        assert find_family(found).read_spec(found).context == context
        return
    with pytest.raises(CheckpointError, match="max_position_embeddings = 16777217"):
        find_family(found).read_spec(found)


def test_a_config_cannot_reach_the_terminal() -> None:
    config = {"model_type": "llama", "hidden_size": "\x1b[2J\n" + "x" * 1000}
    with pytest.raises(CheckpointError, match="hidden_size") as error:
        find_family(config).read_spec(config)
    assert str(error.value).isprintable() and len(str(error.value)) < 200


# --- GGUF ---


def test_gguf_metadata_has_the_config_keys(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 0xFFFFFFFF}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", META | extra, EMBED))
    expected = {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "vocab_size": 10,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": None, "tie_word_embeddings": True, "hidden_act": "silu",
        "sliding_window": None,
    }  # fmt: skip
    expected |= dict.fromkeys(("layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"), 1e-5)
    biases = ("attention_bias", "use_qkv_bias", "qkv_bias", "use_bias", "mlp_bias", "qk_layernorm")
    biases += ("attention_out_bias", "use_qk_norm")
    expected |= dict.fromkeys(biases, False)
    assert checkpoint.config == expected
    assert checkpoint.eos_ids == (2, 5) and checkpoint.converted
    source = checkpoint.tokenizer_source
    assert not isinstance(source, Path) and source["tokenizer.ggml.eos_token_id"] == 2
    info = checkpoint.tensors["model.embed_tokens.weight"]
    assert info == TensorInfo("model.embed_tokens.weight", (10, 32), "q8_0")
    whole, part = (checkpoint.read(info.name, *r) for r in ((0, 10), (3, 4)))
    assert isinstance(whole, GroupedWeight) and isinstance(part, GroupedWeight)
    assert np.array_equal(part.dequantize(), whole.dequantize()[3:4])


@pytest.mark.parametrize("arch", gguf_names.ARCHITECTURES)
def test_names_translate_to_distinct_names(arch: str) -> None:
    names = gguf_names.ARCHITECTURES[arch]
    for table in (names.layer, names.top):
        assert len(set(table.values())) == len(table)
    down = names.prefix + "12." + names.layer["ffn_down"]
    assert gguf_names.translate(names, "blk.12.ffn_down.bias") == down + ".bias"
    assert gguf_names.translate(names, "output.weight") == names.top["output"] + ".weight"
    strangers = "blk.*.attn_q.weight blk.01.attn_q.weight blk.-1.attn_q.weight token_embd . blk.1."
    strangers += " blk.1.nothing.weight blk.1.attn_q.scale output.weight.weight"
    for strange in ("", *strangers.split()):
        assert gguf_names.translate(names, strange) == strange


GGUF_LIES: dict[str, tuple[dict[str, object], str]] = {
    "no architecture": ({"general.architecture": None}, "general.architecture is missing"),
    "architecture unknown": (
        {"general.architecture": "lama"},
        "'lama' is not supported; known: llama, llama4, qwen2, ",
    ),
    "architecture a number": ({"general.architecture": 3}, "not supported"),
    "no context length": ({"llama.context_length": None}, "llama.context_length is missing"),
    "billions of layers": (
        {"llama.block_count": 4_000_000_000, "llama.attention.sliding_window": 8},
        "block_count = 4000000000; a whole number, from 1 to 65536",
    ),
    "no heads": ({"llama.attention.head_count": 0}, "head_count = 0"),
    "heads a string": ({"llama.attention.head_count": "4"}, "head_count = '4'"),
    "heads differ by layer": (
        {"llama.attention.head_count_kv": np.array([2, 4], np.int32)},
        "2 different values",
    ),
    "epsilon of 0": ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "epsilon = 0"),
    "epsilon not a number": (
        {"llama.attention.layer_norm_rms_epsilon": float("nan")},
        "epsilon = nan",
    ),
    "rope base infinite": ({"llama.rope.freq_base": float("inf")}, "freq_base = inf"),
    "experts a string": ({"llama.expert_count": "8"}, "expert_count = '8'"),
    "more than a head rotated": ({"llama.rope.dimension_count": 16}, "a head has 8"),
    "a window of -1": ({"llama.attention.sliding_window": -1.0}, "sliding_window = -1"),
    "half of longrope": (
        {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": "2"},
        "factor = '2'",
    ),
    "values of another size": ({"llama.attention.value_length": 16}, "key_length 8"),
    "end id a string": ({"tokenizer.ggml.eos_token_id": "2"}, "not a token id"),
    "end id an array": ({"tokenizer.ggml.eot_token_id": np.arange(2)}, "not a token id"),
    "end id an empty array": ({"tokenizer.ggml.eos_token_id": []}, "not a token id"),
}


@pytest.mark.parametrize("lie", GGUF_LIES)
def test_gguf_metadata_that_cannot_be_supported(lie: str, tmp_path: Path) -> None:
    change, expected = GGUF_LIES[lie]
    metadata = {k: v for k, v in (META | change).items() if v is not None}
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata, EMBED))


def test_gguf_arrays_of_one_value_per_layer_count_as_that_value(tmp_path: Path) -> None:
    same = {"llama.attention.head_count_kv": np.array([2, 2, 2], np.int32)}
    assert (
        open_checkpoint(write_gguf(tmp_path / "m.gguf", META | same, EMBED)).config[
            "num_key_value_heads"
        ]
        == 2
    )


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_gguf_rope_scaling(kind: str, tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 4.0}
    scaling |= {"llama.rope.scaling.original_context_length": 32}
    found = open_checkpoint(write_gguf(tmp_path / "m.gguf", META | scaling, EMBED)).config[
        "rope_scaling"
    ]
    assert found == {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 32}


def test_gguf_rope_factors_become_config(tmp_path: Path) -> None:
    factors = np.array([1, 1.5, 4, 8], np.float32)
    checkpoint = open_checkpoint(
        write_gguf(tmp_path / "m.gguf", META, EMBED | {"rope_freqs.weight": encode(factors, "f32")})
    )
    assert checkpoint.config["rope_scaling"] == {"rope_type": "factors", "factors": [1, 1.5, 4, 8]}
    assert "rope_freqs.weight" not in checkpoint.tensors


@pytest.mark.parametrize(
    "factors", [[1, 2, 3], [1, 2, 3, 0], [1, 2, 3, float("nan")], [1, 2, 3, -1]]
)
def test_gguf_rope_factors_are_checked(factors: list[float], tmp_path: Path) -> None:
    bad = {"rope_freqs.weight": encode(np.array(factors, np.float32), "f32")}
    with pytest.raises(CheckpointError, match=r"rope_freqs|factors has 3 numbers"):
        config = open_checkpoint(write_gguf(tmp_path / "m.gguf", META, EMBED | bad)).config
        find_family(config).read_spec(config)


def test_gguf_tensor_of_two_names_is_refused(tmp_path: Path) -> None:
    twice = EMBED | {"model.embed_tokens.weight": EMBED["token_embd.weight"]}
    with pytest.raises(CheckpointError, match="two tensors mean"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", META, twice))


def test_gguf_fingerprint_follows_content_alone(tmp_path: Path) -> None:
    first = open_checkpoint(write_gguf(tmp_path / "a.gguf", META, EMBED)).fingerprint
    assert open_checkpoint(write_gguf(tmp_path / "b.gguf", META, EMBED)).fingerprint == first
    other = {"token_embd.weight": random_tensor(RNG, "q8_0", (10, 32))}
    assert open_checkpoint(write_gguf(tmp_path / "c.gguf", META, other)).fingerprint != first


def test_values_of_every_expert_are_looked_at(tmp_path: Path) -> None:
    values = np.ones((3, 2, 4), np.float32)
    values[2, 1, 3] = np.nan
    tensors = EMBED | {"blk.0.ffn_up_exps.weight": encode(values, "f32")}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", META, tensors))
    (fault,) = find_value_faults(checkpoint)
    assert "not finite in 1 of 6 rows, the first in row 5" in fault


def test_bytes_are_not_read_as_numbers(tmp_path: Path) -> None:
    """Masks of old files open, and are nobody's weights."""
    (tmp_path / "config.json").write_text("{}")
    header = {"mask": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, bytes(4)))
    with pytest.raises(CheckpointError, match="'mask' is u8, which is not a weight"):
        open_checkpoint(tmp_path).read("mask", 0, 1)
