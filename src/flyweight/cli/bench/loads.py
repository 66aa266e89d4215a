"""What the values of `bench serve`'s options mean, and which do not go together."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyweight.cli.bench.options import name_errors
from flyweight.cli.bench.refusals import DATASETS
from flyweight.config import find_data_folder, read_openai_key, whole
from flyweight.errors import ConfigError, nearest
from flyweight.validation.untrusted import one_line

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.serving.connection import ServerAddress
    from flyweight.bench.serving.session import Dataset

SIZED = ("random", "sonnet")  # whose prompts --input-len is the length of
SONNET = "prompts-sonnet/sonnet.txt"


def parse_pairs(name: str, words: Sequence[str] | None) -> dict[str, str]:
    """`KEY=VALUE` words.  Raises `ConfigError`."""
    found = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key or "\n" in word or "\r" in word:
            raise ConfigError(f"{name} = {word!r}: write KEY=VALUE")
        found[key] = value
    return found


def parse_ratios(text: str) -> tuple[float, float]:
    """Of input and output lengths.  Raises `ConfigError`."""
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            found = {"input": found, "output": found}
        values = float(found.pop("input", 0)), float(found.pop("output", 0))
    except (TypeError, ValueError):
        found, values = {"?": 0}, (0.0, 0.0)
    if found or not all(0 <= value < 1 for value in values):
        raise ConfigError(
            f"random_range_ratio = {text!r}; allowed: a number of 0 to below 1, or "
            '{"input": A, "output": B}'
        )
    return values


def check_seconds(name: str, value: float) -> float:
    """Raises `ConfigError`."""
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} = {value:g} is out of range; allowed: above 0 seconds")
    return value


def check_waiting(value: float) -> float:
    """Raises `ConfigError`."""
    if not value >= 0:
        raise ConfigError(
            f"ready_check_timeout_sec = {value:g} is out of range; allowed: 0 seconds or more"
        )
    return value


def check_counts(given: Mapping[str, int | None]) -> None:
    """Raises `ConfigError`."""
    for name, value in given.items():
        if value is not None:
            whole(name, value, 1, 1 << 20)


def check_effects(backend: str, data: str, given: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for an option that was given and would change nothing."""
    data = data.replace("-", "_")
    second = "" if given["vs"] else "it is of the second server; give --vs URL"
    of_trace = "" if data == "trace" else f"it is of --dataset-name trace, not {data}"
    many = bool(given["lora_modules"])
    reasons = {
        "vs_backend": second,
        "vs_model": second or ("--lora-modules would be requested there too" if many else ""),
        "lora_modules": "llama.cpp's /completion names no model" if backend == "llama.cpp" else "",
        "speed": of_trace,
        "trace_max_len": of_trace,
        "input_len": "" if data in SIZED else f"{data} sets the prompt lengths",
        "output_len": "a trace sets the lengths" if data == "trace" else "",
    }
    for name, why in reasons.items():
        if why and given[name] not in (None, []):
            raise ConfigError(f"{name} has no effect here: {why}, or leave it out")


def parse_fields(text: str | None) -> Mapping[str, Any]:
    """A JSON object.  Raises `ConfigError`."""
    import msgspec

    if text is None:
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"extra_body is not valid JSON: {one_line(str(error))}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"extra_body = {text[:80]!r}: a JSON object is needed")
    return found


def find_data(given: str | None, default: str = "") -> Path:
    """A data set's file: as it is named, or below FLYWEIGHT_DATA.  Raises `ConfigError`."""
    word = given or default
    if not word:
        raise ConfigError("dataset_path is needed: the file of this data set")
    path, data = Path(word).expanduser(), find_data_folder()
    for place in (path, *([data / word] if data else [])):
        if place.is_file() and (given or place != path):
            return place
    below = "" if data else "; FLYWEIGHT_DATA, where data sets may be, is not set"
    raise ConfigError(f"dataset_path = {word!r} is not a file{below}")


def find_address(url: str | None, host: str, port: int, *, verified: bool = True) -> ServerAddress:
    """Raises `ConfigError`."""
    from flyweight.bench.serving.connection import ServerAddress

    host = f"[{host}]" if ":" in host else host
    return ServerAddress.of(url or f"http://{host}:{port}", verified=verified)


def make_headers(words: Sequence[str] | None) -> dict[str, str]:
    """Those given, and the key OpenAI's clients send."""
    key = read_openai_key()
    found = {"authorization": f"Bearer {key}"} if key else {}
    return found | {name.lower(): value for name, value in parse_pairs("header", words).items()}


def open_dataset(name: str, path: str | None, lengths: Mapping[str, tuple[Any, ...]]) -> Dataset:
    """A data set with what the options say of it, in the order of its fields.  Raises
    `ConfigError`.
    """
    from flyweight.bench.serving import datasets as sets
    from flyweight.bench.serving.traces import Trace

    name = name.replace("-", "_")
    if name in DATASETS:
        raise ConfigError(f"dataset_name = {name!r} is not supported: {DATASETS[name]}")
    if name not in lengths:
        known = ", ".join(lengths)
        raise ConfigError(f"dataset_name = {name!r}; known: {known}{nearest(name, lengths)}")
    given = lengths[name]
    if name == "random":
        return sets.Random(*given)
    if name == "prefix_repetition":
        return sets.Prefixes(*given)
    file = find_data(path, SONNET if name == "sonnet" else "")
    with name_errors("dataset_path", file):
        if name == "sonnet":
            return sets.Sonnet(sets.read_text_lines(file), *given)
        if name == "sharegpt":
            return sets.Conversations(sets.read_json_list(file), *given)
        if name == "custom":
            return sets.Custom([*sets.read_json_lines(file)], *given)
    return Trace(file, *given)
