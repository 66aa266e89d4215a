"""`flyweight inspect MODEL`: a model's spec, its weight plan and its memory, without loading it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.config import Settings

if TYPE_CHECKING:  # commands import what computes when they run
    from rich.table import Table

    from flyweight.describe import ModelDescription
    from flyweight.plan.memory import MemoryPlan, SlotKinds
    from flyweight.spec import ModelSpec

NUMBERED = re.compile(r"^layers\.\d+\.|\.\d+$")  # of a slot: its layer, its expert or head


@expand
def inspect(
    *,
    model: opt.Model = "stories",
    engine: Annotated[
        Values,
        opt.select_settings(
            "max_model_len",
            "memory_limit",
            "threads",
            "activations",
            "kv_cache_dtype",
            "block_size",
            "max_num_batched_tokens",
            "max_num_seqs",
            "revision",
            "offline",
        ),
    ],
    files: opt.Quantization,
    device: opt.Device,
    as_json: opt.AsJson = False,
) -> None:
    """Print a model's shape, weights and memory; read no weights."""
    settings = Settings.of(model=model, **engine, **files, **device)
    from flyweight.backends import choose_backend, read_place
    from flyweight.cli.passports import make_quality_table
    from flyweight.cli.show import make_console, make_memory_table, show_loading
    from flyweight.describe import describe, find
    from flyweight.model_memory import make_memory_plan, measure_needs
    from flyweight.passport import UNKNOWN
    from flyweight.plan.machine import read_machine
    from flyweight.text.absent import load_any_tokenizer
    from flyweight.weights.load import list_slot_kinds

    with show_loading() as listener:
        path = find(settings, listener)
    ops = choose_backend(settings, read_machine().cores)
    found = describe(path, settings.quantization, load_any_tokenizer)
    kinds = list_slot_kinds(found.checkpoint, found.plan)
    needs = measure_needs(found.checkpoint, found.spec, found.plan, ops)
    plan = make_memory_plan(settings, needs, read_place(settings, ops))
    if as_json:
        print(json.dumps(make_document(found, kinds, plan), indent=1))
        return
    console = make_console()
    tables = [make_fact_table(found), make_weight_table(found, kinds), make_memory_table(plan)]
    if found.quality != UNKNOWN:
        tables.append(make_quality_table(found.quality))
    for table in tables:
        console.print(table)


def make_document(found: ModelDescription, kinds: SlotKinds, plan: MemoryPlan) -> dict[str, Any]:
    """Everything `inspect` shows, for scripts."""
    slots = {
        slot.name: {
            "shape": slot.shape,
            "kinds": [kind for _, kind in kinds[slot.name]],
            "sources": [source.tensor for source in slot.sources],
        }
        for slot in found.plan.slots
    }
    passport = found.quality.passport
    memory = dict(plan.list_rows()) | {"need": plan.need, "limit": plan.limit}
    return {
        "path": str(found.checkpoint.path),
        "spec": asdict(found.spec),
        "quantisation": found.checkpoint.quantisation,
        "quality": passport.list_fields() if passport is not None else None,
        "quality_problem": found.quality.problem or None,
        "stop_ids": sorted(found.stop_ids),
        "tokenizer": found.tokenizer.vocab_size > 0,
        "chat_template": found.tokenizer.chat_template is not None,
        "weights": slots,
        "memory": memory,
        "max_model_len": plan.sizing.max_model_len,
    }


def make_fact_table(found: ModelDescription) -> Table:
    """The spec as a table."""
    from flyweight.cli.show import format_name, make_table
    from flyweight.validation.untrusted import printable

    spec, layer, piece = found.spec, found.spec.layers[0], found.tokenizer.piece
    rows = {
        "family": spec.family,
        "layers": f"{len(spec.layers)}, {spec.hidden} wide, inner {layer.inner} ({layer.act})",
        **list_mixture(spec),
        "heads": f"{layer.heads} query, {layer.kv.heads} K/V, {layer.head} wide"
        + (", norms on q and k" if layer.qk_norm else ""),
        **list_cache(spec),
        **list_quantisation(found),
        "vocabulary": f"{spec.vocab}" + (", tied embeddings" if spec.tie else ""),
        "context": f"{spec.context} tokens, {describe_positions(spec)}",
        "stop ids": ", ".join(f"{i} {printable(piece(i))}" for i in sorted(found.stop_ids)),
        "chat template": "yes" if found.tokenizer.chat_template else "none; completes text",
    }
    if not found.tokenizer.vocab_size:
        rows["tokenizer"] = "none in the folder; `run` and `serve` require one"
    table = make_table(format_name(found.checkpoint.path))
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def list_quantisation(found: ModelDescription) -> dict[str, str]:
    """The method of a quantised folder, and what its matrices are kept as."""
    from flyweight.server.observability.model_summary import summarize_model

    summary = summarize_model(found)
    if not summary.method:
        return {}
    return {"quantised as": f"{summary.method}: {summary.stored}"}


def list_mixture(spec: ModelSpec) -> dict[str, str]:
    """The experts of a model that has any."""
    mixed = [layer.moe for layer in spec.layers if layer.moe is not None]
    if not mixed:
        return {}
    route, shared = mixed[0].route, f", {mixed[0].shared} shared" if mixed[0].shared else ""
    return {
        "experts": f"{route.experts} of inner {mixed[0].inner}, {route.top} a token{shared}, "
        f"in {len(mixed)} layers"
    }


def list_cache(spec: ModelSpec) -> dict[str, str]:
    """What is unusual about what layers remember or see."""
    said = []
    narrow = [layer.kv.window for layer in spec.layers if layer.kv.window]
    if narrow:
        said.append(f"{len(narrow)} layers see {max(narrow)} positions")
    latents = [layer.kv.width for layer in spec.layers if layer.latent]
    if latents:
        said.append(f"latents of {max(latents)} a token and layer")
    return {"attention": "; ".join(said)} if said else {}


def describe_positions(spec: ModelSpec) -> str:
    """How the model knows where a token stands."""
    if spec.positions:
        return "learned positions"
    ropes = (f"rope {rope.kind}, base {rope.base:g}" for rope in spec.ropes)
    return "; ".join(dict.fromkeys(ropes))


def shorten_name(tensor: str) -> str:
    """q_proj of model.layers.0.self_attn.q_proj.weight, ln_1.bias of h.0.ln_1.bias."""
    parts = tensor.removesuffix(".weight").split(".")
    return ".".join(parts[-2:]) if parts[-1] == "bias" else parts[-1]


def make_weight_table(found: ModelDescription, kinds: SlotKinds) -> Table:
    """The weight plan; slots that look alike in every layer and expert share a row."""
    from flyweight.cli.show import make_table

    table = make_table("Weight plan", "slot", "times", "shape", "kind", "from")
    alike: dict[tuple[str, str, str, str], int] = {}
    for slot in found.plan.slots:
        kind = "+".join(dict.fromkeys(kind for _, kind in kinds[slot.name]))
        sources = " ".join(shorten_name(source.tensor) for source in slot.sources)
        row = (NUMBERED.sub("", slot.name), "×".join(map(str, slot.shape)), kind, sources)
        alike[row] = alike.get(row, 0) + 1
    for (name, shape, kind, sources), many in alike.items():
        table.add_row(name, str(many) if many > 1 else "", shape, kind, sources)
    return table
