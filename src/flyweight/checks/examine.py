"""EXAMINES a model: all that is wrong with its files, its words and its size, then one token.

Invariant: a fault keeps no other stage from being looked at, but those that make no sense without
what is broken; whatever the files hold, the outcome is findings.  Decides nothing about showing.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from flyweight.backends import choose_backend
from flyweight.build import open_packed_cache
from flyweight.config import Settings
from flyweight.describe import read_plan, read_spec, stop_ids
from flyweight.errors import CheckpointError, FlyweightError, RequestError
from flyweight.llm import LLM
from flyweight.model_memory import make_memory_plan, measure_needs
from flyweight.models.registry import find_family
from flyweight.plan.machine import read_machine
from flyweight.plan.memory import format_size
from flyweight.requests.preparing import read_generation_options
from flyweight.spec import ModelSpec, WeightPlan
from flyweight.text.chat import render
from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.types import SamplingParams
from flyweight.validation.untrusted import shown
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.formats import FORMATS
from flyweight.weights.gguf import read_gguf
from flyweight.weights.load import find_misfits
from flyweight.weights.survey import Progress, find_header_faults, find_value_faults

Level = Literal["ok", "warning", "problem", "skipped"]
T = TypeVar("T")

WORDS = "Hello, world! Größe 你好 🙂 1234\n\tx = 1"
USER = {"role": "user", "content": "Hello"}
TALKS = {
    "a question": [USER],
    "an answer": [USER, {"role": "assistant", "content": "Hi"}, USER],
    "a system message": [{"role": "system", "content": "Be brief."}, USER],
}
BEST = 20  # log-probabilities looked at


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look at one `stage` found, in a line."""

    stage: str
    level: Level
    text: str


