"""The options of `bench serve`, under vLLM's names, with their help; and the words some take."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli.bench.options import using
from flyweight.cli.bench.refusals import DATASETS
from flyweight.config import data_folder, openai_key, whole
from flyweight.errors import ConfigError, nearest
from flyweight.untrusted import one_line

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.serving.line import Place
    from flyweight.bench.serving.session import Dataset

SIZED = ("random", "sonnet")  # whose prompts --input-len is the length of
SONNET = "prompts-sonnet/sonnet.txt"

# The server, and how it is spoken to.
Backend = Annotated[
    str,
    typer.Option(
        "--backend", "--endpoint-type", metavar="NAME",
        help="openai (completions), vllm (the same), openai-chat, llama.cpp.",
    ),
]  # fmt: skip
BaseUrl = Annotated[str | None, typer.Option(metavar="URL", help="In place of host and port.")]
Host = Annotated[str, typer.Option(metavar="ADDRESS")]
Port = Annotated[int, typer.Option(metavar="PORT")]
Endpoint = Annotated[
    str, typer.Option(metavar="PATH", help="The route. [default: the backend's own]")
]
Headers = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Sent with every request; OPENAI_API_KEY is one."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Take any certificate of an https server.")
]
SkipTemplate = Annotated[
    bool, typer.Option("--skip-chat-template", help="So it is anyway.", hidden=True)
]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Asked for, and its tokenizer used. [default: the first]"),
]
ServedName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Its name at the server, where that differs.")
]
Tokenizer = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Counts texts: a .gguf file, a folder, a file, org/name."),
]
PromptForm = Annotated[
    str,
    typer.Option(
        metavar="auto|text|ids", help="How prompts are sent; auto: text where it can be counted."
    ),
]
ReadyCheck = Annotated[
    float,
    typer.Option("--ready-check-timeout-sec", metavar="SECONDS", help="How long to wait for it."),
]
VsServer = Annotated[
    str | None,
    typer.Option("--vs", metavar="URL", help="Another server, for the same load afterwards."),
]
VsBackend = Annotated[str | None, typer.Option(metavar="NAME", help="[default: --backend's]")]
VsModel = Annotated[str | None, typer.Option(metavar="NAME", help="[default: its first]")]

# What is asked.
DatasetName = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="random, prefix_repetition, sonnet, sharegpt, custom, trace."
    ),
]
DatasetPath = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Its file, here or below FLYWEIGHT_DATA."),
]
NumPrompts = Annotated[int, typer.Option(metavar="N", help="Requests in all.")]
NoOversample = Annotated[
    bool, typer.Option("--no-oversample", help="Do not repeat prompts of a file that has fewer.")
]
DisableShuffle = Annotated[
    bool, typer.Option("--disable-shuffle", help="Take a custom file's prompts in their order.")
]
InputLen = Annotated[
    int | None, typer.Option(metavar="TOKENS", help="A prompt of random or sonnet.")
]
OutputLen = Annotated[
    int | None, typer.Option(metavar="TOKENS", help="An answer, of any data set but a trace.")
]
RandomInput = Annotated[int, typer.Option(metavar="TOKENS", help="A random prompt.")]
RandomOutput = Annotated[int, typer.Option(metavar="TOKENS", help="Its answer.")]
RandomRange = Annotated[
    str,
    typer.Option(
        metavar="RATIO",
        help='Lengths vary by so much of themselves: 0.5, or {"input": 0.6, "output": 0.3}.',
    ),
]
RandomPrefix = Annotated[int, typer.Option(metavar="TOKENS", help="Before it, the same for all.")]
RepeatedPrefix = Annotated[int, typer.Option(metavar="TOKENS")]
RepeatedSuffix = Annotated[int, typer.Option(metavar="TOKENS")]
RepeatedCount = Annotated[int, typer.Option(metavar="N", help="Prefixes that prompts share.")]
RepeatedOutput = Annotated[int, typer.Option(metavar="TOKENS")]
SonnetInput = Annotated[int, typer.Option(metavar="TOKENS")]
SonnetOutput = Annotated[int, typer.Option(metavar="TOKENS")]
SonnetPrefix = Annotated[int, typer.Option(metavar="TOKENS", help="The same lines for all.")]
ShareOutput = Annotated[
    int | None, typer.Option(metavar="TOKENS", help="[default: as long as the answer there]")
]
CustomOutput = Annotated[
    int, typer.Option(metavar="TOKENS", help="An answer; -1: each line's output_tokens.")
]
Speed = Annotated[float, typer.Option(metavar="TIMES", help="A trace's time, faster or slower.")]
TraceMost = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS", help="Leave longer requests out. [default: what the server takes]"
    ),
]

# When.
RequestTimeout = Annotated[
    float, typer.Option("--request-timeout", metavar="SECONDS", help="For a whole answer.")
]
Rate = Annotated[float, typer.Option(metavar="RPS", help="Requests a second; inf: all at once.")]
Burstiness = Annotated[
    float, typer.Option(metavar="SHAPE", help="Of the gamma distribution of gaps; 1 is Poisson's.")
]
MaxConcurrency = Annotated[int | None, typer.Option(metavar="N", help="Most requests at once.")]
Ramp = Annotated[str | None, typer.Option(metavar="linear|exponential")]
RampStart = Annotated[float | None, typer.Option(metavar="RPS")]
RampEnd = Annotated[float | None, typer.Option(metavar="RPS")]
Warmups = Annotated[int, typer.Option(metavar="N", help="Requests before it that do not count.")]
Seed = Annotated[int, typer.Option(metavar="N")]

# Fields of the body.
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Answers have their whole length.")]
Temperature = Annotated[float | None, typer.Option(metavar="T")]
TopP = Annotated[float | None, typer.Option(metavar="P")]
TopK = Annotated[int | None, typer.Option(metavar="K")]
MinP = Annotated[float | None, typer.Option(metavar="P")]
FrequencyPenalty = Annotated[float | None, typer.Option(metavar="X")]
PresencePenalty = Annotated[float | None, typer.Option(metavar="X")]
RepetitionPenalty = Annotated[float | None, typer.Option(metavar="X")]
Logprobs = Annotated[int | None, typer.Option(metavar="N")]
LoraModules = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Adapters that are asked as the model.")
]
Assignment = Annotated[
    str, typer.Option("--lora-assignment", metavar="random|round-robin", help="Whose turn it is.")
]
ExtraBody = Annotated[str | None, typer.Option(metavar="JSON", help="More fields of the body.")]
IdPrefix = Annotated[
    str | None, typer.Option("--request-id-prefix", metavar="TEXT", help="Of x-request-id.")
]

# What is told.
Metrics = Annotated[str, typer.Option(metavar="NAME,NAME", help="Shown: ttft, tpot, itl, e2el.")]
Percentiles = Annotated[str, typer.Option(metavar="P,P", help="Of each of them.")]
Goodput = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME:MS", help="Count requests that keep to ttft:MS tpot:MS e2el:MS."),
]
Label = Annotated[str | None, typer.Option(metavar="TEXT", help="Begins the result's file name.")]
SaveResult = Annotated[bool, typer.Option("--save-result", help="Write a file of the figures.")]
SaveDetailed = Annotated[
    bool, typer.Option("--save-detailed", help="With every request's own in it.")
]
AppendResult = Annotated[
    bool, typer.Option("--append-result", help="Add a line to the file in place of a new one.")
]
Metadata = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Written into the file.")
]
ResultDir = Annotated[str | None, typer.Option(metavar="FOLDER")]
ResultFile = Annotated[str | None, typer.Option(metavar="FILE")]
NoBar = Annotated[bool, typer.Option("--disable-tqdm", help="Show no progress bar.")]


def pairs(name: str, words: Sequence[str] | None) -> dict[str, str]:
    """`KEY=VALUE` words.  Raises `ConfigError`."""
    found = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key or "\n" in word or "\r" in word:
            raise ConfigError(f"{name} = {word!r}: write KEY=VALUE")
        found[key] = value
    return found


def ratios(text: str) -> tuple[float, float]:
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


def seconds(name: str, value: float) -> float:
    """Raises `ConfigError`."""
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} = {value:g} is out of range; allowed: above 0 seconds")
    return value


def waiting(value: float) -> float:
    """Raises `ConfigError`."""
    if not value >= 0:
        raise ConfigError(
            f"ready_check_timeout_sec = {value:g} is out of range; allowed: 0 seconds or more"
        )
    return value


def counts(given: Mapping[str, int | None]) -> None:
    """Raises `ConfigError`."""
    for name, value in given.items():
        if value is not None:
            whole(name, value, 1, 1 << 20)


def heard(backend: str, data: str, given: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for an option that was given and would change nothing."""
    data = data.replace("-", "_")
    second = "" if given["vs"] else "it is of the second server; give --vs URL"
    of_trace = "" if data == "trace" else f"it is of --dataset-name trace, not {data}"
    many = bool(given["lora_modules"])
    reasons = {
        "vs_backend": second,
        "vs_model": second or ("--lora-modules are asked there too" if many else ""),
        "lora_modules": "llama.cpp's /completion names no model" if backend == "llama.cpp" else "",
        "speed": of_trace,
        "trace_max_len": of_trace,
        "input_len": "" if data in SIZED else f"{data} has prompts of its own lengths",
        "output_len": "a trace has lengths of its own" if data == "trace" else "",
    }
    for name, why in reasons.items():
        if why and given[name] not in (None, []):
            raise ConfigError(f"{name} has no effect here: {why}, or leave it out")


