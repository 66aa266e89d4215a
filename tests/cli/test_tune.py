"""`flyweight tune`: what it writes is a file for `serve --config`; what cannot be is one line."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from flyweight.arguments.objects import parse_object_option
from flyweight.cli.serve.file import read_options
from flyweight.cli.serve.options import OPTIONS
from flyweight.cli.tune import write_ratio
from flyweight.quantization import Evaluation, quantize_model
from flyweight.tune import making
from flyweight.tune.evidence import list_options, make_config
from flyweight.tune.measure import LoadRunner
from flyweight.tune.targets import Targets
from flyweight.tune.trial import LoadFigures, SettingsTrial

Command = Callable[..., SimpleNamespace]


def test_the_file_is_a_config_of_serve(tmp_path: Path) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    chosen = SettingsTrial.of(
        {"speculative_config": json.dumps(drafts), "max_num_seqs": 8, "kv_cache_dtype": "int8"}
    )
    options = list_options(chosen, Targets(memory=1 << 30, max_kld=0.05).bounds)
    path = tmp_path / "tuned.yaml"
    path.write_text(make_config("stories", options, ("a comment",)))
    refusals: list[str] = []
    found = read_options(path, OPTIONS, refusals)
    assert not refusals
    assert parse_object_option("speculative_config", str(found.pop("speculative-config"))) == drafts
    assert {name: str(value) for name, value in found.items()} == {
        "model": "stories", "max-num-seqs": "8", "kv-cache-dtype": "int8",
        "memory-limit": str(1 << 30), "max-kld": "0.05",
    }  # fmt: skip


def measure(self: LoadRunner, one: SettingsTrial, size: int) -> LoadFigures:
    """Without a model: a block size of 64 is best."""
    speed = 130.0 if dict(one.changes).get("block_size") == 64 else 100.0
    return LoadFigures(speed, 0.5, 1 / speed, 2.0, size)


def test_a_tuning_end_to_end(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadRunner, "measure", measure)
    path = tmp_path / "tuned.yaml"
    words = ["tune", "stories", "--minutes", "5", "--output", path, "--users", "2"]
    done = command(*words)
    assert done.code == 0, done.err
    assert "Chosen:   block_size=64" in done.out and f"serve --config {path}" in done.out
    assert "Model:    stories" in done.out
    assert "block-size: 64" in path.read_text() and path.with_suffix(".svg").is_file()
    kept = path.with_suffix(".evidence.jsonl").read_text()
    again = json.loads(command(*words, "--json").out)
    assert again["chosen"] == {"block_size": 64} and again["missed"] == {}
    assert path.with_suffix(".evidence.jsonl").read_text() == kept, "nothing is measured twice"


def test_an_unreachable_target_names_what_binds(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadRunner, "measure", measure)
    path = tmp_path / "tuned.yaml"
    done = command("tune", "--minutes", "5", "--output", path, "--users", "2", "--ttft", "100ms")
    assert done.code == 0, done.err
    assert "TTFT is 5.00 times the target" in done.out and " binds" in done.out


def test_a_missed_target_is_written_for_people() -> None:
    assert [write_ratio(ratio) for ratio in (1.042, 99.5, 35007.33)] == ["1.04", "99.50", "35,007"]


@pytest.mark.parametrize("target", ["itl", "ttft"])
def test_a_target_below_the_limits_gives_the_closest_point(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """No machine computes a token in a nanosecond."""
    monkeypatch.setattr(LoadRunner, "measure", measure)
    path = tmp_path / "tuned.yaml"
    words = ["tune", "--minutes", "5", "--output", path, "--users", "2", f"--{target}", "0.001us"]
    done = command(*words)
    assert done.code == 0, done.err
    assert f"Missed:   out of reach of any settings: {target} of at least" in done.out
    assert " binds)" in done.out and path.is_file()
    found = json.loads(command(*words, "--json").out)
    assert found["missed"].keys() == found["binding"].keys() == {target}
    assert found["unreachable"].startswith(target)
    assert found["rejected"] == [] and len(found["finalists"]) > 1
    if target == "itl":  # that of a block size of 64
        assert found["chosen"] == {"block_size": 64}


def choose_files(self: LoadRunner, one: SettingsTrial, size: int) -> LoadFigures:
    """Without a model: files of fewer bits are faster."""
    model = str(dict(one.changes).get("model"))
    speed = 150.0 if "Q4_0" in model else 120.0 if "Q8_0" in model else 100.0
    return LoadFigures(speed, 0.5, 1 / speed, 2.0, size)


def short_evaluation(folder: Path) -> Evaluation:
    text = folder / "numbers.txt"
    text.write_text("".join(f"{i} cats and {i * i} birds. " for i in range(200)))
    return Evaluation(str(text), 600)


def test_types_are_made_and_chosen(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadRunner, "measure", choose_files)
    monkeypatch.setattr(making, "USUAL", short_evaluation(tmp_path))
    path, file = tmp_path / "tuned.yaml", tmp_path / "model-Q4_0.gguf"
    words = ["tune", folder, "--minutes", "1", "--users", "2", "--output", path]
    words += ["--also", "Q8_0,Q4_0", "--max-kld", "9"]
    done = command(*words)
    assert done.code == 0, done.err
    assert f"Type:     {file}, made in" in done.out and f"Chosen:   model={file}" in done.out
    text = path.read_text()
    assert f'model: "{file}"' in text and "max-kld: 9.0" in text
    again = json.loads(command(*words, "--json").out)
    assert again["chosen"] == {"model": str(file)} and again["defaults_unfit"] is None
    assert [(one["type"], one["seconds"]) for one in again["made"]] == [("Q8_0", 0), ("Q4_0", 0)]


def test_defaults_that_are_ruled_out_are_not_started(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without a passport, and one with."""
    started: set[SettingsTrial] = set()

    def note(self: LoadRunner, one: SettingsTrial, size: int) -> LoadFigures:
        started.add(one)
        return choose_files(self, one, size)

    monkeypatch.setattr(LoadRunner, "measure", note)
    unknown, known = tmp_path / "unknown.gguf", tmp_path / "known.gguf"
    for out, how in ((unknown, Evaluation(tokens=0)), (known, short_evaluation(tmp_path))):
        quantize_model(str(folder), out, type="Q8_0", evaluation=how)
    path = tmp_path / "tuned.yaml"
    words = ["tune", unknown, "--minutes", "5", "--users", "2", "--output", path]
    words += ["--also", known, "--max-kld", "9"]
    done = command(*words)
    assert done.code == 0, done.err
    assert "Defaults: not started: max_kld = 9.0 cannot be checked" in done.out
    assert f"model={known} is compared with in their place" in done.out
    assert started and all(dict(one.changes)["model"] == str(known) for one in started)
    text = path.read_text()
    assert "# the defaults do not fit: " in text and f'model: "{known}"' in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--also", "Q4_0"], "give the model it was made from"),
        (["--also", "Q8_O"], "did you mean 'Q8_0'"),
        (
            ["--memory", "1MiB"],
            "no settings can meet the targets: --memory of 1.0 MiB is too small",
        ),
        (["--memory", "1KiB"], "--memory of 1.0 KiB is too small"),
        (["--objective", "speed"], "allowed: throughput, latency"),
        (["--workload", "chta"], "did you mean"),
        (["--minutes", "0"], "minutes = 0 is out of range; allowed: 0.01 to 1440"),
        (["--minutes", "inf"], "minutes = inf is out of range"),
        (["--max-kld", "-1"], "error: max_kld = -1 is out of range"),
        (["--max-kld", "0"], "nearest valid: 0.001"),
        (["stories-draft", "--max-kld", "0.05"], "eval stamp stories-draft --against FULL"),
        (["--output", "/nowhere/tuned.yaml"], "no folder"),
    ],
)
def test_bad_input(command: Command, tmp_path: Path, words: list[str], text: str) -> None:
    given = ["tune", "--output", tmp_path / "t.yaml"] if "--output" not in words else ["tune"]
    done = command(*given, *words)
    assert done.code == 2 and text in done.err and done.err.count("\n") == 1
