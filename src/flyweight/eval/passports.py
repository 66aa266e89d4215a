"""Measures a quality passport: perplexity and divergence on a text, and what else is requested:
types of K/V, a long context, answers to prompts.

Invariant: both models are computed with the same engine settings, and with the K/V type "auto" but
where a type is measured; one model is loaded at a time.  Writes no passport.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flyweight import __version__
from flyweight.describe import ModelDescription
from flyweight.errors import ConfigError
from flyweight.eval import divergence
from flyweight.eval.answers import PromptFile, measure_answers
from flyweight.eval.divergence import Divergence
from flyweight.eval.session import EvalListener, EvalSession
from flyweight.eval.store import StoreReader
from flyweight.eval.windows import EvalText, Window, WindowPlan
from flyweight.passport import ContextProbe, KVFigures, Passport
from flyweight.spec import KV_TYPES
from flyweight.validation.untrusted import printable
from flyweight.weights.formats import FORMATS
from flyweight.weights.hub.names import name_checkpoint

LONGEST = 8192  # tokens of the context probe; a longer one takes minutes a model
LEAST = 64


@dataclass(frozen=True, slots=True)
class MakingWords:
    """What a passport says of how a model was made, and of the command that measured it.  `method`
    is "" where nothing says it: `file_format` does not tell, GPTQ's holds weights of any method.
    """

    method: str = ""
    file_format: str = ""
    bits: float | None = None
    recipe: str = ""
    requantized_from: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class PassportPlan:
    """What to measure, and on what; `engine` are settings by name.  `kv_types` are types of K/V,
    `long_context` the tokens of the context probe (0: none), `logits` a file of the full model's
    rows (`eval kld --save`), `prompts` those whose answers are checked.
    """

    text: EvalText
    windows: WindowPlan
    engine: Mapping[str, Any] = field(default_factory=dict)
    kv_types: Sequence[str] = ()
    long_context: int = 0
    prompts: PromptFile | None = None
    logits: Path | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if "kv_cache_dtype" in self.engine:
            raise ConfigError("is fixed; measure types with kv_types", "kv_cache_dtype")
        for kind in self.kv_types:
            if kind not in KV_TYPES:
                raise ConfigError(
                    "is no type of K/V", "kv_types", value=kind, allowed=", ".join(KV_TYPES)
                )


def measure_passport(
    model: str, against: str, plan: PassportPlan, words: MakingWords, tell: EvalListener
) -> Passport:
    """Measures everything that is planned.  Raises `ConfigError` and `CheckpointError`."""
    if plan.prompts is not None:
        plan.prompts.check()  # before minutes of scoring
    candidate, full = (
        EvalSession(path, plan.text, plan.windows, plan.engine, tell) for path in (model, against)
    )
    if plan.long_context:
        count_probe_tokens(candidate, full, plan)
    if plan.prompts is not None:
        plan.prompts.make_prompts(candidate.tokenizer, candidate.longest)
    found = compare_models(candidate, full, plan, tell, plan.logits)
    made = make_passport(candidate, full, found, plan, words)
    if plan.kv_types:
        made = replace(made, kv_cache=measure_kv(model, plan, tell))
    if plan.long_context:
        made = replace(made, long_context=measure_long_context(candidate, full, plan, tell))
    if plan.prompts is not None:
        measured = measure_answers(model, plan.prompts, plan.engine, tell)
        made = replace(
            made,
            json_valid=measured.json_valid,
            tool_call_valid=measured.tool_call_valid,
            prompts_sha256=plan.prompts.digest,
        )
    return made


def describe_making(found: ModelDescription) -> MakingWords:
    """How a model's files are quantised: as its passport says, else as their tensors are, by a
    method that is not known.
    """
    said = found.quality.passport
    form = found.checkpoint.quantisation or found.checkpoint.format
    if said is not None and said.method:
        return MakingWords(said.method, form, said.bits, said.recipe, said.requantized_from)
    counts: Counter[str] = Counter()
    nbytes = 0
    for info in found.checkpoint.tensors.values():
        counts[info.kind] += prod(info.shape)
        if info.kind in FORMATS:
            nbytes += FORMATS[info.kind].count_bytes(info.shape)
    known = counts.keys() <= FORMATS.keys()
    bits = round(8 * nbytes / counts.total(), 4) if known else None
    recipe = " ".join(kind for kind, _ in counts.most_common())
    return MakingWords(file_format=form, bits=bits, recipe=recipe)


def make_passport(
    candidate: EvalSession,
    full: EvalSession,
    found: Divergence,
    plan: PassportPlan,
    words: MakingWords,
) -> Passport:
    """The passport of what was found on the text."""
    said = found.perplexity
    return Passport(
        fingerprint=candidate.fingerprint,
        against=printable(name_checkpoint(full.path)),
        against_fingerprint=full.fingerprint,
        text=printable(plan.text.name),
        text_sha256=plan.text.digest,
        tokens=said.tokens,
        context=plan.windows.context,
        stride=plan.windows.step,
        perplexity=said.value,
        perplexity_error=said.error,
        kld_mean=found.mean.mean,
        kld_mean_error=found.mean.error,
        kld_median=found.median,
        kld_p99=found.p99,
        kld_p99_9=found.p999,
        kld_max=found.most,
        top1_agreement=found.agreement.mean,
        top1_agreement_error=found.agreement.error,
        activations=candidate.settings.activations,
        method=words.method,
        file_format=words.file_format,
        bits=words.bits,
        recipe=words.recipe,
        requantized_from=words.requantized_from,
        flyweight=__version__,
        command=words.command,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def compare_models(
    candidate: EvalSession,
    full: EvalSession,
    plan: PassportPlan,
    tell: EvalListener,
    logits: Path | None = None,
) -> Divergence:
    """The candidate's divergence from the full model on the windows of both."""
    divergence.check_vocabularies(candidate, full)
    with open_rows(full, plan, tell, logits) as rows:
        return divergence.compare(candidate, rows, partial(tell.round, "scoring the model"))