class Examination:
    """`findings`, and what of the model could be had so far."""

    def __init__(self, path: Path, settings: Settings, progress: Progress | None = None) -> None:
        self.path, self.settings, self.progress = path, settings, progress
        self.findings: list[Finding] = []
        self.checkpoint: Checkpoint | None = None
        self.spec: ModelSpec | None = None
        self.plan: WeightPlan | None = None
        self.tokenizer: Tokenizer | None = None

    @property
    def problems(self) -> int:
        return sum(finding.level == "problem" for finding in self.findings)

    def run(self) -> list[Finding]:
        """Every stage, in order."""
        stages: dict[str, Callable[[], Iterator[tuple[Level, str]]]] = {
            "header": self._check_header,
            "config": self._check_config,
            "tensors": self._check_tensors,
            "values": self._check_values,
            "tokenizer": self._check_tokenizer,
            "template": self._check_template,
            "memory": self._check_memory,
            "packed": self._check_packed,
            "one token": self._check_token,
        }
        try:
            for stage, look in stages.items():
                for level, text in look():
                    plain = text.removeprefix(f"{self.path}: ").removeprefix(f"{self.path}/")
                    self.findings.append(Finding(stage, level, plain))
        finally:
            if self.checkpoint is not None:
                self.checkpoint.close()
        return self.findings

    def _check_header(self) -> Iterator[tuple[Level, str]]:
        faults = find_header_faults(self.path)
        try:
            self.checkpoint = open_checkpoint(self.path)
        except CheckpointError as error:
            faults += [str(error)] if str(error) not in faults else []
        yield from (("problem", fault) for fault in faults)
        if self.checkpoint is not None:
            infos = self.checkpoint.tensors.values()
            total = sum(FORMATS[i.kind].count_bytes(i.shape) for i in infos if i.kind in FORMATS)
            kinds = sorted({info.kind for info in infos})
            yield "ok", ", ".join([f"{len(infos)} tensors", format_size(total), *kinds])

    def _check_config(self) -> Iterator[tuple[Level, str]]:
        if self.checkpoint is None:
            yield "skipped", "the files cannot be opened"
            return
        try:
            kind = find_family(self.checkpoint.config)
            self.spec = read_spec(self.checkpoint, kind)
            self.plan = read_plan(self.checkpoint, kind, self.spec)
        except CheckpointError as error:
            yield "problem", str(error)
        try:
            read_generation_options(self.checkpoint.generation)
        except CheckpointError as error:
            yield "problem", str(error)
        if self.spec is not None:
            layers = len(self.spec.layers)
            yield "ok", f"{self.spec.family}, {layers} layers, context {self.spec.context}"
            yield from self._check_ends(self.checkpoint, self.spec)

    def _check_ends(self, checkpoint: Checkpoint, spec: ModelSpec) -> Iterator[tuple[Level, str]]:
        beyond = [i for i in checkpoint.eos_ids if i >= spec.vocab]
        if beyond:
            yield "warning", f"end ids {beyond} are outside the vocabulary of {spec.vocab}"

    def _check_tensors(self) -> Iterator[tuple[Level, str]]:
        if self.checkpoint is None or self.plan is None:
            yield "skipped", "what the model wants is not known"
            return
        found = list(find_misfits(self.checkpoint, self.plan))
        yield from (("problem", text) for text in found)
        if not found:
            yield "ok", "all present, with the expected shapes; no unused tensors"

    def _check_values(self) -> Iterator[tuple[Level, str]]:
        if self.checkpoint is None:
            yield "skipped", "the files cannot be opened"
            return
        unused = self.plan.ignored if self.plan else ()
        found = list(find_value_faults(self.checkpoint, self.progress, unused))
        yield from (("problem", text) for text in found)
        if not found:
            yield "ok", "all finite"

    def _check_tokenizer(self) -> Iterator[tuple[Level, str]]:
        try:
            self.tokenizer = load_tokenizer(self._find_vocabulary())
        except CheckpointError as error:
            yield "problem", str(error)
            return
        tokenizer = self.tokenizer
        yield "ok", f"{tokenizer.vocab_size} pieces"
        if self.spec is not None:
            yield from self._check_agreement(tokenizer, self.spec)
        try:
            back = tokenizer.decode(tokenizer.encode(WORDS, add_special=False))
        except FlyweightError as error:
            yield "problem", str(error)
            return
        if back.strip() != WORDS:
            yield "warning", f"a text does not come back as it was: {shown(back)}"

    def _check_agreement(
        self, tokenizer: Tokenizer, spec: ModelSpec
    ) -> Iterator[tuple[Level, str]]:
        """What ids mean has to be the same to the vocabulary and to the model."""
        if tokenizer.vocab_size > spec.vocab:
            yield (
                "problem",
                f"{tokenizer.vocab_size} pieces, but the model knows ids below {spec.vocab}",
            )
        beyond = [i for i in tokenizer.eos_ids if i >= spec.vocab]
        if beyond:
            yield "problem", f"its end ids {beyond} are outside the model's {spec.vocab}"
        assert self.checkpoint is not None
        if not stop_ids(self.checkpoint, tokenizer, spec):
            yield "warning", "nothing ends a text: no end id is named"

    def _find_vocabulary(self) -> Any:
        """Where the words are, even in files that cannot be opened as a model."""
        if self.checkpoint is not None:
            return self.checkpoint.tokenizer_source
        if self.path.is_dir() or self.path.suffix in (".safetensors", ".bin"):
            return self.path if self.path.is_dir() else self.path.parent
        file = read_gguf(self.path, [])
        file.file.close()
        return file.metadata

    def _check_template(self) -> Iterator[tuple[Level, str]]:
        if self.tokenizer is None:
            yield "skipped", "there is no tokenizer"
            return
        template = self.tokenizer.chat_template
        if template is None:
            yield "ok", "none: the model completes text"
            return
        fine = []
        for what, messages in TALKS.items():
            try:
                fine.append(what) if render(template, messages, self.tokenizer) else None
            except RequestError as error:
                yield "warning" if fine else "problem", f"{what}: {error}"
        if fine:
            yield "ok", f"renders {', '.join(fine)}"

    def _check_memory(self) -> Iterator[tuple[Level, str]]:
        if self.plan is None or self._is_broken("tensors"):
            yield "skipped", "what the model needs is not known"
            return
        assert self.checkpoint is not None and self.spec is not None
        here = read_machine()
        ops = choose_backend(self.settings, here.cores)
        try:
            needs = measure_needs(self.checkpoint, self.spec, self.plan, ops)
            plan = make_memory_plan(self.settings, needs, here)
        except FlyweightError as error:
            yield "problem", str(error)
            return
        context = plan.sizing.max_model_len
        yield (
            "ok",
            f"{format_size(plan.need)} of {format_size(plan.limit)} allowed, context {context}",
        )
        if context < self.spec.context and self.settings.max_model_len is None:
            yield "warning", f"the whole context of {self.spec.context} does not fit"

    def _check_packed(self) -> Iterator[tuple[Level, str]]:
        """Packed weights of an earlier start; nothing to say where there are none."""
        if self.plan is None or self._is_broken("tensors") or self.checkpoint is None:
            return
        ops = choose_backend(self.settings, read_machine().cores)
        notes: list[str] = []
        way = open_packed_cache(self.settings, self.checkpoint, self.plan, ops, notes.append)
        if way is None or not way.file.exists():
            return
        try:
            way.check()
        except (OSError, CheckpointError) as error:
            reason = getattr(error, "strerror", None) or error
            yield "problem", f"{way.file}: {reason}; it will be made again at the next load"
            return
        yield "ok", f"{format_size(way.layout.data)} kept in {way.file}, checksums match"

    def _check_token(self) -> Iterator[tuple[Level, str]]:
        if any(self._is_broken(s) for s in ("header", "config", "tensors", "tokenizer", "memory")):
            yield "skipped", "because of the problems above"
            return
        assert self.tokenizer is not None
        given = asdict(replace(self.settings, model=self.path))
        given["max_model_len"] = self.settings.max_model_len or 64
        ids = self.tokenizer.encode("Hello") or [0]
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=BEST, ignore_eos=True)
        try:
            llm = LLM(**given)
            out = llm.generate({"prompt_token_ids": ids[:8]}, params, use_tqdm=False)[0]
        except FlyweightError as error:
            yield "problem", str(error)
            return
        best = (out.outputs[0].logprobs or [{}])[0]
        odd = [one for one in best.values() if not math.isfinite(one.logprob)]
        if odd or not best:
            yield "problem", "the model's scores are not finite numbers"
            return
        yield "ok", f"{shown(out.outputs[0].text)} after {shown('Hello')}"

    def _is_broken(self, stage: str) -> bool:
        return any(f.stage == stage and f.level == "problem" for f in self.findings)
