"""Rows as md, csv, json and html, and files of results that are gone on with."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flyweight.bench.facts import Surroundings, format_count
from flyweight.bench.report import describe_machine, report, write_head, write_line
from flyweight.bench.rows import BenchRow, Spread, load, save
from flyweight.errors import ConfigError

OURS = BenchRow(
    engine="flyweight",
    version="0.1.0",
    isa="avx512",
    test="tg128 @ d2048",
    build_commit="abc1234",
    cpu_info="A Processor",
    backends="CPU",
    model_filename="qwen3-0.6b/q4_0.gguf",
    model_type="qwen3 596M Q4_0",
    model_size=338256608,
    model_n_params=596049920,
    n_batch=512,
    n_threads=2,
    type_k="f16",
    type_v="f16",
    activations="int8",
    n_prompt=0,
    n_gen=128,
    n_depth=2048,
    n_seqs=1,
    n_shared=0,
    n_busy=0,
    test_time="2026-11-21T20:00:00Z",
    avg_ns=2_560_000_000,
    stddev_ns=12_000_000,
    avg_ts=50.0,
    stddev_ts=0.234,
    samples_ns=(2_550_000_000, 2_570_000_000),
    samples_ts=(50.2, 49.8),
    gbps=28.64,
    gops=63.4,
    limit_read=40.0,
    limit_int8=2000.0,
    limit_bf16=1000.0,
    other_cores=0.03,
    share=Spread(0.712, 0.7, 0.73),
)
THEIRS = replace(
    OURS,
    engine="llama.cpp -fa off",
    version="llama.cpp 0c1e570",
    avg_ts=34.4,
    share=Spread(0.49, 0.48, 0.5),
    ratio=Spread(1.4534, 1.44, 1.47),
)
GOLDEN = """\
| model | size | params | backend | threads | test | t/s | GB/s | Gop/s | share of limit | ours ÷ it |
|---|---:|---:|---|---:|---:|---:|---:|---:|---|---|
| qwen3 596M Q4_0 | 322.59 MiB | 596.05 M | flyweight avx512 | 2 | tg128 @ d2048 | 50.00 ± 0.23 | 28.6 | 63 | 71 % |  |
| qwen3 596M Q4_0 | 322.59 MiB | 596.05 M | llama.cpp -fa off | 2 | tg128 @ d2048 | 34.40 ± 0.23 | 28.6 | 63 | 49 % | 1.45 [1.44..1.47] |"""  # noqa: E501


def test_the_table_is_llama_benchs_with_our_columns() -> None:
    assert report([OURS, THEIRS], "md") == GOLDEN
    assert "\n".join((*write_head(), write_line(OURS), write_line(THEIRS))) == GOLDEN


def test_a_tile_unit_has_a_share_of_its_own() -> None:
    row = replace(OURS, isa="amx", share_tile=Spread(0.2, 0.2, 0.2))
    assert "| 71 % (20 % of amx) |" in write_line(row)
    assert "tg128 @ d2048 + 1 busy" in write_line(replace(OURS, n_busy=1))


def test_weights_that_caches_hold_have_no_share() -> None:
    cached = replace(OURS, model_size=3_000_000)
    assert "| – |" in write_line(cached) and "71 %" not in write_line(cached)
    page = Page()
    page.feed(report([cached], "html"))
    assert page.tags.count("rect") == 1


def test_json_has_llama_benchs_keys_and_goes_back() -> None:
    first, second = json.loads(report([OURS, THEIRS], "json"))
    assert first["model_filename"] == "qwen3-0.6b/q4_0.gguf"
    for key in (
        "build_commit", "cpu_info", "backends", "model_type", "model_size", "model_n_params",
        "n_batch", "n_threads", "type_k", "type_v", "n_prompt", "n_gen", "n_depth", "test_time",
        "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts",
    ):  # fmt: skip
        assert key in first
    assert [BenchRow.of(first), BenchRow.of(second)] == [OURS, THEIRS]
    lines = report([OURS, THEIRS], "jsonl").splitlines()
    assert [BenchRow.of(json.loads(text)) for text in lines] == [OURS, THEIRS]


def test_csv_has_a_line_a_row() -> None:
    names, first, second = report([OURS, THEIRS], "csv").splitlines()
    one = dict(zip(names.split(","), first.split(","), strict=True))
    two = dict(zip(names.split(","), second.split(","), strict=True))
    assert (one["avg_ts"], one["samples_ts"], one["ratio_median"]) == ("50.0", "50.2 49.8", "")
    assert (two["ratio_median"], two["share_least"]) == ("1.4534", "0.48")


class Page(HTMLParser):
    """What a page holds."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_loads_nothing_and_escapes_names() -> None:
    nasty = replace(OURS, model_filename="<script>alert(1)</script>.gguf")
    page = Page()
    text = report([OURS, THEIRS, nasty], "html")
    page.feed(text)
    assert page.loads == [] and "script" not in page.tags
    assert page.tags.count("svg") == 2 and page.tags.count("rect") == 6
    assert "×1.45" in text and "71%" in text


def test_the_machine_line_names_the_other_load() -> None:
    around = Surroundings("A Processor", 2, 24 << 30, "0.1.0", "abc1234")
    assert describe_machine(around, [OURS, THEIRS]) == (
        "A Processor; 2 cores; 24 GiB; avx512; read 40 GB/s; int8 2000 Gop/s; bf16 1000 Gop/s; "
        "others used 0.03 cores; flyweight 0.1.0 (abc1234); llama.cpp 0c1e570"
    )


def test_results_are_kept_and_a_torn_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert load(path) == []
    save(path, [OURS])
    save(path, [THEIRS])
    assert load(path) == [OURS, THEIRS]
    whole = path.read_text()
    path.write_text(whole + '{"engine": "flyw')  # killed while writing
    assert load(path) == [OURS, THEIRS]
    save(path, [OURS])
    assert load(path) == [OURS, THEIRS, OURS]


def test_only_the_start_of_a_row_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    save(path, [OURS])
    path.write_text(path.read_text().rstrip("\n"))  # a whole row, its newline lost
    assert load(path) == [OURS]
    save(path, [THEIRS])
    assert load(path) == [OURS, THEIRS]
    path.write_text('{"engi')
    save(path, [OURS])
    assert load(path) == [OURS]
    path.write_text("dear diary\nand so on")
    save(path, [])
    assert path.read_text().startswith("dear diary\nand so on")


def test_what_are_no_results_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\nand so on\n")
    with pytest.raises(ConfigError, match="line 1 is not JSON"):
        load(path)
    for text in ("dear diary", '{"torn": \n', "[1]"):  # a cut-off row has no newline
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"notes\.txt: line 1 is no"):
            load(path)
    save(path := tmp_path / "rows.jsonl", [OURS])
    path.write_text(path.read_text() + '{"engine": "flyweight"}\n')
    with pytest.raises(ConfigError, match=r"rows\.jsonl: line 2 is not a row of results: "):
        load(path)


def test_the_same_figure_again_has_the_same_key() -> None:
    later = replace(OURS, avg_ts=60.0, test_time="later", build_commit="other")
    assert later.key == OURS.key
    for other in (
        replace(OURS, n_threads=1), replace(OURS, isa="avx2"), replace(OURS, test="tg128"),
        replace(OURS, n_busy=1), replace(OURS, type_k="f32"), THEIRS,
    ):  # fmt: skip
        assert other.key != OURS.key


def test_parameters_for_people() -> None:
    counts = (260_032, 596_049_920, 1_235_814_400, 12)
    assert [format_count(n) for n in counts] == ["260K", "596M", "1.24B", "12"]
