"""What `flyweight train-heads` refuses, in one line and before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from flyweight.cli.main import main
from flyweight.errors import ConfigError
from flyweight.models.registry import find_family
from flyweight.plan.machine import Machine
from flyweight.training import job
from flyweight.training.folder import check_output, write_heads
from flyweight.training.job import (
    HeadOptions,
    check_base,
    check_lengths,
    check_memory,
    read_texts,
    train_heads,
)

MODELS = Path(__file__).parents[1] / "data" / "models"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "medsa"}, "--method = 'medsa' is not valid.*medusa"),
        ({"method": "medusa", "dtype": "int4"}, "--dtype = 'int4' is not valid.*bf16, int8"),
        ({"method": "medusa", "steps": 0}, "--steps = 0"),
        ({"method": "medusa", "heads": 17}, "--heads = 17.*1 to 16"),
        ({"method": "eagle", "inner": -1}, "--inner = -1"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        HeadOptions(**options)
    assert "\n" not in str(refused.value)


def test_the_command_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train-heads", "stories", "--method", "eagel", "--text", "x", "--output"]
    assert main([*words, str(tmp_path / "h")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_texts_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("  <|endoftext|>\n")
    with pytest.raises(ConfigError, match="holds no text"):
        read_texts(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 3"):
        read_texts(tmp_path / "latin.txt")
    (tmp_path / "two.txt").write_text("one\n<|endoftext|>\n two <|endoftext|>\n")
    assert read_texts(tmp_path / "two.txt") == ["one", "two"]


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        check_output(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        check_output(tmp_path / "a" / "b")


def test_a_partial_folder_of_the_users_is_kept(tmp_path: Path) -> None:
    (tmp_path / "h.partial").mkdir()
    (tmp_path / "h.partial" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match=r"h\.partial first, which exists; remove it") as refused:
        check_output(tmp_path / "h")
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"h\.partial first, which exists"):
        write_heads(tmp_path / "h", {}, {}, "bf16")
    assert (tmp_path / "h.partial" / "notes").read_text() == "mine"


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_heads(tmp_path / "h", {"a": {1}}, {}, "bf16")  # a set is no JSON
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("method", "least"), [("medusa", 6), ("eagle", 4)])
def test_texts_that_are_too_short(tmp_path: Path, method: str, least: int) -> None:
    options = HeadOptions(method, heads=4)
    with pytest.raises(ConfigError, match=f"more than {least - 1} tokens; at least {least}"):
        check_lengths([[1] * (least - 1)] * 600, tmp_path, options)
    check_lengths([[1] * least] * 600, tmp_path, options)
    with pytest.raises(ConfigError, match="has 60 tokens; at least 512"):
        check_lengths([[1] * 6] * 10, tmp_path, options)


def test_models_without_heads() -> None:
    for name, method, message in (
        ("opt-350m", "medusa", "projects its states"),
        ("gpt2", "eagle", "needs rotary positions"),
        ("deepseek-v2-lite", "eagle", "needs rotary positions"),
        ("deepseek-v2-lite", "eagle3", "needs rotary positions"),
    ):
        config = json.loads((MODELS / name / "config.json").read_text())
        spec = find_family(config).read_spec(config)
        with pytest.raises(ConfigError, match=message):
            check_base(spec, HeadOptions(method))


def test_missing_torch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs torch.*pip install 'flyweight\[train\]'"):
        train_heads(None, tmp_path, tmp_path, HeadOptions("medusa"), lambda *_: None)


def fail(*given: Any, **options: Any) -> None:
    raise AssertionError("reached")


@pytest.mark.parametrize(
    ("openings", "length", "context", "most"), [(64, 64, None, 63), (40, 512, 40, 39)]
)
def test_openings_that_leave_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    openings: int, length: int, context: int | None, most: int,
) -> None:  # fmt: skip
    """By their name, before the model is loaded."""
    (tmp_path / "text.txt").write_text("a text")
    monkeypatch.setattr(job, "find_spec", lambda name: name)
    monkeypatch.setattr(job, "LLM", fail)
    options = HeadOptions("medusa", openings=openings, length=length)
    engine = {"max_model_len": context}
    with pytest.raises(ConfigError, match=f"^--openings = {openings} .*0 to {most}$") as refused:
        train_heads(None, tmp_path / "text.txt", tmp_path / "h", options, fail, engine)
    assert "\n" not in str(refused.value)


def test_states_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "read_machine", lambda: Machine(2, 1 << 40, 10**9))
    check_memory(1000, 10**6, tmp_path)
    with pytest.raises(ConfigError, match=r"1001 tokens.* 1 GB; 1000 tokens fit") as refused:
        check_memory(1001, 10**6, tmp_path)
    assert "\n" not in str(refused.value)


def test_states_that_do_not_fit_are_not_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EAGLE-3 reads three layers and the last state: 4 of 192 elements, 4 bytes each."""
    (tmp_path / "text.txt").write_text("Once upon a time there was a little dog. " * 80)
    monkeypatch.setattr(job, "find_spec", lambda name: name)
    monkeypatch.setattr(job, "collect_states", fail)
    monkeypatch.setattr(job, "read_machine", lambda: Machine(2, 1 << 40, 4 * 192 * 4 * 500))
    with pytest.raises(ConfigError, match="500 tokens fit"):
        train_heads(
            None, tmp_path / "text.txt", tmp_path / "h", HeadOptions("eagle3"), lambda *_: None,
            {"max_model_len": 64},
        )  # fmt: skip
