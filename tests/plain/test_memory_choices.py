"""What a refusal for memory suggests: three choices at most, and each of them fits."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_shape import HELD, NEEDS, SIZING, SPEC, kinds

from flyweight.errors import ConfigError
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps
from flyweight.plan.file_size import WIDE
from flyweight.plan.fitting import plan_memory
from flyweight.plan.memory import MIB, Needs, Sizing, count_block_bytes, make_smallest_plan
from flyweight.weights.formats import FORMATS


@settings(deadline=None)
@given(
    limit=st.integers(300, 3000),
    length=st.integers(16, 40960),
    seqs=st.integers(1, 64),
    tokens=st.integers(64, 2048),
    least=st.sampled_from([16, 512, 40960]),
)
def test_a_plan_fits_or_suggests_what_does(limit, length, seqs, tokens, least) -> None:
    sizing = replace(SIZING, max_model_len=length, max_num_seqs=seqs, max_num_batched_tokens=tokens)
    bounds = (HELD, limit * MIB)
    try:
        assert plan_memory(NEEDS, sizing, bounds, least).need <= limit * MIB
    except ConfigError as error:
        assert "\n" not in str(error)
        ways = str(error).split("nearest settings that fit: ")[1].split(" or ")
        assert len(ways) <= 3
        for way in ways:
            check_way(way, replace(sizing, max_model_len=min(length, least)), limit)


def check_way(way: str, sizing: Sizing, limit: int) -> None:
    """What is suggested fits; other processes of the same program may hold a little more to begin
    with.
    """
    given = dict(re.findall(r"(\w+) = (\w+)", way))
    most = int(given.pop("memory_limit", f"{limit}MiB")[:-3]) * MIB
    dtype = given.pop("kv_cache_dtype", sizing.kv_dtype)
    less = replace(sizing, kv_dtype=dtype, **{name: int(value) for name, value in given.items()})
    file = re.search(r"weights of at most (\d+) MiB .*--target-size \1MiB --requantize", way)
    every = [NEEDS] if file is None else list_files_within(int(file[1]) * MIB)
    assert every, "no file is as small"
    for needs in every:
        assert plan_memory(needs, less, (HELD + 2 * MIB, most), less.max_model_len)


def list_files_within(size: int) -> list[Needs]:
    """Of the model in each type whose file is small enough."""
    found = []
    for kind in WIDE:
        tensors = [(shape, one) for [(shape, one)] in kinds(kind).values()]
        if sum(FORMATS[one].count_bytes(shape) for shape, one in tensors) <= size:
            found.append(Needs.of(SPEC, kinds(kind), CpuOps(1)))
    return found


def test_where_the_weights_alone_are_too_large_a_quantised_model_is_suggested() -> None:
    """596 M weights of 16 bits do not fit in 600 MiB; of 5.6 bits they do, in the file and here."""
    needs = Needs.of(SPEC, kinds("bf16"), CpuOps(1))
    sizing = replace(SIZING, max_num_seqs=1, max_model_len=512)
    with pytest.raises(ConfigError) as refused:
        plan_memory(needs, sizing, (HELD, 600 * MIB), 512)
    said = str(refused.value)
    way = re.search(r" or weights of at most (\d+) MiB \((.*)\)$", said)
    assert way is not None and said.count(" or ") == 1
    assert way[2] == f"flyweight quantize MODEL --target-size {way[1]}MiB"
    rest = make_smallest_plan(needs, sizing, (HELD, 0)).need - needs.weights
    beyond = (28 * (1024 * (4096 + 2048) + 3 * 1024 * 3072) + 151936 * 1024) // 64  # q4_k's minima
    assert int(way[1]) == (600 * MIB - 4 * MIB - rest - beyond) // MIB
    small = list_files_within(int(way[1]) * MIB)
    assert 0 < len(small) < len(WIDE)
    for one in small:
        plan_memory(one, sizing, (HELD, 600 * MIB), 512)
    with pytest.raises(ConfigError) as refused:
        plan_memory(needs, sizing, (HELD, 250 * MIB), 512)
    assert "quantize" not in str(refused.value), "no file is as small as that"


def test_adapters_are_not_in_the_file() -> None:
    needs = Needs.of(SPEC, kinds("bf16"), CpuOps(1))
    adapted = needs.add({"adapter": [((1024, 1024), "f32")]}, CpuOps(1))
    assert needs.files is not None and adapted.files is not None
    assert adapted.files == replace(needs.files, more=needs.files.more + 4 * MIB)
    assert not needs.files.quantised and NEEDS.files is not None and NEEDS.files.quantised


def test_a_backend_that_widens_weights_suggests_no_file() -> None:
    needs = Needs.of(SPEC, kinds("bf16"), ReferenceOps("f32"))
    with pytest.raises(ConfigError) as refused:
        plan_memory(needs, replace(SIZING, max_num_seqs=1), (HELD, 2 << 30), 512)
    assert "quantize" not in str(refused.value)


def test_no_file_is_suggested_for_a_family_that_gguf_cannot_hold() -> None:
    """Of the same shape, in the same room: the other choices are the same."""
    choices = []
    for family in (SPEC.family, "opt"):
        needs = Needs.of(replace(SPEC, family=family), kinds("bf16"), CpuOps(1))
        with pytest.raises(ConfigError) as refused:
            plan_memory(needs, replace(SIZING, max_num_seqs=1), (HELD, 600 * MIB), 512)
        choices.append(str(refused.value).split(" or weights of at most "))
    (common, _), others = choices
    assert others == [common]


@pytest.mark.parametrize("from_bytes", [False, True])
def test_fewer_blocks_are_suggested_where_they_are_set(from_bytes: bool) -> None:
    """Of 500 blocks of 3.5 MiB, and the lists of their tokens, as many as fit."""
    sizing = replace(SIZING, max_num_seqs=1, blocks=500, from_bytes=from_bytes)
    room = make_smallest_plan(NEEDS, replace(sizing, blocks=200), (HELD, 0)).need + 5 * MIB
    with pytest.raises(ConfigError) as refused:
        plan_memory(NEEDS, sizing, (HELD, room), 4096)
    ways = str(refused.value).split("nearest settings that fit: ")[1].split(" or ")
    block = count_block_bytes(SPEC, 32, "f16")
    words = f"kv_cache_memory_bytes = {200 * block}" if from_bytes else "blocks = 200"
    assert words in ways and len(ways) <= 3
    plan_memory(NEEDS, replace(sizing, blocks=200), (HELD, room), 4096)
    with pytest.raises(ConfigError):
        plan_memory(NEEDS, replace(sizing, blocks=202), (HELD, room), 4096)
    short = make_smallest_plan(NEEDS, replace(sizing, blocks=50), (HELD, 0)).need
    with pytest.raises(ConfigError, match=r" or [\w ]+ = \d+, max_model_len = \d+") as refused:
        plan_memory(NEEDS, sizing, (HELD, short), 4096)
    found = re.search(r" = (\d+), max_model_len = (\d+)", str(refused.value))
    assert found is not None
    blocks, length = int(found[1]) // (block if from_bytes else 1), int(found[2])
    assert 40 < blocks < 60 and length == 32 * blocks
    less = replace(sizing, blocks=blocks, max_model_len=length)
    assert plan_memory(NEEDS, less, (HELD, short), length).need <= short - 4 * MIB


def test_a_smaller_type_of_kv_is_suggested_where_it_fits() -> None:
    sizing = replace(SIZING, max_num_seqs=1)

    def suggest(needed: str, **changes: Any) -> str:
        chosen = replace(sizing, **changes)
        room = make_smallest_plan(NEEDS, replace(chosen, kv_dtype=needed), (HELD, 0)).need + 5 * MIB
        with pytest.raises(ConfigError) as refused:
            plan_memory(NEEDS, chosen, (HELD, room), 4096)
        return str(refused.value)

    assert "or kv_cache_dtype = int8" in suggest("int8")
    assert "or kv_cache_dtype = int4" in suggest("int4")
    assert "or kv_cache_dtype = int4" in suggest("int4", kv_dtype="fp8_e4m3")
    assert "kv_cache_dtype" not in suggest("int8", block_size=24), "codes of 16 tokens"
    assert "or kv_cache_dtype = int8" in suggest("int8", blocks=129)
    assert "kv_cache_dtype" not in suggest("int8", blocks=129, from_bytes=True), (
        "there would be more blocks"
    )
