"""What a user chooses about `flyweight quantize`, and the dicts other tools spell it with.

Invariant: every value is checked against its range here; unknown and contradictory keys are
refused.  Knows no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flyweight.config import whole
from flyweight.errors import ConfigError, nearest
from flyweight.quantize.method import MethodSettings
from flyweight.quantize.methods import METHODS, MethodKind, find_method, resolve_method
from flyweight.quantize.precision import Precision

LEAST_GROUP = 8
USUAL_TYPES = {2: "Q2_K", 3: "Q3_K_M", 4: "Q4_K_M", 8: "Q8_0"}  # by bits
FORMATS = ("gguf", "gptq", "awq", "compressed-tensors", "bitsandbytes", "hqq")


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """Options by their names on the command line; None: the method's default.

    `group_size` -1 is a scale a row; `symmetric` grids have no zero points; `act_order` quantises
    columns with large inputs first; `damping` is GPTQ's share of the mean diagonal, `alpha` is
    SmoothQuant's share of what moves into weights.  `type` names a recipe of GGUF's types, whose
    columns are `weighed` by the inputs of a calibration; `target_size` (bytes) and `max_kld` (nats
    a token) choose a type for each matrix instead.  `imatrix` is a file of importance, in place of
    a calibration.  `method` is by default "gptq" where types are chosen, which needs a calibration
    anyway, else "rtn".
    """

    method: str = ""
    bits: int | None = None
    group_size: int | None = None
    format: str | None = None
    type: str | None = None
    symmetric: bool | None = None
    act_order: bool = False
    damping: float = 0.01
    alpha: float | None = None
    layer_precision: str | None = None
    samples: int = 128
    length: int = 512
    requantize: bool = False
    weighed: bool = False
    target_size: int | None = None
    max_kld: float | None = None
    imatrix: str | None = None

    def __post_init__(self) -> None:
        if not self.method:
            object.__setattr__(self, "method", "gptq" if self.mixed else "rtn")
        self._check_choices()
        self._check_unused()
        self._check_budget()
        unweighed = self.container != "gguf" or self.mixed or bool(self.kind.needs)
        if self.imatrix is not None and unweighed:
            raise ConfigError(
                "weighs the types of a GGUF file's recipe", "imatrix", value=self.imatrix,
                hint="give --type, without --target-size and --max-kld, and --method rtn",
            )  # fmt: skip
        if self.group_size is not None and self.group_size != -1:
            whole("group_size", self.group_size, LEAST_GROUP)
        whole("samples", self.samples, 1, 1 << 16)
        whole("length", self.length, 2, 1 << 17)
        _check_share("damping", self.damping, self.damping != 0 and self.damping != 1)
        if self.alpha is not None:
            _check_share("alpha", self.alpha)

    def _check_choices(self) -> None:
        """Bits, format and type are among those of the method."""
        kind = self.kind
        if self.bits is not None and (self.bits not in kind.bits or isinstance(self.bits, bool)):
            raise ConfigError(
                f"is not supported by method {self.method}", "bits", value=self.bits,
                allowed=", ".join(map(str, sorted(kind.bits))),
                hint=f"nearest valid: {_find_nearest(self.bits, kind.bits)}",
            )  # fmt: skip
        if self.container not in kind.formats:
            raise ConfigError(
                f"is not supported by method {self.method}", "format", value=self.container,
                allowed=", ".join(kind.formats) + nearest(str(self.container), kind.formats),
            )  # fmt: skip
        if self.act_order and self.container != "gptq":
            raise ConfigError(
                "cannot be stored by this format", "act_order", value=True,
                hint="nearest valid: --method gptq --format gptq",
            )  # fmt: skip
        if self.type is not None and self.container != "gguf":
            raise ConfigError(
                f"is a type of gguf, not of {self.container}", "type", value=self.type
            )

    def _check_unused(self) -> None:
        """Options that would change nothing are refused."""
        of_method = {"damping": ("gptq",), "alpha": ("smoothquant", "int8-static")}
        for name, methods in of_method.items():
            if self._is_given(name) and self.method not in methods:
                raise ConfigError(
                    f"is not used by method {self.method}", name, value=getattr(self, name),
                    hint=f"leave it out, or give --method {methods[0]}",
                )  # fmt: skip
        if self.container != "gguf":
            return
        for name in ("group_size", "symmetric"):
            if self._is_given(name):
                raise ConfigError(
                    "does not apply to format gguf, whose types have grids of their own", name,
                    value=getattr(self, name), hint="leave it out, or give another --format",
                )  # fmt: skip
        chosen = next(
            (n for n in ("type", "target_size", "max_kld") if getattr(self, n) is not None), None
        )
        if self.bits is not None and chosen is not None:
            raise ConfigError(
                f"cannot be combined with {chosen}, which decides the bits", "bits",
                value=self.bits, hint=f"leave out bits or {chosen}",
            )  # fmt: skip

    def _is_given(self, name: str) -> bool:
        """Whether an option differs from its default."""
        return bool(getattr(self, name) != type(self).__dataclass_fields__[name].default)

    @property
    def method_settings(self) -> MethodSettings:
        return MethodSettings(self.act_order, self.damping, self.alpha)

    def _check_budget(self) -> None:
        """Budgets choose GGUF's types, and exclude each other."""
        given = {"target_size": self.target_size, "max_kld": self.max_kld}
        named = [name for name, value in given.items() if value is not None]
        for name in named:
            if self.container != "gguf" or self.type is not None:
                raise ConfigError(
                    "chooses the types of a GGUF file", name, hint="leave out --type and --format"
                )
            if not float(given[name] or 0) > 0:
                raise ConfigError("is not valid", name, value=given[name], allowed="above 0")
        if len(named) == 2:
            raise ConfigError("cannot be combined with max_kld", "target_size")
        if named and self.layer_precision is not None:
            raise ConfigError(
                f"cannot be combined with {named[0]}, which chooses the types of all layers",
                "layer_precision", value=self.layer_precision,
                hint=f"leave out layer_precision or {named[0]}",
            )  # fmt: skip

    @property
    def mixed(self) -> bool:
        """Whether each matrix gets a type of its own."""
        return self.target_size is not None or self.max_kld is not None

    def list_words(self) -> list[str]:
        """The options that differ from the usual ones, as on the command line; files without their
        folders.  `weighed` is none: `--calibration` sets it.
        """
        words = ["--method", self.method]
        for known in fields(self):
            value = getattr(self, known.name)
            name = known.name.replace("_", "-")
            if known.name == "imatrix" and value is not None:
                value = Path(value).name
            if known.name == "symmetric" and value is not None:
                words.append("--sym" if value else "--asym")
            elif known.name not in ("method", "symmetric", "weighed") and value != known.default:
                words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return words

    @property
    def kind(self) -> MethodKind:
        return find_method(self.method)

    @property
    def needs(self) -> str:
        """What is needed of calibration: of GGUF's types the importance of columns, if anything."""
        measured = self.container == "gguf" and self.imatrix is None and self.knows_importance
        return self.kind.needs or ("range" if measured else "")

    @property
    def takes_calibration(self) -> bool:
        """Whether a calibration would change the result."""
        return bool(self.kind.needs) or (self.container == "gguf" and self.imatrix is None)

    @property
    def knows_importance(self) -> bool:
        """Whether the importance of columns weighs errors of GGUF's types."""
        measured = self.weighed or self.mixed or bool(self.kind.needs)
        return measured or self.imatrix is not None

    @property
    def container(self) -> str:
        chosen = self.type or self.target_size is not None or self.max_kld is not None
        return self.format or ("gguf" if chosen else self.kind.formats[0])

    @property
    def recipe(self) -> str:
        """The name of GGUF's types."""
        return self.type or USUAL_TYPES[self.bits or self.kind.bits[0]]

    @property
    def precision(self) -> Precision:
        """What a matrix becomes where no layer says otherwise."""
        kind = self.kind
        symmetric = kind.symmetric if self.symmetric is None else self.symmetric
        group = kind.group if self.group_size is None else self.group_size
        return Precision(self.bits or kind.bits[0], group, symmetric, kind.activations)


