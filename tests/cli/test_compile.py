"""`flyweight compile`: packed weights and a checked memory plan ahead of the first start, and what
`check` and `run` make of them.
"""

import json
from pathlib import Path

import pytest

from flyweight.bench.startup import StartupRun
from flyweight.build import build
from flyweight.cli.main import app
from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.server.worker.loading import describe_engine
from flyweight.weights.packed import shelf
from flyweight.weights.packed.shape import CompiledShape, read_shape

SMALL = ("--max-batch-size", "4", "--max-input-len", "100", "--max-output-len", "28")


@pytest.fixture
def starts() -> list[tuple[str, ...]]:
    """Models and options of the processes that were timed."""
    return []


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[tuple[str, ...]]) -> Path:
    """Where packed weights are kept, also those of small models."""
    monkeypatch.setattr(shelf, "LEAST", 0)
    monkeypatch.setattr("flyweight.checks.prepare.LEAST", 0)
    monkeypatch.setenv("FLYWEIGHT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", "1GiB")

    def start(model: str, words: list[str], folder: Path) -> StartupRun:
        starts.append((model, *words))
        assert folder == tmp_path / "kept"
        return StartupRun(2.0 if "--no-packed-cache" in words else 0.5, 2.0, 1)

    monkeypatch.setattr("flyweight.bench.startup.time_start", start)
    return tmp_path / "kept"


