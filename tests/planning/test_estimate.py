"""The seed's estimate of memory, with figures worked out by hand."""

import pytest

from flyweight.errors import ConfigError
from flyweight.planning.estimate import estimate_memory, report_estimates
from flyweight.planning.quantities import parse_bits, parse_list, parse_params, write_gb


@pytest.mark.parametrize(
    ("params", "bits", "expected"),
    [
        (8e9, 4, 4.8e9),  # 8e9 x 4 / 8 x 1.2
        (70e9, 16, 168e9),  # 70e9 x 4 / 2 x 1.2
        (70e9, 4, 42e9),  # S2-3
        (1e9, 32, 4.8e9),
    ],
)
def test_the_seeds_formula(params: float, bits: float, expected: float) -> None:
    assert estimate_memory(params, bits) == pytest.approx(expected)


def test_a_report_has_every_pair_and_a_line_for_each_number_of_bits() -> None:
    report = report_estimates([1e9, 8e9], [4, 16])
    records = report.tables[0].list_records()
    assert [one["bytes"] for one in records] == pytest.approx([0.6e9, 2.4e9, 4.8e9, 19.2e9])
    assert report.plot is not None
    lines = {one.name: one.points for one in report.plot.series}
    assert [y for _, y in lines["4 bits"]] == pytest.approx([0.6, 4.8])


def test_the_exact_figure_is_next_to_the_estimate_where_there_is_one() -> None:
    report = report_estimates(
        [8e9, 3e10], [4], lambda n, bits: (6 * 10**9, "eight") if n == 8e9 else (None, None)
    )
    rows = report.tables[0].list_records()
    assert rows[0]["difference"] == pytest.approx(6 / 4.8 - 1) and rows[0]["model"] == "eight"
    assert (rows[1]["exact_bytes"], rows[1]["difference"]) == (None, None)


@pytest.mark.parametrize(
    ("text", "count"),
    [("8B", 8e9), ("8b", 8e9), ("0.5B", 5e8), ("500M", 5e8), ("1.5t", 1.5e12), ("8000000000", 8e9)],
)
def test_sizes_that_are_read(text: str, count: float) -> None:
    assert parse_params(text) == count


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("eight", "8B"), ("eigth", "8B"), ("8 billion", "8B"), ("8X", "8B"), ("", "8B"),
        ("0", "1K"), ("-8B", "1K"), ("8", "8B"), ("1e9", "1B"), ("5000T", "1000T"), ("nan", "8B"),
    ],
)  # fmt: skip
def test_sizes_that_are_refused_name_the_nearest(text: str, near: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_params(text)
    message = str(refused.value)
    assert message.startswith(f"params = {text!r}") and f"nearest valid: {near}" in message


@pytest.mark.parametrize(("text", "near"), [("0", "1"), ("-4", "1"), ("33", "32"), ("inf", "32")])
def test_bits_out_of_range(text: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"1 to 32; nearest valid: {near}"):
        parse_bits(text)


def test_lists_keep_each_value_once() -> None:
    assert parse_list("4, 8,4.0", parse_bits, "bits") == [4.0, 8.0]


@pytest.mark.parametrize(
    ("amount", "text"),
    [(4.8e9, "4.8 GB"), (0.875e9, "0.875 GB"), (168e9, "168 GB"), (6.08e7, "60.8 MB")],
)
def test_amounts_in_decimal_gigabytes(amount: float, text: str) -> None:
    assert write_gb(amount) == text
