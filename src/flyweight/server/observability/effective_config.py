"""The effective configuration: each feature that can be requested, what is in effect and why, and
what it has done.

Invariant: the facts of a feature are those that the engine reports.  An enabled feature that has
had no effect after `PATIENCE` sequences is warned of once, and marked until it has.
"""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, fields
from typing import Any

from flyweight.arguments.draft import DEFAULT, SettingRequests
from flyweight.config import Settings
from flyweight.describe import (
    EXTERNAL_CACHE_OPTIONS,
    describe_activations,
    describe_external_cache,
    describe_kernels,
    describe_scheduler,
)
from flyweight.plan.memory import format_size
from flyweight.server.chat_format import ChatFormat
from flyweight.server.observability.counters import FIELDS, ServerCounters
from flyweight.server.observability.features import FeatureRow, list_request_rows
from flyweight.server.observability.model_summary import ModelSummary
from flyweight.server.settings import ServerSettings
from flyweight.validation.replicas import find_replica_option
from flyweight.weights.packed.shape import CompiledShape

PATIENCE = 100  # sequences that end before a feature without effect is reported
ENDED = "speculation: a failure ended drafting for all requests; the log names it"


class EffectiveConfiguration:
    """Of one server; `facts` are what the engine was built as."""

    def __init__(
        self,
        settings: Settings,
        server: ServerSettings,
        requests: SettingRequests,
        facts: Mapping[str, Any],
        summary: ModelSummary,
    ) -> None:
        self.settings, self.server, self.facts = settings, server, facts
        self.summary, self.requests = summary, requests
        computed = _list_steps(settings, server, requests, facts)
        built = _list_build(settings, server, requests, facts, summary)
        compiled = _list_compiled(facts)
        shared = list_request_rows(server, requests, facts)
        quality = _list_quality(settings, requests, summary)
        known = (*computed, *shared, *quality, *built, *compiled)
        known_rows = {(one.requested, one.effective) for one in known}  # have a row already
        noted = [FeatureRow(*astuple(request)) for request in requests.noted]
        self.noted = tuple(
            feature for feature in noted if (feature.requested, feature.effective) not in known_rows
        )
        self.features: tuple[FeatureRow, ...] = ()
        self._know(*known, *self.noted)
        self.warned: set[str] = set()
        self._due = PATIENCE

    def add_chat_format(self, chat_format: ChatFormat) -> None:
        """Adds how tool calls and reasoning are distinguished from text."""
        self._know(*self._known, *_list_parsers(chat_format, self.server, self.requests))

    def _know(self, *known: FeatureRow) -> None:
        """All features, and a row for each option that none of them covers."""
        self._known = known
        known_rows = [f", {feature.requested}, " for feature in known]
        plain = [request for request in self.requests.plain
                 if not any(f", {request.requested}, " in one for one in known_rows)]  # fmt: skip
        self.features = (
            *known,
            *(FeatureRow(one.feature, one.requested, one.effective, one.reason) for one in plain),
        )

    def note(self, counts: ServerCounters) -> list[str]:
        """Warnings that are new with a step.  Costs a comparison where there are none due."""
        ended = counts.totals["finished"]
        if ended < self._due:
            return []
        self._due = ended + PATIENCE
        found = [f for f in self.features if _idle(f, counts) and f.name not in self.warned]
        self.warned.update(f.name for f in found)
        return [f"{f.name} is on and has had no effect: {ended} sequences have ended, "
                f"0 {f.counts}" for f in found]  # fmt: skip

    def document(self, counts: ServerCounters) -> dict[str, Any]:
        """For GET /v1/engine/effective."""
        rows = [_row(feature, counts) for feature in self.features]
        totals = counts.totals
        ended = [ENDED] if totals.drafting_ended else []
        limits = {
            known.name: getattr(self.server, known.name)
            for known in fields(ServerSettings)
            if known.type in (int, float) and known.name != "port"
        }
        return {
            "object": "engine.effective",
            "model": self._model(),
            "features": rows,
            "limits": limits,
            "requests": {"begun": totals["requests"]},
            "sequences": {"finished": totals["finished"], "aborted": totals["aborted"]},
            "speculation": {
                "drafts": totals["drafts"],
                "draft_tokens": totals["proposed"],
                "accepted_tokens": totals["accepted"],
                "speedup": totals.draft_speedup,
                "ended": totals.drafting_ended,
            },
            "warnings": [row["warning"] for row in rows if row["warning"]] + ended,
        }

    def _model(self) -> dict[str, Any]:
        summary = self.summary
        return {
            "family": summary.family,
            "parameters": summary.parameters,
            "quantisation": summary.quantisation,
            "method": summary.method,
            "format": summary.format,
            "max_model_len": self.facts["max_model_len"],
        }