@contextmanager
def open_rows(
    full: EvalSession, plan: PassportPlan, tell: EvalListener, logits: Path | None = None
) -> Iterator[StoreReader]:
    """The full model's rows: of a file of them, or computed now."""
    header = divergence.make_header(full, plan.text, plan.windows)
    with TemporaryDirectory(prefix="flyweight-eval-") as folder:
        path = logits or Path(folder) / "logits"
        if logits is None:
            divergence.record(full, header, path, partial(tell.round, "scoring the full model"))
        with closing(StoreReader(path)) as rows:
            rows.header.check(header, path)
            yield rows


def measure_kv(model: str, plan: PassportPlan, tell: EvalListener) -> dict[str, KVFigures]:
    """The model with each type of K/V against itself with the type "auto"."""
    own = EvalSession(model, plan.text, plan.windows, plan.engine, tell)
    figures: dict[str, KVFigures] = {}
    with open_rows(own, plan, tell) as rows:
        for kind in plan.kv_types:
            engine = {**plan.engine, "kv_cache_dtype": kind}
            session = EvalSession(model, plan.text, plan.windows, engine, tell)
            said = partial(tell.round, f"scoring with K/V in {kind}")
            found = divergence.compare(session, rows, said)
            figures[kind] = KVFigures(
                kld_mean=found.mean.mean,
                kld_p99_9=found.p999,
                top1_agreement=found.agreement.mean,
                tokens=found.perplexity.tokens,
                context=plan.windows.context,
            )
    return figures


def measure_long_context(
    candidate: EvalSession, full: EvalSession, plan: PassportPlan, tell: EvalListener
) -> ContextProbe:
    """The last quarter of one window.  Raises `ConfigError`."""
    length = count_probe_tokens(candidate, full, plan)
    long = replace(plan, windows=WindowPlan(length, None, length))
    sessions = [
        EvalSession(str(one.path), long.text, long.windows, long.engine, tell)
        for one in (candidate, full)
    ]
    for session in sessions:
        first = session.windows[0].tokens
        session.windows = [Window(first, len(first) // 4)]
    found = compare_models(sessions[0], sessions[1], long, tell)
    return ContextProbe(
        context=length,
        tokens=found.perplexity.tokens,
        perplexity=found.perplexity.value,
        kld_mean=found.mean.mean,
        top1_agreement=found.agreement.mean,
    )


def count_probe_tokens(candidate: EvalSession, full: EvalSession, plan: PassportPlan) -> int:
    """The context of the probe: as long as planned, and as both models and the text allow.  Raises
    `ConfigError` where that is too short.
    """
    tokens = candidate.tokenizer.encode(plan.text.text, add_special=False, parse_special=False)
    room = min(candidate.longest, full.longest, len(tokens))
    length = min(plan.long_context, room)
    if length < LEAST:
        raise ConfigError(
            f"is too short; the models and the text allow {room} tokens",
            "long_context",
            value=plan.long_context,
            hint=f"nearest valid: {LEAST}",
        )
    return length
