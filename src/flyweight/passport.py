"""The quality passport of a model: figures measured on it, and what they were measured on.

A GGUF file holds it as JSON in the metadata string KEY, a folder as the file FILE.  It names the
fingerprint (`Checkpoint.fingerprint`) of the weights that were measured, which does not change when
a passport is written.  Figures of other weights count as unknown.

Invariant: a `Passport` that was read is within the limits of its fields; whatever a file holds, the
outcome is one or a `CheckpointError`.  Reads no model.
"""

import json
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from types import NoneType
from typing import Any, Self, get_args, get_origin

from flyweight.errors import CheckpointError, ConfigError
from flyweight.validation.untrusted import parse_object, printable, shown

KEY, FILE = "flyweight.passport", "flyweight_passport.json"
FORMAT = 1
MOST_BYTES = 64 << 10
LONGEST = 1000  # characters of a text
MOST_TYPES = 32  # of K/V
MOST = 1e300  # of a figure
EXACTNESS = ("int8", "bf16", "f32")  # activations, the least exact first
HIDDEN = ("command", "fingerprint", "against_fingerprint")  # not shown to clients of a server


def figure(high: float = MOST, **more: Any) -> Any:
    """A number from 0 to `high`."""
    return field(metadata={"high": high}, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidShare:
    """`valid` of `total` greedy answers."""

    valid: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextProbe:
    """The last quarter of a context of `context` tokens: `tokens` are scored there."""

    context: int
    tokens: int
    perplexity: float = figure()
    kld_mean: float = figure()
    top1_agreement: float = figure(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVFigures:
    """The model with a type of K/V, against itself with the K/V type "auto"."""

    kld_mean: float = figure()
    kld_p99_9: float = figure()
    top1_agreement: float = figure(1)
    tokens: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passport:
    """Divergences in nats a token, shares from 0 to 1, standard errors None where there was one
    window.  `text` and `against` are names without folders, `bits` are those of a weight;
    `method` is "" where it is not known.
    """

    fingerprint: str
    against: str
    against_fingerprint: str
    text: str
    text_sha256: str
    tokens: int
    context: int
    stride: int
    perplexity: float = figure()
    perplexity_error: float | None = figure(default=None)
    kld_mean: float = figure()
    kld_mean_error: float | None = figure(default=None)
    kld_median: float = figure()
    kld_p99: float = figure()
    kld_p99_9: float = figure()
    kld_max: float = figure()
    top1_agreement: float = figure(1)
    top1_agreement_error: float | None = figure(default=None)
    activations: str = ""
    method: str = ""
    file_format: str = ""
    bits: float | None = figure(default=None)
    recipe: str = ""
    requantized_from: str = ""
    flyweight: str
    command: str = ""
    date: str
    long_context: ContextProbe | None = None
    json_valid: ValidShare | None = None
    tool_call_valid: ValidShare | None = None
    prompts_sha256: str = ""
    kv_cache: Mapping[str, KVFigures] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a number that is no figure: broken weights have such."""
        for known in fields(self):
            value = getattr(self, known.name)
            if isinstance(value, float) and not 0 <= value <= MOST:
                raise ConfigError(
                    "cannot be written into a passport", known.name, value=value,
                    allowed="0 or more, finite",
                )  # fmt: skip

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Self:
        """Keys that are not known are ignored: they are of a later version.  `where` begins the
        error.  Raises `CheckpointError`.
        """
        if len(text) > MOST_BYTES:
            raise CheckpointError(f"{where}: {len(text)} bytes; at most {MOST_BYTES}")
        found: Self = read_record(cls, parse_object(text, where), where)
        return found

    def to_json(self) -> str:
        """Without fields that say nothing."""
        return json.dumps({"format": FORMAT, **self.list_fields()}, allow_nan=False)

    def list_fields(self) -> dict[str, Any]:
        """Its fields as JSON has them, without those that say nothing and may be missing."""
        kept = {f.name for f in fields(self) if f.default is f.default_factory is MISSING}
        return {
            name: value
            for name, value in asdict(self).items()
            if name in kept or value not in (None, "", {})
        }

    def summarize(self) -> dict[str, Any]:
        """What clients of a server are shown."""
        return {name: value for name, value in self.list_fields().items() if name not in HIDDEN}

    def describe(self) -> str:
        """The figures in a line."""
        error = "" if self.kld_mean_error is None else f" ± {self.kld_mean_error:.2g}"
        return printable(
            f"mean KLD {self.kld_mean:.4g}{error}, 99.9 % {self.kld_p99_9:.4g}, "
            f"same top 1 {100 * self.top1_agreement:.2f} %, perplexity {self.perplexity:.5g} "
            f"({self.tokens} tokens of {self.text}, against {self.against})"
        )


def read_record(kind: type[Any], found: object, where: str) -> Any:
    """An object of JSON as a dataclass.  Raises `CheckpointError`."""
    if not isinstance(found, dict):
        raise CheckpointError(f"{where} = {shown(found)}; an object expected")
    values: dict[str, Any] = {}
    for known in fields(kind):
        if known.name in found:
            values[known.name] = read_value(known, found[known.name], f"{where}: {known.name}")
        elif known.default is MISSING and known.default_factory is MISSING:
            raise CheckpointError(f"{where}: {known.name} is missing")
    made = kind(**values)
    if isinstance(made, ValidShare) and made.valid > made.total:
        raise CheckpointError(f"{where}: {made.valid} of {made.total} cannot be true")
    return made


def read_value(known: "Field[Any]", value: object, where: str) -> Any:
    """A value of a field's type.  Raises `CheckpointError`."""
    if get_origin(known.type) is Mapping:
        return read_kv_figures(value, where)
    kinds = get_args(known.type) or (known.type,)
    if value is None and NoneType in kinds:
        return None
    kind = kinds[0]
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return read_record(kind, value, where)
    if kind is str:
        if not isinstance(value, str) or len(value) > LONGEST or not value.isprintable():
            raise CheckpointError(
                f"{where} = {shown(value)}; up to {LONGEST} printable characters expected"
            )
        return value
    high = known.metadata.get("high", 2**53)
    allowed = (int, float) if kind is float else (int,)
    sound = isinstance(value, allowed) and not isinstance(value, bool)
    if not sound or not 0 <= value <= high or not math.isfinite(value):  # type: ignore[operator, arg-type]
        what = "a number" if kind is float else "a whole number"
        raise CheckpointError(f"{where} = {shown(value)}; {what} from 0 to {high:g} expected")
    return kind(value)


def read_kv_figures(value: object, where: str) -> dict[str, KVFigures]:
    """Figures by type of K/V.  Raises `CheckpointError`."""
    if not isinstance(value, dict) or len(value) > MOST_TYPES:
        raise CheckpointError(f"{where} = {shown(value)}; at most {MOST_TYPES} types expected")
    for name in value:
        if len(name) > LONGEST or not name.isprintable():
            raise CheckpointError(f"{where}: {shown(name)} is not the name of a type")
    return {name: read_record(KVFigures, one, f"{where}: {name}") for name, one in value.items()}


@dataclass(frozen=True, slots=True)
class QualityLimit:
    """What a model must satisfy before it is loaded: a mean KLD of at most `most`, also for its
    type of K/V (`kv_type`, "" where it is not coded).
    """

    most: float
    model: str
    kv_type: str
    activations: str


@dataclass(frozen=True, slots=True)
class Quality:
    """What is known of a model: its passport, or, where it has none that counts, why
    (`problem`, "" where it has none at all).
    """

    passport: Passport | None = None
    problem: str = ""

    @classmethod
    def of(cls, text: bytes, where: str, fingerprint: Callable[[], str]) -> "Quality":
        """Of a passport's JSON, `b""` for none, over weights with this fingerprint."""
        if not text:
            return UNKNOWN
        try:
            passport = Passport.from_json(text, where)
        except CheckpointError as error:
            return cls(problem=f"the passport is damaged: {error}")
        if passport.fingerprint != fingerprint():
            return cls(problem=f"the passport is of other weights ({where})")
        return cls(passport)

    def describe(self) -> str:
        """In a line."""
        if self.passport is not None:
            return self.passport.describe()
        return f"unknown: {self.problem or 'no passport'}"

    def check(self, limit: QualityLimit) -> None:
        """Raises `ConfigError` where the model is above the limit, or its figure is unknown."""
        again = f"flyweight eval stamp {shlex.quote(limit.model)}"
        measure = f"{again} --against FULL measures it"
        found = self.passport
        if found is None:
            why = self.problem or f"{limit.model} has no passport"
            raise refuse(limit, f"cannot be checked: {why}", measure)
        if find_exactness(found.activations) > find_exactness(limit.activations):
            why = f"the passport is of activations = {found.activations}, not {limit.activations}"
            more = f"{again} --against FULL --activations {limit.activations} measures it"
            raise refuse(limit, f"cannot be checked: {why}", more)
        if found.kld_mean > limit.most:
            why = f"is below the mean KLD of {limit.model}, {found.kld_mean:.6g}"
            raise refuse(limit, why, find_near(found.kld_mean))
        if not limit.kv_type:
            return
        measure = f"{again} --kv-cache-types {limit.kv_type} measures it"
        kept = found.kv_cache.get(limit.kv_type)
        if kept is None:
            why = f"the passport has no figure for kv_cache_dtype = {limit.kv_type}"
            raise refuse(limit, f"cannot be checked: {why}", measure)
        if kept.kld_mean > limit.most:
            why = f"is below the mean KLD of kv_cache_dtype = {limit.kv_type}, {kept.kld_mean:.6g}"
            raise refuse(limit, why, find_near(kept.kld_mean))


UNKNOWN = Quality()  # of a model without a passport


def find_exactness(activations: str) -> int:
    """The rank of a type; one that is not known is the least exact."""
    return EXACTNESS.index(activations) if activations in EXACTNESS else -1


def find_near(kld: float) -> str:
    """The least limit of three digits that a figure is within."""
    step = 10.0 ** (math.floor(math.log10(kld)) - 2)
    return f"nearest valid: {math.ceil(kld / step * (1 - 1e-12)) * step:.6g}"


def refuse(limit: QualityLimit, why: str, hint: str) -> ConfigError:
    return ConfigError(why, "max_kld", value=limit.most, hint=hint)
