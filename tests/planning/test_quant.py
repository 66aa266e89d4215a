"""Sizes by bits of a weight, with figures worked out by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from flyweight.config import Settings
from flyweight.describe import SilentListener
from flyweight.ops.reference import ReferenceOps
from flyweight.passport import Quality
from flyweight.planning.outline import ModelOutline, outline_model
from flyweight.planning.published import find_alike
from flyweight.planning.quant import QuantUse, report_levels
from passports import make_passport


def make_ops() -> ReferenceOps:
    return ReferenceOps("int8")


def test_the_seeds_table_of_sizes() -> None:
    report = report_levels(QuantUse(7e9, 80 * 10**9, "f16", None), None, make_ops)
    rows = report.tables[0].list_records()
    assert [row["bytes"] for row in rows] == [28e9, 14e9, 7e9, 3.5e9, 0.875e9]
    assert [row["saved"] for row in rows] == [0, 0.5, 0.75, 0.875, 0.96875]
    assert all(row["context"] is None for row in rows)


def test_a_model_of_70b_at_4_bits_fits_80_gb() -> None:
    shaped = outline_model(Settings(model="llama-2-70b"), SilentListener())
    report = report_levels(QuantUse(70e9, 80 * 10**9, "f16", shaped), None, make_ops)
    rows = {row["level"]: row for row in report.tables[0].list_records()}
    assert rows["INT4"]["bytes"] == 35e9
    assert rows["INT4"]["bytes_with_20_percent"] == pytest.approx(42e9)
    token = 80 * 2 * 8 * 128 * 2  # layers, K and V, K/V heads, elements, bytes
    assert rows["INT4"]["context"] == shaped.spec.context == 4096
    assert rows["INT4"]["sequences"] == int(38e9 // token) // 4096 == 28
    assert rows["FP16"]["context"] is rows["FP16"]["sequences"] is None


def test_less_than_a_whole_context_may_be_left() -> None:
    shaped = outline_model(Settings(model="llama-2-70b"), SilentListener())
    token = 80 * 2 * 8 * 128 * 2
    for left, expected in ((1000 * token + 1, (1000, 1)), (token - 1, (None, None))):
        use = QuantUse(70e9, 42 * 10**9 + left, "f16", shaped)
        row = report_levels(use, None, make_ops).tables[0].list_records()[3]
        assert (row["context"], row["sequences"]) == expected


@pytest.mark.parametrize(
    ("params", "name"),
    [(7e9, "llama-2-7b"), (70e9, "llama-2-70b"), (3e10, ""), (1e8, ""), (1e9, "llama-3.2-1b")],
)
def test_shapes_are_those_of_a_model_of_nearly_that_size(params: float, name: str) -> None:
    assert find_alike(params) == name


def test_loss_is_the_passports_or_unknown(outline: ModelOutline) -> None:
    use = QuantUse(outline.params, 10**9, "f16", outline)
    unknown = report_levels(use, outline, make_ops).tables[2]
    assert unknown.list_records()[0]["kld_mean"] is None
    measured = replace(outline, quality=Quality(make_passport(kld_mean=0.0125)))
    found = report_levels(use, measured, make_ops).tables[2].list_records()[0]
    assert found["kld_mean"] == 0.0125


def test_kinds_of_a_model_have_their_sizes(outline: ModelOutline) -> None:
    use = QuantUse(outline.params, 10**9, "f16", outline)
    rows = report_levels(use, outline, make_ops).tables[1].list_records()
    assert [row["kind"] for row in rows][:3] == ["f32", "bf16", "q8_0"]
    assert rows[-1]["kind"] == "as the files" and Path(outline.name).name == outline.name