def test_compiled_once_every_start_finds_it(
    command, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = command("compile", "stories", *SMALL, "--json")
    assert first.code == 0 and first.err == ""
    found = json.loads(first.out)
    file, shape = sorted(kept.iterdir(), key=lambda path: path.suffix != ".tiles")
    assert shape == file.with_suffix(".shape")
    assert read_shape(file) == CompiledShape(4, 100, 28)
    assert Path(found["kept"]) == file and found["fresh"] and found["fits"]
    assert (found["max_batch_size"], found["max_model_len"]) == (4, 128)
    assert found["packed_bytes"] < file.stat().st_size
    assert found["first_token_s"] == {"packed": 0.5, "unpacked": 2.0}
    again = json.loads(command("compile", "stories", *SMALL, "--json").out)
    assert not again["fresh"] and again["kept"] == found["kept"]

    settings = Settings.of(model=found["path"])
    loaded = build(settings)
    loaded.engine.close()
    facts = describe_engine(loaded, settings)
    assert CompiledShape.of(facts["compiled"]) == loaded.shape == CompiledShape(4, 100, 28)

    taken: list[bool] = []
    real = shelf.MappedWeights.take
    monkeypatch.setattr(
        shelf.MappedWeights, "take", lambda self, bias: taken.append(True) or real(self, bias)
    )
    said = command("run", "stories", "Once upon", "-n", "4", "--seed", "1", "--json")
    assert said.code == 0 and len(taken) == 25
    plain = command(
        "run", "stories", "Once upon", "-n", "4", "--seed", "1", "--json", "--no-packed-cache"
    )
    assert len(taken) == 25
    texts = [json.loads(out)["outputs"][0]["text"] for out in (said.out, plain.out)]
    assert texts[0] == texts[1]


def test_what_it_says(command, kept: Path, starts: list[tuple[str, ...]]) -> None:
    shown = command("compile", "stories", *SMALL)
    assert shown.code == 0
    words = " ".join(shown.out.split())
    assert "planned peak" in words and "K/V, 17 blocks of 32 tokens" in words
    assert "stories.gguf: 4 sequences of 128 tokens fit; 2.8 MiB of weights packed in" in words
    assert (
        "first token of a new process: 0.50 s, without packed weights 2.00 s (4.0 times)" in words
    )
    again = command("compile", "stories", *SMALL, "--threads", "1", "--activations", "f32")
    assert "packed already" in again.out
    model, *words = starts[-1]
    assert model.endswith("stories.gguf")
    given = ["--memory-limit", "80%", "--threads", "1", "--activations", "f32"]
    assert words == [*given, "--kv-cache-dtype", "auto", "--block-size", "32"]


def test_a_start_that_fails_is_reported(
    command, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> StartupRun:
        raise ConfigError("flyweight run says no")

    monkeypatch.setattr("flyweight.bench.startup.time_start", fail)
    shown = command("compile", "stories", *SMALL)
    assert shown.code == 0 and "weights packed in" in " ".join(shown.out.split())
    assert "a start cannot be measured: flyweight run says no" in " ".join(shown.err.split())


@pytest.mark.long
def test_the_gain_is_measured(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyweight.weights.packed.shelf.LEAST", 0)
    monkeypatch.setattr("flyweight.checks.prepare.LEAST", 0)
    monkeypatch.setenv("FLYWEIGHT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", "1GiB")
    found = json.loads(command("compile", "stories", *SMALL, "--json").out)
    assert min(found["first_token_s"].values()) > 0


def test_the_load_must_fit(command, kept: Path) -> None:
    got = command("compile", "stories", "--memory-limit", "1GiB", "--max-batch-size", "900")
    assert got.code == 2 and not kept.exists()
    assert "too small for 900 sequences of 2560 tokens at once" in got.err
    ways = got.err.split("nearest settings that fit: ")[1].split(" or ")
    limit, seqs, tokens = (way.strip() for way in ways)
    batch = seqs.removeprefix("max_batch_size = ")
    total = int(tokens.removesuffix(" tokens of input and output"))
    split = ("--max-input-len", str(total - 1), "--max-output-len", "1")
    for more in (
        ("--memory-limit", limit.removeprefix("memory_limit = "), "--max-batch-size", "900"),
        ("--memory-limit", "1028MiB", "--max-batch-size", batch),
        ("--memory-limit", "1028MiB", "--max-batch-size", "900", *split),
    ):
        assert command("compile", "stories", *more).code == 0, more


def test_a_context_beyond_the_models_own_is_reported(command, kept: Path) -> None:
    got = command("compile", "stories")
    assert got.code == 0
    assert "max_model_len = 2560 is above the 512 tokens the model was made for" in got.err


@pytest.mark.parametrize(
    ("option", "value"),
    [("--max-batch-size", "0"), ("--max-input-len", "-1"), ("--max-output-len", "99999999")],
)
def test_out_of_range(command, option: str, value: str) -> None:
    got = command("compile", "stories", option, value)
    assert got.code == 2
    assert f"{option[2:].replace('-', '_')} = {value} is out of range" in got.err


def test_small_models_are_not_kept(
    command, kept: Path, starts: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyweight.checks.prepare.LEAST", 32 << 20)
    got = command("compile", "stories", *SMALL)
    assert got.code == 0
    assert "packed weights are not kept: 2.8 MiB are packed faster than" in got.out
    assert starts == [] and "first token" not in got.out


def test_no_room_is_said(command, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWEIGHT_CACHE_SIZE", "1MiB")
    got = command("compile", "stories", *SMALL)
    assert got.code == 0 and "6.0 MiB could not be kept in 1.0 MiB of room" in got.out


def test_check_verifies_checksums(command, kept: Path) -> None:
    assert command("compile", "stories", *SMALL).code == 0
    [file] = kept.glob("*.tiles")
    stages = json.loads(command("check", "stories", "--json").out)["findings"]
    [packed] = [f for f in stages if f["stage"] == "packed"]
    assert packed["level"] == "ok" and packed["text"].startswith(f"2.8 MiB kept in {file}")
    with open(file, "r+b") as at:
        at.seek(-(2 << 20), 2)
        at.write(b"\x00\xff\x00\xff")
    got = command("check", "stories", "--json")
    assert got.code == 1
    [packed] = [f for f in json.loads(got.out)["findings"] if f["stage"] == "packed"]
    assert packed["level"] == "problem" and "1 of its matrices are damaged: " in packed["text"]
    assert "it will be made again at the next load" in packed["text"]
    assert command("check", "stories").code == 0 and file.exists()


def test_a_length_that_is_the_engines_is_the_commands(command, kept: Path) -> None:
    """The seed's defaults."""
    got = json.loads(command("compile", "stories", "--json").out)
    assert (got["max_batch_size"], got["max_model_len"]) == (32, 2560)
    assert any(known.name == "compile" for known in app.registered_commands)
