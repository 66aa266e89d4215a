"""`eval compare`: candidates of a tiny model, the front of the best, and the plot."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jobs import WORDS

from flyweight.cli.compare import make_document
from flyweight.cli.main import main
from flyweight.comparison import (
    CANDIDATES,
    ComparedModel,
    Comparison,
    ComparisonPlan,
    choose_candidates,
    mark_best,
)
from flyweight.errors import ConfigError
from flyweight.eval.divergence import Divergence
from flyweight.eval.perplexity import MeanWithError, Perplexity
from flyweight.eval.windows import EvalText, WindowPlan
from flyweight.plot import draw_front

FEW = {"FP32", "INT4 RTN", "INT4 GPTQ", "Q8_0", "mixed", "Q4_0"}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("".join(f"{i}: {WORDS}" for i in range(60)))
    return file


@pytest.fixture(autouse=True)
def short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing of a few tokens: no test compares speeds."""
    monkeypatch.setattr("flyweight.comparison.GENERATED", 4)
    monkeypatch.setattr("flyweight.comparison.PROMPT", 16)


def test_candidates_of_a_tiny_model(full: Path, text: Path, tmp_path: Path) -> None:
    plan = ComparisonPlan(
        EvalText.read(str(text)), WindowPlan(128, None, 600), str(text), rounds=1, samples=4,
        engine={"memory_limit": "8GiB", "threads": 1},
        candidates=[one for one in CANDIDATES if one.name in FEW],
    )  # fmt: skip
    rows, kinds = Comparison(str(full), tmp_path, plan).run()
    found = {row.name: row for row in rows}
    assert found["FP32"].found is not None and found["FP32"].found.mean.mean < 1e-5
    assert found["Q8_0"].found is not None and found["INT4 RTN"].found is not None
    assert found["Q8_0"].found.mean.mean < found["INT4 RTN"].found.mean.mean
    assert found["mixed"].path is None and found["mixed"].problem
    timed = [row for row in rows if row.path is not None]
    assert all(row.decode > 0 and row.batch > 0 and row.ttft > 0 for row in timed)
    assert any(row.best for row in timed)
    usual = next(one for one in kinds if one.kind == "int4")
    assert usual.nbytes < next(one for one in kinds if one.kind == "f16").nbytes


def make_row(name: str, divergence: float, decode: float) -> ComparedModel:
    mean = MeanWithError(divergence, None)
    found = Divergence(mean, 0, 0, 0, 0, mean, Perplexity(mean, 1, 1), 1.0)
    return ComparedModel(name, Path(name), found=found, decode=decode)


def test_the_front_has_what_no_other_beats() -> None:
    rows = [make_row("a", 0.0, 10), make_row("b", 0.1, 20), make_row("c", 0.2, 15)]
    rows += [make_row("d", 0.3, 30), ComparedModel("e", problem="no")]
    mark_best(rows)
    assert [row.name for row in rows if row.best] == ["a", "b", "d"]


def test_a_plot_is_valid_and_has_every_name() -> None:
    points = [("a<b", 10.0, 0.0, True), ("c", 20.0, 0.5, True), ("d & e", 15.0, 0.7, False)]
    drawn = ElementTree.fromstring(draw_front(points, ("speed", "cost")))
    words = [node.text for node in drawn.iter() if node.tag.endswith("text")]
    assert {"a<b", "c", "d & e", "speed", "cost"} <= set(words)
    circles = [node for node in drawn.iter() if node.tag.endswith("circle")]
    circles = circles[1:] + circles[:1]  # the front is drawn last, over the others
    heights = [float(node.attrib["cy"]) for node in circles]
    assert heights[0] > heights[1] > heights[2]
    assert float(circles[1].attrib["cx"]) > float(circles[2].attrib["cx"])


def test_names_of_near_points_are_apart() -> None:
    points = [(f"model {i}", 1000.0 + i, 0.01, i == 2) for i in range(5)]
    drawn = ElementTree.fromstring(draw_front(points, ("speed", "cost")))
    named = [node for node in drawn.iter() if str(node.text).startswith("model")]
    places = [(float(node.attrib["x"]), float(node.attrib["y"])) for node in named]
    for i, (x, y) in enumerate(places):
        assert all(abs(x - a) > 50 or abs(y - b) > 12 for a, b in places[:i])


def test_the_command(
    full: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot, words = tmp_path / "plot.svg", ["--text", str(text), "--context", "128", "--rounds", "1"]
    words += ["--limit-tokens", "600", "--threads", "1", "--memory-limit", "8GiB"]
    words += ["--only", "Q8_0,Q4_0"]
    assert main(["bench", "quant", str(full), *words, "--json", "--plot", str(plot)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in document["models"]] == ["Q8_0", "Q4_0"]
    assert "<svg" in plot.read_text()
    assert main(["eval", "compare", str(full), *words[:-1], "Q4_1"]) == 2
    assert "only = 'Q4_1' is not valid" in capsys.readouterr().err
    nowhere = str(tmp_path / "none/plot.svg")
    assert main(["eval", "compare", str(full), *words, "--plot", nowhere]) == 2
    assert "none/plot.svg' has no folder to be in" in capsys.readouterr().err


def test_names_may_have_spaces_and_mixed_needs_a_size() -> None:
    assert [one.name for one in choose_candidates("Q4_K_M, mixed")] == ["Q4_K_M", "mixed"]
    with pytest.raises(ConfigError, match=r"only = 'mixed' needs Q4_K_M.*valid: Q4_K_M,mixed"):
        choose_candidates("mixed")


def test_the_model_inside_is_quantised_already(
    text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--text", str(text), "--context", "128", "--rounds", "1", "--limit-tokens", "200"]
    words += ["--threads", "1", "--memory-limit", "8GiB", "--only", "FP32,Q4_0"]
    assert main(["eval", "compare", "stories", *words]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Note: stories.gguf is quantised already (q8_0). Candidates are made")
    assert "course x FP32" in shown and "not made" not in shown
    assert main(["bench", "quant", "stories", *words[:-1], "FP32", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["quantised_input"] == "q8_0"
    assert main(["eval", "compare", "no-such-model", *words]) == 2
    assert "model 'no-such-model' is not a file or directory here" in capsys.readouterr().err


def test_speeds_next_to_those_of_the_seed() -> None:
    rows = [make_row("FP32", 0.0, 10), make_row("BF16", 0.0, 20), make_row("INT4 GPTQ", 0.1, 45)]
    rows.append(ComparedModel("INT4 AWQ", problem="no"))
    found = {row["name"]: row for row in make_document(rows, [], 512)["models"]}
    names = ("times_fp32", "times_bf16", "seed_times_fp32", "seed_times_fp16")
    assert [found["FP32"][name] for name in names] == [1, 0.5, "1", None]
    assert [found["INT4 GPTQ"][name] for name in names] == [4.5, 2.25, "3", "2-3"]
    assert [found["INT4 AWQ"][name] for name in names] == [None, None, "3", "2-3"]
    assert make_document(rows[1:2], [], 512)["models"][0]["times_fp32"] is None
