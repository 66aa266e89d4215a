"""K/V bytes: the course's exercise worked out by hand, kinds of attention, batches that fit."""

from dataclasses import replace

import pytest

from flyweight.config import Limits, Settings
from flyweight.describe import SilentListener
from flyweight.kv.memory import allocate_kv
from flyweight.ops.reference import ReferenceOps
from flyweight.planning.cache import (
    CacheDimensions,
    count_batch,
    count_by_attention,
    count_model_bytes,
    count_seed_bytes,
    count_visible_bytes,
    name_attention,
)
from flyweight.planning.cache_report import CacheUse, format_amount, report_cache
from flyweight.planning.outline import ModelOutline, outline_model
from flyweight.planning.published import CONFIGS
from flyweight.spec import KV_TYPES

F16, GIB = KV_TYPES["f16"], 1 << 30
USE = CacheUse(4096, 1, "auto", 16, 24 << 30)


def read(name: str) -> ModelOutline:
    return outline_model(Settings(model=name), SilentListener())


@pytest.mark.parametrize(
    ("name", "params"),
    [  # as their publishers count them
        ("llama-2-7b", 6_738_415_616), ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192), ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496), ("mistral-7b", 7_241_732_096),
        ("deepseek-v3", 671_026_419_200), ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
    ],
)  # fmt: skip
def test_parameters_of_published_models(name: str, params: int) -> None:
    assert read(name).params == params and name in CONFIGS


@pytest.mark.parametrize(
    ("name", "seed", "exact"),
    [  # 2 x L x heads x d_head x 4096 x 2 bytes, in GiB
        ("llama-2-7b", 2.0, 2.0), ("llama-2-13b", 3.125, 3.125), ("llama-2-70b", 10.0, 1.25),
    ],
)  # fmt: skip
def test_the_seeds_exercise(name: str, seed: float, exact: float) -> None:
    spec = read(name).spec
    assert count_seed_bytes(CacheDimensions.of(spec), 4096, 1, 2) == seed * GIB
    assert count_model_bytes(spec, 4096, F16) == exact * GIB


def test_the_seeds_gibibyte() -> None:
    assert count_seed_bytes(CacheDimensions(32, 32, 128), 2048, 1, 2) == GIB


def test_kinds_of_attention_by_hand() -> None:
    spec = read("llama-2-70b").spec  # 80 layers, 64 and 8 heads of 128, 2 bytes
    token = {name: size // 1024 for name, size in count_by_attention(spec, 1024, F16).items()}
    assert token == {
        "MHA": 80 * 2 * 64 * 128 * 2,
        "GQA": 80 * 2 * 8 * 128 * 2,
        "MQA": 80 * 2 * 128 * 2,
        "MLA": 80 * 576 * 2,  # 4.5 x 128
    }
    assert name_attention(spec) == "GQA"


def test_latents_are_stored_once() -> None:
    spec = read("deepseek-v3").spec
    found = count_by_attention(spec, 1, F16)
    assert found["MLA"] == count_model_bytes(spec, 1, F16) == 61 * (512 + 64) * 2
    assert found["MHA"] == 61 * 128 * (128 + 64 + 128) * 2
    assert name_attention(spec) == "MLA"


def test_windows_see_no_more_than_their_width() -> None:
    spec = read("mistral-7b").spec  # every layer sees 4,096 positions
    token = count_model_bytes(spec, 1, F16)
    assert count_visible_bytes(spec, 1000, F16) == 1000 * token
    assert count_visible_bytes(spec, 32768, F16) == 4096 * token


@pytest.mark.parametrize("kind", list(KV_TYPES))
def test_what_is_counted_is_allocated(kind: str, outline: ModelOutline) -> None:
    limits = Limits(64, 1, 64, 32, 3)
    layers = allocate_kv(outline.spec, ReferenceOps("int8"), limits, kind)
    held = sum(layer.nbytes for layer in layers)
    assert held == count_model_bytes(outline.spec, 3 * 32, KV_TYPES[kind])


def test_batches_that_fit() -> None:
    assert count_batch(24, 10, 3) == 4  # 14 left
    assert count_batch(24, 30, 3) == 0


def test_a_report_says_what_would_fit_where_weights_are_too_large() -> None:
    report = report_cache([read("llama-2-13b")], USE)
    assert report.tables[0].list_records()[0]["batch"] == 0
    # 24 GiB: 8 bits leave 11.88 for 3 of 3.125 GiB; 4 bits leave 17.94 for 5
    assert "batch 3 at 8 bits or 5 at 4 bits" in report.tables[0].notes[-1]
    huge = report_cache([read("llama-2-70b")], replace(USE, memory=GIB))
    assert "one sequence needs 33.37 GiB, at 4 bits" in huge.tables[0].notes[-1].replace(
        "2 G", " G"
    )


def test_several_models_are_one_table() -> None:
    report = report_cache([read("llama-2-7b"), read("llama-2-70b")], USE)
    assert len(report.tables) == 1 and report.plot is None


@pytest.mark.parametrize(
    ("amount", "text"),
    [(768, "768 B"), (36864, "36.00 KiB"), (3.125 * GIB, "3.125 GiB"), (GIB, "1.00 GiB")],
)
def test_amounts(amount: float, text: str) -> None:
    assert format_amount(amount) == text