def _row(feature: FeatureRow, counts: ServerCounters) -> dict[str, Any]:
    row: dict[str, Any] = {
        "feature": feature.name,
        "requested": feature.requested,
        "effective": feature.effective,
        "reason": feature.reason,
        "counter": None,
        "warning": None,
    }
    if feature.counter:
        row["counter"] = {"counts": feature.counts, "value": _value(feature, counts)}
    ended = counts.totals["finished"]
    if _idle(feature, counts) and ended >= PATIENCE:
        row["warning"] = f"{feature.name}: no effect in {ended} sequences"
    return row


def _value(feature: FeatureRow, counts: ServerCounters) -> int:
    own = feature.counter not in FIELDS
    found: int = getattr(counts, feature.counter) if own else counts.totals[feature.counter]
    return found


def _idle(feature: FeatureRow, counts: ServerCounters) -> bool:
    return feature.expected and _value(feature, counts) == 0


def _list_steps(
    settings: Settings, server: ServerSettings, requests: SettingRequests, facts: Mapping[str, Any]
) -> Iterator[FeatureRow]:
    """What the engine does with requests; each has a counter."""
    caching = bool(facts["prefix_caching"])
    yield FeatureRow(
        "prefix caching", requests.of("enable-prefix-caching"), "on" if caching else "off",
        "prompts with equal beginnings share K/V blocks; answers are the same, bit for bit"
        if caching else "switched off; every prompt is computed whole",
        "cached", "prompt tokens found in it", expected=caching,
    )  # fmt: skip
    chunking = requests.of("enable-chunked-prefill", "long-prefill-token-threshold")
    yield FeatureRow(
        "chunked prefill", chunking, "always",
        f"a step has at most {facts['max_num_batched_tokens']} tokens, and fewer where it would "
        f"take longer than {server.target_step_time:g} s",
        "chunked", "prompts computed in several steps", expected=chunking != DEFAULT,
    )  # fmt: skip
    yield FeatureRow(
        "batching", requests.of("max-num-seqs", "scheduler"), settings.scheduler,
        f"up to {facts['max_num_seqs']} sequences share a step; "
        f"{describe_scheduler(settings.scheduler)}",
        "shared", "steps of several",
    )  # fmt: skip
    yield FeatureRow(
        "prefill-only steps", requests.of("max-prefill-delay"), "adaptive",
        "every second step, while decodes would delay prompts by more than "
        f"{server.max_prefill_delay:g} s", "prefill_only", "steps that decodes skipped",
    )  # fmt: skip
    drafts = settings.speculation
    yield FeatureRow(
        "speculation", requests.of("speculative-config"), drafts.method if drafts else "off",
        f"{drafts.describe()}; {drafts.promise}"
        if drafts else "not requested",
        "accepted", "draft tokens accepted", expected=drafts is not None,
    )  # fmt: skip
    most = server.max_priority
    yield FeatureRow(
        "scheduling", requests.of("scheduling-policy", "max-priority"),
        "priority" if most else "fcfs",
        f"lower priorities go first, from {-most}; then in the order of arrival"
        if most else "in the order of arrival; a priority other than 0 is refused",
    )  # fmt: skip
    adapters = len(settings.adapters)
    yield FeatureRow(
        "LoRA", requests.of("lora-modules", "enable-lora"),
        f"{adapters} loaded" if adapters else "off",
        "adapters are models of their own names, and share steps" if adapters else "not requested",
        "adapted", "requests for an adapter", expected=adapters > 0,
    )  # fmt: skip
    yield FeatureRow(
        "structured output", DEFAULT, "always",
        "what a schema or grammar does not allow is masked before a token is drawn",
        "constrained", "requests with a grammar",
    )  # fmt: skip
    yield FeatureRow(
        "preemption", DEFAULT, "always",
        "without free blocks the youngest sequence waits, and is computed again",
        "preempted", "sequences preempted",
    )  # fmt: skip


def _list_parsers(
    chat_format: ChatFormat, server: ServerSettings, requests: SettingRequests
) -> Iterator[FeatureRow]:
    """How an answer is read."""
    detected, requested = "as in the chat template", "requested"
    calls, marks = chat_format.calls, chat_format.reasoning
    own = "the operator's" if server.chat_template else "the model's"
    reads = ", ".join(sorted(chat_format.reads or ())) or "nothing"
    yield FeatureRow(
        "chat template", requests.of("chat-template"), "none" if chat_format.plain else own,
        "messages as plain text; tools, documents and switches have no effect, and are refused"
        if chat_format.plain else f"reads {reads} and the messages; other switches are refused",
    )  # fmt: skip
    why = detected if server.tool_call_parser == "auto" else requested
    active = "off" if calls is None else calls.trigger or "JSON"
    if calls is not None and not chat_format.shows_tools:
        active, why = f"{active}, where required", "the chat template shows the model no tools"
    yield FeatureRow(
        "tool calls", requests.of("tool-call-parser", "enable-auto-tool-choice"), active, why,
        "offered", "chats with tools",
        expected=calls is not None and server.tool_call_parser != "auto",
    )  # fmt: skip
    yield FeatureRow(
        "reasoning", requests.of("reasoning-parser"),
        "off" if marks is None else f"{marks.opening} to {marks.closing}",
        detected if server.reasoning_parser == "auto" else requested,
        "reasoned", "chats whose reasoning was parsed",
    )  # fmt: skip