def fields(text: str | None) -> Mapping[str, Any]:
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


def located(given: str | None, default: str = "") -> Path:
    """A data set's file: as it is named, or below FLYWEIGHT_DATA.  Raises `ConfigError`."""
    word = given or default
    if not word:
        raise ConfigError("dataset_path is needed: the file of this data set")
    path, data = Path(word).expanduser(), data_folder()
    for place in (path, *([data / word] if data else [])):
        if place.is_file() and (given or place != path):
            return place
    below = "" if data else "; FLYWEIGHT_DATA, where data sets may be, is not set"
    raise ConfigError(f"dataset_path = {word!r} is no file{below}")


def place(url: str | None, host: str, port: int, *, verified: bool = True) -> Place:
    """Raises `ConfigError`."""
    from flyweight.bench.serving.line import Place

    host = f"[{host}]" if ":" in host else host
    return Place.of(url or f"http://{host}:{port}", verified=verified)


def headers(words: Sequence[str] | None) -> dict[str, str]:
    """Those given, and the key OpenAI's clients send."""
    key = openai_key()
    found = {"authorization": f"Bearer {key}"} if key else {}
    return found | {name.lower(): value for name, value in pairs("header", words).items()}


def dataset(name: str, path: str | None, lengths: Mapping[str, tuple[Any, ...]]) -> Dataset:
    """A data set with what the options say of it, in the order of its fields.  Raises
    `ConfigError`.
    """
    from flyweight.bench.serving import datasets as sets
    from flyweight.bench.serving.traces import Trace

    name = name.replace("-", "_")
    if name in DATASETS:
        raise ConfigError(f"dataset_name = {name!r} is not taken here: {DATASETS[name]}")
    if name not in lengths:
        known = ", ".join(lengths)
        raise ConfigError(f"dataset_name = {name!r}; known: {known}{nearest(name, lengths)}")
    given = lengths[name]
    if name == "random":
        return sets.Random(*given)
    if name == "prefix_repetition":
        return sets.Prefixes(*given)
    file = located(path, SONNET if name == "sonnet" else "")
    with using("dataset_path", file):
        if name == "sonnet":
            return sets.Sonnet(sets.text_lines(file), *given)
        if name == "sharegpt":
            return sets.Conversations(sets.json_list(file), *given)
        if name == "custom":
            return sets.Custom([*sets.json_lines(file)], *given)
    return Trace(file, *given)
