"""`eval stamp`: the figures of a passport are those of `eval kld`, and answers are counted."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from plain_llama import log_probabilities

from filewriters import encode
from flyweight import LLM
from flyweight.errors import CheckpointError, ConfigError
from flyweight.eval import divergence
from flyweight.eval.answers import PromptCase, PromptFile, is_valid, measure_answers
from flyweight.eval.passports import MakingWords, PassportPlan, measure_passport
from flyweight.eval.session import EvalSession
from flyweight.eval.store import StoreReader
from flyweight.eval.windows import EvalText, WindowPlan
from flyweight.passport import ValidShare
from tiny_model import TEMPLATE, tiny_folder, tiny_tensors

EXACT = {"activations": "f32", "memory_limit": "8GiB"}
WINDOWS = WindowPlan(64, 20, 150)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class Silent:
    """A listener without effect."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with its gates rounded to sixteenths."""
    tensors = tiny_tensors()
    for name, (_, shape, raw) in tensors.items():
        if "gate_proj" in name:
            values = np.frombuffer(raw, np.float32).reshape(shape)
            tensors[name] = encode(np.round(values * 16) / 16, "f32")
    folder = tmp_path_factory.mktemp("rough") / "model"
    return tiny_folder(folder, None, tensors, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("full") / "exact")


def test_figures_are_those_of_the_divergence(
    rough: Path, full: Path, text: EvalText, tmp_path: Path
) -> None:
    plan = PassportPlan(text, WINDOWS, EXACT, kv_types=("int4", "f32"), long_context=96)
    words = MakingWords("rtn", "safetensors", 4.5, "gates only", command="a command")
    made = measure_passport(str(rough), str(full), plan, words, Silent())
    candidate, exact = (EvalSession(str(p), text, WINDOWS, EXACT) for p in (rough, full))
    divergence.record(
        exact, divergence.make_header(exact, text, WINDOWS), tmp_path / "x", Silent().round
    )
    found = divergence.compare(candidate, StoreReader(tmp_path / "x"), Silent().round)
    assert made.kld_mean == found.mean.mean > 1e-4 and made.kld_p99_9 == found.p999
    assert made.top1_agreement == found.agreement.mean < 1
    assert made.perplexity == found.perplexity.value
    assert made.perplexity_error == found.perplexity.error
    assert (made.tokens, made.context, made.stride) == (150, 64, 20)
    assert made.fingerprint == candidate.fingerprint != exact.fingerprint
    assert (made.against, made.against_fingerprint) == ("exact", exact.fingerprint)
    assert (made.text, made.text_sha256) == ("cat.txt", text.digest)
    assert (made.method, made.bits, made.command) == ("rtn", 4.5, "a command")
    assert made.file_format == "safetensors"
    assert made.kv_cache["int4"].kld_mean > 100 * made.kv_cache["f32"].kld_mean
    assert made.json_valid is None and made.tool_call_valid is None


def test_the_long_context_is_the_last_quarter(rough: Path, full: Path, text: EvalText) -> None:
    plan = PassportPlan(text, WINDOWS, {**EXACT}, long_context=10_000)
    probe = measure_passport(str(rough), str(full), plan, MakingWords(), Silent()).long_context
    assert probe is not None and (probe.context, probe.tokens) == (256, 64)
    session = EvalSession(str(rough), text, WindowPlan(256, None, 256), EXACT)
    tokens = list(session.windows[0].tokens)
    q, p = (log_probabilities(read_tensors(path), tokens)[-65:-1] for path in (rough, full))
    kl = (np.exp(p) * (p - q)).sum(-1).mean()
    assert probe.kld_mean == pytest.approx(kl, rel=0.02)  # K/V in 16 bits
    assert probe.top1_agreement == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean(), abs=0.05)


