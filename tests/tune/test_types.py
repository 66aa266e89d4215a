"""Types of `--also`: how they are named, predicted, made, and used again."""

from pathlib import Path

import pytest

from flyweight.bench.kernels import RunListener
from flyweight.config import Settings
from flyweight.describe import ASSETS, ModelDescription, describe
from flyweight.errors import ConfigError
from flyweight.passport import Passport
from flyweight.quantization import Evaluation, quantize_model
from flyweight.tune import making, type_maker
from flyweight.tune.files import read_candidate
from flyweight.tune.making import OtherFiles, PlannedType, make_type, plan_types
from flyweight.tune.type_maker import TypeRequest, write_type
from flyweight.weights.passports import find_quality


class Stages(RunListener):
    """Remembers what was shown."""

    def __init__(self) -> None:
        self.rounds: list[str] = []
        self.notes: list[str] = []

    def round(self, test: str, done: int, total: int) -> None:
        self.rounds.append(test)

    def note(self, message: str) -> None:
        self.notes.append(message)


def plan(full: Path, folder: Path, name: str = "Q4_0") -> PlannedType:
    (planned,) = plan_types(str(full), describe(full), [name], folder)
    return planned


def read_passport(path: Path) -> Passport:
    passport = find_quality(path).passport
    assert passport is not None
    return passport


def test_files_and_types_are_distinguished(tmp_path: Path) -> None:
    file = tmp_path / "a,b.gguf"
    file.touch()
    found = OtherFiles.parse([str(file), "Q4_0,q8_0", "Q4_K", "org/name:Q4_0", "Q8_0", "stories"])
    assert found.files == (str(file), "org/name:Q4_0", "stories")
    assert found.types == ("Q4_0", "Q8_0", "Q4_K_M")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("Q8_O", "did you mean 'Q8_0'"),
        ("missing.gguf", "neither a file nor a type"),
        ("Q4_0,", "also = '' is neither"),
    ],
)
def test_what_is_neither_is_refused(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        OtherFiles.parse([word])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K_M", "BF16"])
def test_what_is_predicted_is_what_the_file_has(full: Path, tmp_path: Path, name: str) -> None:
    """The kinds that memory follows from, and the bytes and operations that speed does."""
    foreseen = plan(full, tmp_path, name).file
    out = tmp_path / "made.gguf"
    quantize_model(str(full), out, type=name, evaluation=Evaluation(tokens=0))
    made = read_candidate(Settings.of(model=str(out)))
    assert foreseen.kinds == made.kinds and foreseen.quality is None
    assert not foreseen.full and made.full == (name == "BF16")
    one, other = (x.make_shape("int8", "bf16") for x in (foreseen, made))
    assert dict(one.matrices) == dict(other.matrices) and one.layers == other.layers


def test_a_type_is_made_once(full: Path, tmp_path: Path, short_evaluation: None) -> None:
    stages = Stages()
    first = make_type(plan(full, tmp_path), stages)
    assert first.path == tmp_path / "full-Q4_0.gguf" and first.seconds > 0
    assert any(text.startswith("making Q4_0: layer 1") for text in stages.rounds)
    assert {path.name for path in tmp_path.iterdir()} == {"full-Q4_0.gguf"}
    passport = read_passport(first.path)
    assert passport.against_fingerprint == describe(full).checkpoint.fingerprint
    assert passport.kld_mean > 0 and "full full-Q4_0.gguf" in passport.command
    stamp = first.path.stat().st_mtime_ns
    again = make_type(plan(full, tmp_path), stages)
    assert (again.seconds, again.quality) == (0.0, first.quality)
    assert first.path.stat().st_mtime_ns == stamp
    assert stages.notes == [f"{first.path} is there, and is used again"]


def test_a_file_whose_measurement_was_stopped_is_only_measured(
    full: Path, tmp_path: Path, short_evaluation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> Passport:
        raise KeyboardInterrupt

    path = tmp_path / "full-Q4_0.gguf"
    request = TypeRequest(str(full), "Q4_0", str(path), making.USUAL)
    with monkeypatch.context() as patch:
        patch.setattr(type_maker, "measure_quality", stop)
        with pytest.raises(KeyboardInterrupt):
            write_type(request, RunListener())
    assert not path.exists()
    stages = Stages()
    make_type(plan(full, tmp_path), stages)
    assert read_passport(path).kld_mean > 0
    assert stages.rounds and not any("layer" in text for text in stages.rounds)


def test_a_file_that_cannot_be_made_is_an_error(full: Path, tmp_path: Path) -> None:
    (tmp_path / "unmeasured-full-Q4_0.gguf.partial").mkdir()
    (tmp_path / "unmeasured-full-Q4_0.gguf.partial/mine").touch()
    with pytest.raises(ConfigError, match=r"Q4_0 cannot be made: .* no job here wrote"):
        make_type(plan(full, tmp_path), RunListener())


def test_a_file_that_cannot_be_measured_is_kept(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "USUAL", Evaluation(text=str(tmp_path / "missing.txt")))
    made = make_type(plan(full, tmp_path), RunListener())
    assert made.quality.startswith("not measured: ") and made.path.is_file()
    with pytest.raises(ConfigError, match=r"no passport against full; remove the file, .*--also"):
        plan(full, tmp_path)


def test_a_file_of_another_model_is_not_taken(
    full: Path, tmp_path: Path, short_evaluation: None
) -> None:
    made = make_type(plan(full, tmp_path), RunListener()).path
    made.rename(tmp_path / "stories-Q4_0.gguf")
    other = tmp_path / "stories.gguf"
    quantize_model(str(full), other, type="BF16", evaluation=Evaluation(tokens=0))
    with pytest.raises(ConfigError, match=r"no passport against stories\.gguf"):
        plan(other, tmp_path)


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    found: ModelDescription = describe(ASSETS / "stories.gguf")
    with pytest.raises(ConfigError, match=r"also = 'Q4_0' .*is q8_0\); .*--requantize") as caught:
        plan_types("stories", found, ["Q4_0"], tmp_path)
    assert "\n" not in str(caught.value)
