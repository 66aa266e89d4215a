"""The share of a model's greedy answers that are as requested: JSON of a schema, or calls of
the tools that were offered.

Invariant: answers are not constrained, so that the share is the model's own; reasoning is removed
before an answer is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from flyweight.errors import ConfigError, RequestError
from flyweight.eval.session import EvalListener
from flyweight.llm import LLM
from flyweight.outputs import RequestOutput
from flyweight.params.structured import StructuredOutputs
from flyweight.passport import ValidShare
from flyweight.requests.preparing import render_conversation
from flyweight.requests.prompts import Prompt, encode_prompt
from flyweight.sampling.schema_validation import make_validator
from flyweight.text.tokenizer import Tokenizer
from flyweight.text.tools.deltas import ParsedAnswer
from flyweight.text.tools.formats import find_format, find_marks
from flyweight.text.tools.parser import AnswerFormat, AnswerParser
from flyweight.text.tools.xmlcall import read_types
from flyweight.types import SamplingParams
from flyweight.validation.untrusted import parse_object, read_bytes

MOST_BYTES = 64 << 20
MOST_PROMPTS = 10_000
MOST_TOKENS = 512  # of an answer
TOGETHER = 16  # answers between reports
KEYS = ("messages", "prompt", "tools", "schema")
Validator = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class PromptCase:
    """A conversation or a text, and what its answer is to be: a call of one of `tools`, or JSON of
    a `schema` (an object).  `where` is its line.
    """

    where: str
    messages: Sequence[Mapping[str, Any]] = ()
    prompt: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    schema: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, line: bytes, where: str) -> "PromptCase":
        """Raises `ConfigError` and `CheckpointError`."""
        found = parse_object(line, where)
        for key in found.keys() - set(KEYS):
            raise ConfigError("is unknown", where, value=key, allowed=", ".join(KEYS))
        kinds = {"messages": list, "prompt": str, "tools": list, "schema": dict}
        for key, value in found.items():
            if (not value and key != "schema") or not isinstance(value, kinds[key]):
                what = {list: "a list", str: "text", dict: "an object"}[kinds[key]]
                raise ConfigError(f"{key} is not valid", where, value=value, allowed=what)
        if ("messages" in found) == ("prompt" in found):
            raise ConfigError("needs messages or a prompt, one of them", where)
        if ("tools" in found) == ("schema" in found):
            raise ConfigError("needs tools or a schema, one of them: what is to be valid?", where)
        if "tools" in found and "prompt" in found:
            raise ConfigError("tools need messages: a chat template shows them", where)
        return cls(where, **found)

    def list_schemas(self) -> dict[str, Any]:
        """The schema of each tool's arguments, by the tool's name.  Raises `ConfigError`."""
        schemas: dict[str, Any] = {}
        for tool in self.tools:
            offered = tool.get("function") if isinstance(tool, dict) else None
            name = offered.get("name") if isinstance(offered, dict) else None
            if not isinstance(name, str) or not isinstance(offered, dict):
                raise ConfigError("tools: a function with a name is needed", self.where)
            schemas[name] = offered.get("parameters") or {}
        return schemas

    def make_validators(self) -> dict[str, Validator]:
        """What is to be valid: arguments by the names of tools, or the answer (name "")."""
        schemas = self.list_schemas() if self.schema is None else {"": self.schema}
        return {name: self._make_validator(schema) for name, schema in schemas.items()}

    def _make_validator(self, schema: Any) -> Validator:
        try:
            return make_validator(StructuredOutputs(json=schema))
        except RequestError as error:
            if error.code == "not_installed":
                raise ConfigError(
                    "needs jsonschema-rs", "prompts", hint="install flyweight[validate]"
                ) from None
            raise ConfigError(f"has a schema that is not valid: {error}", self.where) from None


@dataclass(frozen=True, slots=True)
class PromptFile:
    """Cases of a file of JSON lines, and the start of its SHA-256."""

    cases: Sequence[PromptCase]
    digest: str

    @classmethod
    def read(cls, path: Path) -> "PromptFile":
        """Raises `ConfigError` and `CheckpointError`, which name the line."""
        raw = read_bytes(path, MOST_BYTES)
        lines = [(i, line) for i, line in enumerate(raw.splitlines(), 1) if line.strip()]
        if not 0 < len(lines) <= MOST_PROMPTS:
            raise ConfigError(
                f"has {len(lines)} lines", "prompts", value=str(path),
                allowed=f"1 to {MOST_PROMPTS}",
            )  # fmt: skip
        cases = [PromptCase.read(line, f"{path}: line {i}") for i, line in lines]
        return cls(cases, sha256(raw).hexdigest()[:16])

    def check(self) -> None:
        """Raises `ConfigError` for a schema that cannot be checked."""
        for case in self.cases:
            case.make_validators()

    def make_prompts(self, tokenizer: Tokenizer, longest: int) -> list[Prompt]:
        """What a model of at most `longest` tokens is given.  Raises `ConfigError`, which names
        the line.
        """
        return [make_prompt(tokenizer, case, longest) for case in self.cases]


@dataclass(frozen=True, slots=True)
class AnswerShares:
    """None where no prompt requests it."""

    json_valid: ValidShare | None
    tool_call_valid: ValidShare | None


def measure_answers(
    model: str, prompts: PromptFile, engine: Mapping[str, Any], tell: EvalListener
) -> AnswerShares:
    """Answers every prompt with at most `MOST_TOKENS` tokens.  Raises `ConfigError` for a prompt
    that the model cannot have.
    """
    options: dict[str, Any] = {"max_num_seqs": TOGETHER, **engine}
    cases = prompts.cases
    valid: dict[bool, list[bool]] = {True: [], False: []}
    with LLM(model, notify=tell, **options) as llm:
        texts = prompts.make_prompts(llm.tokenizer, llm.loaded.limits.max_model_len)
        for i in range(0, len(cases), TOGETHER):
            tell.round("answering prompts", i, len(cases))
            part = cases[i : i + TOGETHER]
            params = [
                SamplingParams(
                    temperature=0, max_tokens=MOST_TOKENS, skip_special_tokens=not case.tools
                )
                for case in part
            ]
            answers = llm.generate(texts[i : i + TOGETHER], params, use_tqdm=False)
            for case, answer in zip(part, answers, strict=True):
                valid[bool(case.tools)].append(is_valid(llm, case, answer))
        tell.round("answering prompts", len(cases), len(cases))
    shares = [
        ValidShare(valid=sum(found), total=len(found)) if found else None
        for found in (valid[False], valid[True])
    ]
    return AnswerShares(*shares)


def make_prompt(tokenizer: Tokenizer, case: PromptCase, longest: int) -> Prompt:
    """What the model is given.  Raises `ConfigError`."""
    try:
        if case.prompt:
            ids = encode_prompt(tokenizer, case.prompt, longest)
            made = {"prompt": case.prompt, "prompt_token_ids": ids}
        else:
            tools = case.tools or None
            made = render_conversation(tokenizer, case.messages, tools=tools, longest=longest)
    except RequestError as error:
        raise ConfigError(f": {error}", case.where) from None
    count, most = len(made["prompt_token_ids"]), longest - 1
    if not 0 < count <= most:
        raise ConfigError(f": the prompt has {count} tokens", case.where, allowed=f"1 to {most}")
    return made


def is_valid(llm: LLM, case: PromptCase, answer: RequestOutput) -> bool:
    """Whether an answer is finished, and as requested."""
    output = answer.outputs[0]
    if output.finish_reason != "stop":
        return False
    validators = case.make_validators()
    template = llm.tokenizer.marks.fullest_template
    marks = find_marks("auto", template)
    opened = marks is not None and marks.find_open_reasoning(answer.prompt or "", None) is not None
    calls = find_format("auto", template) if case.tools else None
    types = {name: read_types(schema) for name, schema in case.list_schemas().items()}
    typed = types if calls is not None and calls.tagged else {}
    form = AnswerFormat(calls, frozenset(types), None, marks, opened, typed)
    reader = AnswerParser(form)
    parsed = ParsedAnswer.of([*reader.push(output.text), *reader.finish()])
    if not case.tools:
        return validators[""](parsed.content)
    return bool(parsed.calls) and all(
        call.name in validators and validators[call.name](call.arguments) for call in parsed.calls
    )