def read_tensors(path: Path) -> dict[str, Any]:
    """A folder's tensors, read without the package."""
    raw = (path / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__")
    data = raw[8 + size :]
    return {
        name: ("f32", tuple(one["shape"]), data[slice(*one["data_offsets"])])
        for name, one in header.items()
    }


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"engine": {"kv_cache_dtype": "int8"}}, "kv_cache_dtype is fixed"),
        ({"kv_types": ("int7",)}, "kv_types = 'int7' is no type of K/V; allowed: f16"),
    ],
)
def test_plans_that_are_refused(text: EvalText, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PassportPlan(text, WINDOWS, **more)


def test_a_context_that_is_too_short(rough: Path, full: Path, text: EvalText) -> None:
    plan = PassportPlan(text, WINDOWS, EXACT, long_context=10)
    with pytest.raises(ConfigError, match=r"long_context = 10 is too short; .*allow 256 tokens"):
        measure_passport(str(rough), str(full), plan, MakingWords(), Silent())


CASES = (
    {"messages": [{"role": "user", "content": "A user"}], "schema": {"type": "object"}},
    {"prompt": "{", "schema": {}},
)


def write_cases(path: Path, *cases: Any) -> Path:
    lines = [case if isinstance(case, str) else json.dumps(case) for case in cases]
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return path


def test_answers_are_counted(rough: Path, tmp_path: Path) -> None:
    """The model writes no JSON; what it ends itself is looked at."""
    prompts = PromptFile.read(write_cases(tmp_path / "p.jsonl", *CASES))
    found = measure_answers(str(rough), prompts, EXACT, Silent())
    assert found.json_valid == ValidShare(valid=0, total=2) and found.tool_call_valid is None


@pytest.fixture(scope="module")
def llm(rough: Path) -> Any:
    with LLM(str(rough), memory_limit="8GiB") as made:
        yield made


@pytest.mark.parametrize(
    ("text", "reason", "valid"),
    [
        ('{"a": 1}', "stop", True),
        ('{"a": 1}', "length", False),
        ('{"a": 1} and', "stop", False),
        ("[1]", "stop", False),
        ("", "stop", False),
    ],
)
def test_which_json_is_valid(llm: LLM, text: str, reason: str, valid: bool) -> None:
    case = PromptCase("x", prompt="a", schema={"type": "object"})
    output = SimpleNamespace(text=text, finish_reason=reason)
    assert is_valid(llm, case, SimpleNamespace(prompt="a", outputs=[output])) is valid  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('[{"name": "weather", "arguments": {"city": "Paris"}}]', True),
        ('{"name": "weather", "arguments": {"city": "Paris"}}', True),
        ('[{"name": "weather", "arguments": {"city": 5}}]', False),
        ('[{"name": "weather", "arguments": {}}]', False),
        ('[{"name": "cinema", "arguments": {"city": "Paris"}}]', False),
        ("It rains.", False),
    ],
)
def test_which_calls_are_valid(llm: LLM, text: str, valid: bool) -> None:
    case = PromptCase("x", messages=[{"role": "user", "content": "a"}], tools=[TOOL])
    output = SimpleNamespace(text=text, finish_reason="stop")
    assert is_valid(llm, case, SimpleNamespace(prompt="a", outputs=[output])) is valid  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("{", "p.jsonl: line 2: not valid JSON"),
        ({"prompt": "a"}, "line 2 needs tools or a schema"),
        ({"schema": {}}, "line 2 needs messages or a prompt"),
        ({"prompt": "a", "messages": [{}], "schema": {}}, "needs messages or a prompt, one of"),
        ({"prompt": "a", "tools": [TOOL]}, "tools need messages"),
        ({"prompt": 5, "schema": {}}, "prompt is not valid; allowed: text"),
        ({"prompt": "a", "schema": 5}, "schema is not valid; allowed: an object"),
        ({"prompt": "a", "schema": {}, "more": 1}, "line 2 = 'more' is unknown; allowed: messages"),
        ({"messages": [{}], "tools": [{}]}, "a function with a name is needed"),
        ({"prompt": "a", "schema": {"type": "nothing"}}, "has a schema that is not valid"),
    ],
)
def test_prompts_that_are_refused(tmp_path: Path, case: Any, words: str) -> None:
    path = write_cases(tmp_path / "p.jsonl", CASES[1], case)
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        PromptFile.read(path).check()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"prompts = .* has 0 lines; allowed: 1 to 10000"):
        PromptFile.read(write_cases(tmp_path / "p.jsonl"))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]},
            ": tools has no effect:",
        ),
        ({"messages": ["a"], "schema": {}}, ": messages"),
        ({"prompt": "a bird " * 400, "schema": {}}, ": prompt has "),
        ({"prompt": "a" * 300, "schema": {}}, "tokens; allowed: 1 to 255"),
    ],
)
def test_prompts_are_rendered_before_anything_is_scored(
    full: Path,
    text: EvalText,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: Any,
    words: str,
) -> None:
    """This model has no chat template, and a context of 256 tokens."""
    monkeypatch.setattr(EvalSession, "score", None)
    path = write_cases(tmp_path / "p.jsonl", CASES[1], case)
    plan = PassportPlan(text, WINDOWS, EXACT, prompts=PromptFile.read(path))
    with pytest.raises(ConfigError) as caught:
        measure_passport(str(full), str(full), plan, MakingWords(), Silent())
    assert str(caught.value).startswith(f"{path}: line 2: ") and words in str(caught.value)