def _list_quality(
    settings: Settings, requests: SettingRequests, summary: ModelSummary
) -> Iterator[FeatureRow]:
    """What the model's passport says, where a limit was requested."""
    if settings.max_kld is not None and summary.quality.passport is not None:
        yield FeatureRow(
            "quality", requests.of("max-kld"),
            f"mean KLD {summary.quality.passport.kld_mean:.4g}",
            "as the model's passport says; a model above the limit is refused",
        )  # fmt: skip


def _list_build(
    settings: Settings, server: ServerSettings, requests: SettingRequests,
    facts: Mapping[str, Any], summary: ModelSummary,
) -> Iterator[FeatureRow]:  # fmt: skip
    """What was decided when the engine was built."""
    if summary.method:
        yield FeatureRow(
            "quantised weights", requests.of("quantization"),
            f"{summary.method}: {summary.stored}", describe_kernels(summary.opened),
        )  # fmt: skip
    yield FeatureRow(
        "activations", requests.of("activations", "dtype"), settings.activations,
        describe_activations(settings.activations),
    )  # fmt: skip
    yield FeatureRow(
        "K/V cache",
        requests.of(
            "kv-cache-dtype", "block-size", "num-gpu-blocks-override", "kv-cache-memory-bytes"
        ),
        f"{facts['blocks']} blocks of {facts['block_size']} tokens in {facts['kv_dtype']}",
        "requested" if settings.blocks or settings.kv_cache_memory_bytes
        else "as many as can be used and fit in memory",
    )  # fmt: skip
    yield FeatureRow(
        "external prefix cache", requests.of(*EXTERNAL_CACHE_OPTIONS),
        describe_external_cache(settings, bool(find_replica_option(server))),
        "blocks of K/V outlive the process, or the K/V cache", "external_hits",
        "prompt tokens found there",
    )  # fmt: skip
    share = facts["kv_sample"]
    yield FeatureRow(
        "K/V residency", requests.of("kv-cache-metrics", "kv-cache-metrics-sample"),
        f"{share:.3g} of the blocks" if share else "off",
        "/metrics reports how long blocks stay" if share else "not requested",
        "evicted", "blocks evicted, timed or not",
    )  # fmt: skip
    length = facts["max_model_len"]
    if settings.max_model_len is not None:
        why = "requested"
    else:
        whole = length >= summary.context
        why = "the model's maximum" if whole else f"of {summary.context}, as memory allows"
    yield FeatureRow("context", requests.of("max-model-len"), f"{length} tokens", why)
    memory = facts["memory"]
    yield FeatureRow(
        "memory", requests.of("memory-limit", "gpu-memory-utilization"),
        f"{format_size(memory['need'])} of {format_size(memory['limit'])}{facts['spread']}",
        f"limit {settings.memory_limit}"
        + (" of the memory that cgroups allow" if "%" in str(settings.memory_limit) else ""),
    )  # fmt: skip
    yield FeatureRow(
        "threads", requests.of("threads"), f"{facts['threads']}{facts['spread']}",
        "requested" if settings.threads else "the cores this process may use",
    )  # fmt: skip
    yield FeatureRow(
        "instruction set", DEFAULT, facts["isa"],
        "FLYWEIGHT_ISA" if settings.isa else "the best of this machine",
    )  # fmt: skip
    yield FeatureRow(
        "API key", requests.of("api-key", "api-key-file", "insecure"),
        "required" if server.needs_key else "none", _describe_keys(server),
    )  # fmt: skip


def _list_compiled(facts: Mapping[str, Any]) -> Iterator[FeatureRow]:
    """What `flyweight compile` prepared the weights for, if it did."""
    shape = CompiledShape.of(facts.get("compiled"))
    if shape is not None:
        yield FeatureRow(
            "compiled shape", DEFAULT, str(shape),
            "the limits given to flyweight compile; requests beyond them are served and counted",
            "outside_shape", "limits exceeded by requests",
        )  # fmt: skip


def _describe_keys(server: ServerSettings) -> str:
    """The accepted keys; those in files may change, so they are not counted."""
    if not server.needs_key:
        return "only this machine is served" if server.local else "--insecure"
    given = [f"{len(server.keys)} accepted"] if server.keys else []
    files = ["those in --api-key-file, read again on SIGHUP"] if server.key_files else []
    return " and ".join(given + files)