# The keys of GPTQModel's, AutoAWQ's and JSON configs, by ours.
SPELLINGS = {
    "bits": "bits", "w_bit": "bits", "wbits": "bits", "num_bits": "bits",
    "group_size": "group_size", "q_group_size": "group_size", "groupSize": "group_size",
    "sym": "symmetric", "symmetric": "symmetric",
    "desc_act": "act_order", "actOrder": "act_order", "act_order": "act_order",
    "damp_percent": "damping", "dampPercent": "damping",
    "method": "method", "quant_method": "method", "format": "format",
}  # fmt: skip
TYPES = {"int2": 2, "int3": 3, "int4": 4, "int8": 8}  # of the key `type`
UNCHANGED = {"version": ("gemm", "GEMM")}  # keys whose one value is what is done anyway
# Keys that only one tool has: its dicts do not name the method.
TOOL_KEYS = {
    "w_bit": "awq", "q_group_size": "awq", "version": "awq",
    "desc_act": "gptq", "damp_percent": "gptq",
}  # fmt: skip


def read_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a `quant_config` dict, or of JSON with one under `quantization`; keys that only
    AutoAWQ or GPTQModel has name the method where no key does.  Raises `ConfigError` for unknown
    and contradictory keys.
    """
    inner = given.get("quantization", given)
    if not isinstance(inner, Mapping):
        raise ConfigError("an object expected", "quantization", value=inner)
    found: dict[str, tuple[str, Any]] = {}
    for key, value in inner.items():
        if key == "zero_point":
            _take(found, "symmetric", key, not _read_flag(key, value))
        elif key == "type" and value in TYPES:
            _take(found, "bits", key, TYPES[value])
        elif key in UNCHANGED and value in UNCHANGED[key]:
            continue
        elif key in SPELLINGS:
            _take(found, SPELLINGS[key], key, _convert(SPELLINGS[key], key, value))
        else:
            known = [*SPELLINGS, "zero_point", "type", *UNCHANGED]
            raise ConfigError(
                f"has an unknown key or value{nearest(str(key), known)}",
                "quant_config",
                value={key: value},
                allowed=f"keys {', '.join(sorted(known))}",
            )
    options = {name: value for name, (_, value) in found.items()}
    implied = next((method for key, method in TOOL_KEYS.items() if key in inner), None)
    return options if implied is None else {"method": implied, **options}


def _convert(name: str, key: str, value: Any) -> Any:
    if name in ("symmetric", "act_order"):
        return _read_flag(key, value)
    if name == "method":
        return resolve_method(str(value).lower())
    return value


def _check_share(name: str, value: Any, inside: bool = True) -> None:
    """Raises `ConfigError` for what is no number from 0 to 1, or not `inside` these."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1 or not inside:
        raise ConfigError("is not valid", name, value=value, allowed="a number between 0 and 1")


def _find_nearest(value: Any, allowed: Sequence[int]) -> int:
    """The allowed number nearest to a value; the first, the usual one, to what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return allowed[0]
    return min(allowed, key=lambda one: (abs(one - value), one))


def _read_flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError("is not valid", f"quant_config.{key}", value=value, allowed="true, false")
    return value


def _take(found: dict[str, tuple[str, Any]], name: str, key: str, value: Any) -> None:
    if name in found and found[name][1] != value:
        other, held = found[name]
        raise ConfigError(
            f"{key} = {_spell(value)} contradicts {other} = {_spell(held)}: both name {name}",
            "quant_config:",
        )
    found[name] = key, value


def _spell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


__all__ = ["FORMATS", "METHODS", "QuantizeOptions", "read_config"]
