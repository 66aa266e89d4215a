"""`flyweight inspect MODEL`: the model's spec, its weight plan and its memory, without loading it."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flyweight.build import Described, backend, describe, memory_plan
from flyweight.cli.options import Activations, KVDtype, MaxModelLen, MemoryLimit, settings
from flyweight.cli.show import memory_table
from flyweight.plan.machine import machine
from flyweight.plan.memory import MemoryPlan
from flyweight.weights.load import slot_kinds



def inspect(
    model: Annotated[str, typer.Argument(help="A .gguf file, a directory, or 'stories'.")] = "stories",
    max_model_len: MaxModelLen = None,
    memory_limit: MemoryLimit = "80%",
    activations: Activations = "int8",
    kv_cache_dtype: KVDtype = "f16",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print a model's spec, weight plan and memory."""
    chosen = settings(
        model=model,
        max_model_len=max_model_len,
        memory_limit=memory_limit,
        activations=activations,
        kv_cache_dtype=kv_cache_dtype,
    )
    found = describe(chosen.model)
    here = machine()
    plan = memory_plan(chosen, found, backend(chosen, here.cores), here, chosen.max_model_len)
    if as_json:
        print(json.dumps(document(found, plan), indent=1))
        return
    console = Console()
    console.print(_facts(found))
    console.print(_slots(found))
    console.print(memory_table(plan))


def document(found: Described, plan: MemoryPlan) -> dict[str, Any]:
    """Everything `inspect` shows, for scripts."""
    kinds = slot_kinds(found.checkpoint, found.plan)
    slots = {
        slot.name: {"shape": slot.shape, "sources": slot.sources, "kinds": [k for _, k in kinds[slot.name]]}
        for slot in found.plan.slots
    }
    memory = {what: amount for what, amount in plan.rows()} | {"need": plan.need, "limit": plan.limit}
    return {"spec": asdict(found.spec), "slots": slots, "memory": memory}


def _facts(found: Described) -> Table:
    spec = found.spec
    layer = spec.layers[0]
    table = Table(title=str(found.checkpoint.path.name), title_justify="left", box=None, show_header=False)
    facts = {
        "family": spec.family,
        "layers": len(spec.layers),
        "hidden": spec.hidden,
        "heads": f"{layer.heads} query, {layer.kv.heads} KV, {layer.head} wide",
        "inner": layer.inner,
        "vocabulary": f"{spec.vocab}{' (embedding and head tied)' if spec.tie else ''}",
        "context": spec.context,
        "rope": f"{spec.rope.kind}, base {spec.rope.base:g}",
        "tokenizer": f"{type(found.tokenizer).__name__}, {found.tokenizer.vocab_size} pieces",
        "stop ids": ", ".join(map(str, sorted({*found.checkpoint.eos_ids, *found.tokenizer.eos_ids}))),
    }
    for name, value in facts.items():
        table.add_row(name, str(value))
    return table


def _slots(found: Described) -> Table:
    """The weight plan; layers that look alike share a row."""
    table = Table(title="weight plan", title_justify="left", box=None, pad_edge=False)
    for column in ("slot", "shape", "kind", "sources"):
        table.add_column(column)
    rows: dict[tuple[str, str, str], list[str]] = {}
    kinds = slot_kinds(found.checkpoint, found.plan)
    for slot in found.plan.slots:
        prefix, _, name = slot.name.rpartition(".")
        shape = " x ".join(map(str, slot.shape))
        kind = "+".join(dict.fromkeys(k for _, k in kinds[slot.name]))
        rows.setdefault((name, shape, kind), []).append(prefix)
        if len(rows[name, shape, kind]) == 1:
            rows[name, shape, kind].append(", ".join(s.split(".")[-2] for s in slot.sources))
    for (name, shape, kind), (first, sources, *more) in rows.items():
        where = f"{first}.{name}" if first else name
        table.add_row(where + (f" and {len(more)} more" if more else ""), shape, kind, sources)
    return table


