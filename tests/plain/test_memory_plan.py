"""The memory plan's arithmetic: it agrees with what backends really hold, grows with every setting,
takes what is useful and no more.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
from memory_shape import CONFIG, HELD, KIND, NEEDS, SIZING, SPEC, kinds

from flyweight.config import Limits
from flyweight.errors import ConfigError
from flyweight.kv.memory import allocate_kv
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps
from flyweight.plan.fitting import plan_memory
from flyweight.plan.memory import (
    MIB,
    Needs,
    Sizing,
    count_block_bytes,
    format_size,
    make_smallest_plan,
    summarize,
)
from flyweight.plan.step import attend_bytes, sample_bytes
from flyweight.spec import Files, StoredSlots


def plan(sizing: Sizing = SIZING, limit: int = 64 << 30, least: int = 512):
    return plan_memory(NEEDS, sizing, (HELD, limit), least)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("block", [1, 16, 32, 48])
def test_blocks_are_what_backends_allocate(dtype: str, block: int) -> None:
    small = replace(SPEC, layers=SPEC.layers[:3])
    limits = Limits(max_model_len=64, max_num_seqs=1, max_num_batched_tokens=8, block_size=block,
                    blocks=5)  # fmt: skip
    for ops in (CpuOps(1), ReferenceOps("f32")):
        layers = allocate_kv(small, ops, limits, dtype)
        assert sum(layer.nbytes for layer in layers) == 5 * count_block_bytes(small, block, dtype)


def test_what_drafts_were_drawn_from_is_counted() -> None:
    """8 sequences of 4 draft tokens, 32 rows of a float for each of 151,936 tokens, three times."""
    drafting, at = replace(SIZING, draft_tokens=4), (HELD, 64 << 30)
    counted = make_smallest_plan(NEEDS, replace(drafting, draft_probs=True), at)
    more = counted.need - make_smallest_plan(NEEDS, drafting, at).need
    assert more == 3 * 8 * 4 * 151936 * 4


@pytest.mark.parametrize("shape", [(483, 32), (96, 64), (17, 256)])
def test_weights_are_what_backends_pack(shape: tuple[int, int]) -> None:
    ops = CpuOps(1)
    values = np.ones(shape, np.float32)
    for kind, array in {"f32": values, "f16": values.astype(np.float16)}.items():
        packed = ops.pack(shape, [array])
        one = Needs.of(SPEC, {"a": [(shape, kind)], "b": [((10,), "f32")]}, ops)
        assert one.weights == packed.nbytes + 40


def test_the_shape_in_bytes() -> None:
    """Worked by hand: 596 M weights at 4.5 bits, tiles of 16 rows exact; 112 KiB of K/V a token."""
    per_layer = 1024 * (4096 + 2048) + 3 * 1024 * 3072
    vectors = 28 * (2 * 1024 + 2 * 128) + 1024
    assert NEEDS.weights == (28 * per_layer + 151936 * 1024) * 18 // 32 + 4 * vectors
    assert count_block_bytes(SPEC, 32, "f16") == 32 * 28 * 8 * 256 * 2
    scales = 2 * 4  # of K and of V, a float each
    for dtype, bits in {"int8": 8, "int4": 4, "fp8_e4m3": 8, "fp8_e5m2": 8}.items():
        assert count_block_bytes(SPEC, 32, dtype) == 32 * 28 * 8 * (256 * bits // 8 + scales)


@pytest.mark.parametrize("dtype", ["int8", "int4", "fp8_e4m3", "fp8_e5m2"])
def test_blocks_of_codes_are_what_backends_allocate(dtype: str) -> None:
    limits = Limits(max_model_len=64, max_num_seqs=1, max_num_batched_tokens=8, block_size=48,
                    blocks=5)  # fmt: skip
    odd = replace(SPEC.layers[0], kv=replace(SPEC.layers[0].kv, k_dim=36, v_dim=20))
    for layer in (SPEC.layers[0], odd):
        small = replace(SPEC, layers=(layer,) * 3)
        for ops in (CpuOps(1), ReferenceOps("f32")):
            layers = allocate_kv(small, ops, limits, dtype)
            assert sum(x.nbytes for x in layers) == 5 * count_block_bytes(small, 48, dtype)


def test_blocks_are_what_is_useful_or_what_fits() -> None:
    assert plan().blocks == 8 * (128 + 1)
    tight = plan(limit=2 << 30)
    assert 129 <= tight.blocks < 8 * 129
    assert tight.need <= 2 << 30 < tight.need + tight.block + 32 * 1024
    assert plan(replace(SIZING, blocks=77, max_model_len=64)).blocks == 77


def test_an_unasked_context_is_the_longest_that_fits() -> None:
    wide = replace(SIZING, max_model_len=SPEC.context, max_num_seqs=1)
    assert plan(wide).sizing.max_model_len == 40960
    got = plan(wide, limit=2 << 30)
    assert 512 < got.sizing.max_model_len < 40960 and got.need <= 2 << 30
    longer = replace(wide, max_model_len=got.sizing.max_model_len + 1)
    assert make_smallest_plan(NEEDS, longer, (HELD, 2 << 30)).need > 2 << 30
    with pytest.raises(ConfigError, match="for 512 tokens"):
        plan(wide, limit=450 * MIB)
    with pytest.raises(ConfigError, match="for 40960 tokens"):
        plan(wide, limit=2 << 30, least=40960)


@pytest.mark.parametrize(
    "change",
    [
        {"max_model_len": 8192}, {"max_num_seqs": 64}, {"max_num_batched_tokens": 2048},
        {"kv_dtype": "f32"}, {"draft_tokens": 4}, {"threads": 16}, {"scores": 64},
    ],
)  # fmt: skip
def test_need_grows_with_every_setting(change) -> None:
    at = (HELD, 64 << 30)
    assert (
        make_smallest_plan(NEEDS, replace(SIZING, **change), at).need
        > make_smallest_plan(NEEDS, SIZING, at).need
    )


def test_grammars_are_counted_where_they_may_be_requested() -> None:
    without, room = plan(), 110 * MIB
    counted = plan(replace(SIZING, grammars=room))
    assert counted.need == without.need + room and counted.blocks == without.blocks
    rows = dict(counted.list_rows())
    assert rows["grammars: the vocabulary, those in use"] == room
    assert sum(rows.values()) == counted.need
    assert "grammars 110.0 MiB" in summarize(counted)
    assert not any("grammars" in what for what, _ in without.list_rows())
    assert "grammars" not in summarize(without)
    with pytest.raises(ConfigError, match=r"110\.0 MiB for grammars") as refused:
        plan(replace(SIZING, grammars=room), limit=400 * MIB)
    way = re.search(r"memory_limit = (\d+)MiB", str(refused.value))
    assert way is not None
    plan(replace(SIZING, grammars=room), limit=int(way[1]) * MIB)


def test_wider_activations_need_more() -> None:
    needs = [Needs.of(SPEC, kinds(), CpuOps(1, None, mode)) for mode in ("int8", "bf16", "f32")]
    steps = [make_smallest_plan(n, SIZING, (HELD, 1 << 40)).step for n in needs]
    assert steps == sorted(steps) and steps[0] < steps[2]


def test_working_memory_is_bounded() -> None:
    layer = SPEC.layers[0]
    assert attend_bytes(layer, 1, 1, 1 << 20, 256) < 256 * MIB
    assert attend_bytes(layer, 512, 1, 4096, 1) < MIB
    alone, many = (attend_bytes(layer, 4096, n, 4096, 1) for n in (1, 4096))
    assert alone < many < alone + 16 * MIB
    assert sample_bytes(1000, 1, 1) == 1000 * (4 + 4 + 16 + 64) + 1024 * 12 + 64


def test_the_rows_shown_add_up() -> None:
    shown = plan()
    assert sum(amount for _, amount in shown.list_rows()) == shown.need


SMALL = KIND.read_spec(CONFIG | {"hidden_size": 256, "num_hidden_layers": 4})
SMALL_KINDS = {
    s.name: [(s.shape, "f32" if s.kind == "vector" else "q4_0")]
    for s in KIND.plan(SMALL, Files()).slots
}
PAIR = replace(NEEDS, draft=Needs.of(SMALL, SMALL_KINDS, CpuOps(1)))


def test_a_draft_model_is_counted_with_its_share_of_each_block() -> None:
    at = (HELD, 64 << 30)
    alone, pair = plan(), plan_memory(PAIR, SIZING, at, 512)
    assert PAIR.draft is not None and pair.blocks == alone.blocks
    # 32 tokens x 4 layers x 8 heads x (K and V) x 128 x 2 bytes
    assert pair.draft_block == 32 * 4 * 8 * 2 * 128 * 2 == pair.block // 7
    assert pair.draft > PAIR.draft.weights
    assert pair.need == alone.need + pair.draft + pair.draft_kv  # it computes when the other waits
    rows = dict(pair.list_rows())
    assert rows["draft model's weights"] == pair.draft
    assert rows["draft model's K/V, in the same blocks"] == pair.draft_block * pair.blocks
    assert sum(rows.values()) == pair.need and "draft model " in summarize(pair)
    tight = plan_memory(PAIR, SIZING, (HELD, 2 << 30), 512)
    assert tight.need <= 2 << 30 < tight.need + tight.block_cost
    assert tight.blocks < plan(limit=2 << 30).blocks
    assert PAIR.add({"more": [((256, 256), "f32")]}, CpuOps(1)).draft is PAIR.draft


def add_up(said: str) -> float:
    """MiB of all parts that a refusal lists, before what is suggested."""
    listed = said.split("; nearest")[0].split(": ", 1)[1]
    listed = re.sub(r"(this model needs|and the model|together) [\d.]+ [GM]iB", "", listed)
    sizes = re.findall(r"([\d.]+) ([GM])iB", listed)
    return sum(float(size) * (1024 if unit == "G" else 1) for size, unit in sizes)


HEADS = {f"head {i}": [((1024, 1024), "f16")] for i in range(40)}
DRAFTING: dict[str, tuple[Needs, int]] = {  # with its own bytes beyond the model's
    "draft model": (PAIR, plan_memory(PAIR, SIZING, (HELD, 64 << 30), 512).draft),
    "EAGLE layer": (
        NEEDS.add_heads(SMALL_KINDS, StoredSlots(SMALL, 4096), CpuOps(1), "EAGLE layer"),
        plan_memory(PAIR, SIZING, (HELD, 64 << 30), 512).draft,
    ),
    "Medusa heads": (
        NEEDS.add_heads(HEADS, None, CpuOps(1), "Medusa heads"),
        Needs.of(SPEC, HEADS, CpuOps(1)).weights,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAFTING)
def test_a_drafter_that_does_not_fit_is_refused_with_what_does(name: str) -> None:
    needs, own = DRAFTING[name]
    sizing = replace(SIZING, max_num_seqs=1)
    room = make_smallest_plan(NEEDS, sizing, (HELD, 64 << 30)).need + 16 * MIB
    with pytest.raises(ConfigError, match=f"too small for the {name}: (it|they) need") as refused:
        plan_memory(needs, sizing, (HELD, room), 4096)
    said = str(refused.value)
    assert said.endswith("or no speculative_config") and "\n" not in said
    assert f"{format_size(own)} weights" in said and ("draft model" in said) == (needs is PAIR)
    need = make_smallest_plan(needs, sizing, (HELD, room)).need
    assert f"together {format_size(need)};" in said
    assert abs(add_up(said) * MIB - need) < MIB
    way = re.search(r"memory_limit = (\d+)MiB", said)
    assert way is not None
    plan_memory(needs, sizing, (HELD, int(way[1]) * MIB), 4096)


@pytest.mark.parametrize("name", DRAFTING)
def test_where_the_model_does_not_fit_either_the_drafter_is_a_part(name: str) -> None:
    needs, own = DRAFTING[name]
    sizing = replace(SIZING, max_num_seqs=1)
    with pytest.raises(ConfigError, match="too small: this model needs") as refused:
        plan_memory(needs, sizing, (HELD, 300 * MIB), 4096)
    said = str(refused.value)
    assert f"{format_size(own)} weights of the {name}" in said
    assert ("K/V of the" in said) == (needs.draft is not None)
    need = make_smallest_plan(needs, sizing, (HELD, 300 * MIB)).need
    assert f"needs {format_size(need)} " in said and abs(add_up(said) * MIB - need) < MIB
    way = re.search(r"memory_limit = (\d+)MiB, no speculative_config", said)
    assert way is not None
    plan_memory(NEEDS, sizing, (HELD, int(way[1]) * MIB), 4096)


def test_a_suggested_draft_model_fits() -> None:
    sizing, most = replace(SIZING, max_num_seqs=1), (HELD, 64 << 30)
    assert PAIR.draft is not None
    large = replace(PAIR, draft=replace(PAIR.draft, weights=600 * MIB))
    room = make_smallest_plan(NEEDS, sizing, most).need + 300 * MIB
    with pytest.raises(ConfigError) as refused:
        plan_memory(large, sizing, (HELD, room), 4096)
    way = re.search(r"a draft model of at most ([\d.]+) MiB, K/V included", str(refused.value))
    assert way is not None and 290 < float(way[1]) < 300
    for weights in range(100, 400, 5):
        own = replace(PAIR.draft, weights=weights * MIB)
        plan = make_smallest_plan(replace(PAIR, draft=own), sizing, (HELD, room))
        if (size := (plan.draft + plan.draft_kv) / MIB) <= float(way[1]):
            assert plan.need <= room
        elif size > float(way[1]) + 5:  # beyond what is kept free
            assert plan.need > room


def test_fewer_draft_tokens_are_suggested_where_their_probabilities_are_kept() -> None:
    sizing = replace(SIZING, draft_tokens=32, draft_probs=True)
    room = make_smallest_plan(PAIR, replace(sizing, draft_tokens=9), (HELD, 64 << 30)).need
    bounds = HELD, room + 5 * MIB
    with pytest.raises(ConfigError) as refused:
        plan_memory(PAIR, sizing, bounds, 4096)
    assert "num_speculative_tokens = 9 or " in str(refused.value)
    plan_memory(PAIR, replace(sizing, draft_tokens=9), bounds, 4096)


def test_attention_on_a_gpu_keeps_results_of_splits() -> None:
    """16 heads of 128: 12 padded rows of 8 sequences and 512 prompt tokens, each with a result of
    8 splits of the first 1,024 positions and one for each 512 beyond, up to a power of two.
    """
    for context, splits in ((4096, 8 + 6), (4097, 8 + 14)):
        sizing = replace(SIZING, max_model_len=context)
        on_cpu = make_smallest_plan(NEEDS, sizing, (HELD, 64 << 30))
        on_gpu = make_smallest_plan(NEEDS, replace(sizing, on_gpu=True), (HELD, 64 << 30))
        assert on_gpu.step - on_cpu.step == (12 + 512) * 16 * splits * (128 + 2) * 4
        assert on_gpu.list_rows()[0] == ("held already (on the GPU, and the reserve)", HELD)


def test_memory_of_a_gpu_has_no_parts_of_the_host() -> None:
    """Token lists and states of a drafter are the host's; logits are copied to be edited by a
    caller and on the GPU, next to counts of tokens and candidates.  A drafter's graphs are apart.
    """
    stored = StoredSlots(SPEC, nbytes=1000, scratch=3, waiting=1 << 20)
    cpu = CpuOps(1)
    needs = NEEDS.add_heads(NEEDS.kinds, stored, cpu, "heads")
    plan = make_smallest_plan(needs, replace(SIZING, on_gpu=True), (HELD, 64 << 30))
    stateless = NEEDS.add_heads(NEEDS.kinds, stored._replace(nbytes=0, waiting=0), cpu, "heads")
    same = make_smallest_plan(stateless, replace(SIZING, on_gpu=True), (HELD, 64 << 30))
    assert plan.books == 0 and plan.need == same.need
    bare = make_smallest_plan(NEEDS, replace(SIZING, on_gpu=True), (HELD, 64 << 30))
    assert plan.step > bare.step
    assert plan.logits == (4 * 4 * SPEC.vocab + (128 << 10)) * SIZING.max_num_seqs


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0.0 MiB"),
        (1023, "0.0 MiB"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (5 << 29, "2.50 GiB"),
    ],
)
def test_a_size_has_the_unit_that_shows_it(n: int, text: str) -> None:
    assert format_size(n) == text
