"""The types that `--also` names: which there are, what is predicted of them, and their files.

Invariant: a file that is there is used again only if its passport was measured against the model.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flyweight.bench.kernels import RunListener
from flyweight.config import Settings
from flyweight.describe import INSIDE, ModelDescription
from flyweight.errors import ConfigError, nearest
from flyweight.quantization import Evaluation
from flyweight.quantize.assignment import list_quantised
from flyweight.quantize.ggml.recipes import NAMES, RECIPES, find_recipe
from flyweight.quantize.make import prepare_job
from flyweight.quantize.naming import name_output
from flyweight.quantize.options import QuantizeOptions
from flyweight.tune.files import CandidateFile, foresee_candidate
from flyweight.tune.type_maker import TypeRequest, make_apart
from flyweight.weights.hub.names import parse_hub_name
from flyweight.weights.passports import find_quality

USUAL = Evaluation(tokens=2555)  # five windows: a quarter of what `flyweight quantize` measures


@dataclass(frozen=True, slots=True)
class OtherFiles:
    """What may take the model's place: models that are there, and types that are made of it."""

    files: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    @classmethod
    def parse(cls, given: Sequence[str]) -> "OtherFiles":
        """Of words such as FILE and Q4_0,Q8_0.  Raises `ConfigError`."""
        files: dict[str, None] = {}
        types: dict[str, None] = {}
        for word in given:
            for part in [word] if is_there(word) else [x.strip() for x in word.split(",")]:
                name = _find_type(part)
                (files if name is None else types)[name or part] = None
        return cls(tuple(files), tuple(types))


@dataclass(frozen=True, slots=True)
class PlannedType:
    """A type of `model`, the path of its file, and what the file will be."""

    model: str
    name: str
    path: Path
    file: CandidateFile


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A type's file.  `seconds` it took to make and measure, 0 where it was there; `quality` in
    words.
    """

    name: str
    path: Path
    seconds: float
    quality: str


class TypeProgress(RunListener):
    """Reports under a type's name."""

    def __init__(self, name: str, tell: RunListener) -> None:
        self.name, self.tell = name, tell

    def round(self, test: str, done: int, total: int) -> None:
        self.tell.round(f"making {self.name}: {test}", done, total)


def plan_types(
    model: str, found: ModelDescription, names: Sequence[str], folder: Path
) -> list[PlannedType]:
    """Raises `ConfigError` for a model that is quantised already, and where a path is taken."""
    return [_plan_type(model, found, name, folder) for name in names]


def make_type(planned: PlannedType, tell: RunListener) -> MadeFile:
    """Makes the file and measures its loss, unless it is there.  A job that was stopped continues.
    Raises `ConfigError` where the file cannot be made.
    """
    path = planned.path
    if path.exists():
        tell.note(f"{path} is there, and is used again")
        return MadeFile(planned.name, path, 0.0, find_quality(path).describe())
    begun = time.monotonic()
    request = TypeRequest(planned.model, planned.name, str(path), USUAL)
    quality = make_apart(request, TypeProgress(planned.name, tell))
    return MadeFile(planned.name, path, time.monotonic() - begun, quality)


def is_there(word: str) -> bool:
    """Whether a word is the path of a model."""
    return bool(word) and Path(word).expanduser().exists()


def _find_type(word: str) -> str | None:
    """The name of a type, None for a model.  Raises `ConfigError` for what is neither."""
    if is_there(word) or word in INSIDE:
        return None
    with suppress(ConfigError):
        return NAMES[find_recipe(word).number]
    if parse_hub_name(word) is not None:
        return None
    raise ConfigError(
        "is neither a file nor a type" + nearest(word.upper(), RECIPES),
        "also",
        value=word,
        allowed=f"a file, a name on the Hub, or {', '.join(RECIPES)}",
    )


def _plan_type(model: str, found: ModelDescription, name: str, folder: Path) -> PlannedType:
    quantised = list_quantised(found.checkpoint, found.plan)
    if quantised:
        kind = found.checkpoint.tensors[quantised[0]].kind
        raise ConfigError(
            f"cannot be made: {found.checkpoint.path.name} is quantised already ({quantised[0]} is "
            f"{kind})", "also", value=name,
            hint="give the model it was made from, or give --also the file that `flyweight "
            f"quantize --type {name} --requantize` makes",
        )  # fmt: skip
    options = QuantizeOptions(type=name)
    path = folder / name_output(model, options)
    if path.exists():
        _check_made(path, found, name)
    job = prepare_job(Settings.of(model=model), options, None).job
    job.found.checkpoint.close()  # its pages would count as held
    return PlannedType(model, name, path, foresee_candidate(job.found, job.assignment))


def _check_made(path: Path, found: ModelDescription, name: str) -> None:
    """Raises `ConfigError` where no passport says that a file was measured against the model."""
    passport = find_quality(path).passport
    if passport is not None and passport.against_fingerprint == found.checkpoint.fingerprint:
        return
    model = found.checkpoint.path.name
    raise ConfigError(
        f"would be made at {path}, where a file is that has no passport against {model}",
        "also",
        value=name,
        hint=f"remove the file, give another --output, or --also {path} to use it as it is",
    )
