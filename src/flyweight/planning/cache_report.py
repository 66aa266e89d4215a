"""The report of `plan kv`: K/V bytes by the course's formula and exactly, and sequences that fit.

Invariant: a batch is what the weights, all at `bits`, leave of the memory; 0 where they do not fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flyweight.planning.cache import (
    FORMULA,
    CacheDimensions,
    count_batch,
    count_by_attention,
    count_model_bytes,
    count_seed_bytes,
    count_visible_bytes,
    find_type,
    name_attention,
)
from flyweight.planning.estimate import count_weight_bytes
from flyweight.planning.outline import ModelOutline
from flyweight.planning.plots import Limit, LinePlot, Series
from flyweight.planning.report import Column, Report, ReportTable, Value

GIB = 1 << 30
LENGTHS = 8  # contexts of the batch table, each half of the one before
SMALLER = (8.0, 4.0)  # bits that are tried where weights do not fit


@dataclass(frozen=True, slots=True)
class CacheUse:
    """`batch` sequences of `tokens` tokens, K/V of `kv_dtype`; weights of `bits` in `memory`."""

    tokens: int
    batch: int
    kv_dtype: str
    bits: float
    memory: int


def report_cache(outlines: Sequence[ModelOutline], use: CacheUse) -> Report:
    """Every model by the formula; of a single one, kinds of attention and batches too."""
    tables = [list_models(outlines, use)]
    plot = None
    if len(outlines) == 1:
        tables += [list_attention(outlines[0], use), list_batches(outlines[0], use)]
        plot = plot_cache(outlines[0], use)
    return Report("K/V cache", tables, plot=plot)


def list_models(outlines: Sequence[ModelOutline], use: CacheUse) -> ReportTable:
    kind = find_type(use.kv_dtype)
    rows: list[tuple[Value, ...]] = []
    notes = [
        f"Seed: {FORMULA}; it counts query heads, also where K/V heads are fewer.",
        f"Batch: sequences that fit {format_amount(use.memory)} with weights of {use.bits:g} bits.",
    ]
    for one in outlines:
        size = CacheDimensions.of(one.spec)
        seed = count_seed_bytes(size, use.tokens, use.batch, kind.bits / 8)
        exact = use.batch * count_model_bytes(one.spec, use.tokens, kind)
        weights = count_weight_bytes(one.params, use.bits)
        batch = count_batch(use.memory, weights, count_model_bytes(one.spec, use.tokens, kind))
        rows.append((one.name, name_attention(one.spec), seed, exact, weights, batch))
        if batch == 0:
            notes.append(explain_batch(one, use))
    columns = (
        Column("model", "model"),
        Column("attention", "attention"),
        Column("seed_bytes", "course", format_amount),
        Column("bytes", "exact", format_amount),
        Column("weight_bytes", "weights", format_amount),
        Column("batch", "batch"),
    )
    title = f"K/V cache of {use.batch} x {use.tokens:,} tokens, {kind.name}"
    return ReportTable("models", title, columns, rows, notes)


def explain_batch(one: ModelOutline, use: CacheUse) -> str:
    """What would fit where nothing does: batches with fewer bits, or what the least use needs."""
    sequence = count_model_bytes(one.spec, use.tokens, find_type(use.kv_dtype))
    sizes = {bits: count_weight_bytes(one.params, bits) for bits in SMALLER if bits < use.bits}
    batches = {bits: count_batch(use.memory, size, sequence) for bits, size in sizes.items()}
    ways = [f"{many} at {bits:g} bits" for bits, many in batches.items() if many]
    if ways:
        return f"{one.name}: weights are too large; batch {' or '.join(ways)} a weight."
    least = min([*sizes, use.bits])
    need = count_weight_bytes(one.params, least) + sequence
    return f"{one.name}: one sequence needs {format_amount(need)}, at {least:g} bits a weight."


def list_attention(one: ModelOutline, use: CacheUse) -> ReportTable:
    """The model's own attention, and what the others would store."""
    kind = find_type(use.kv_dtype)
    own, dims = name_attention(one.spec), CacheDimensions.of(one.spec)
    first = one.spec.layers[0].kv
    rows: list[tuple[Value, ...]] = [
        (name, name == own, use.batch * size, size / use.tokens)
        for name, size in count_by_attention(one.spec, use.tokens, kind).items()
    ]
    stored = count_model_bytes(one.spec, use.tokens, kind)
    visible = count_visible_bytes(one.spec, use.tokens, kind)
    rows.append(("as stored", None, use.batch * stored, stored / use.tokens))
    rows.append(("what windows still see", None, use.batch * visible, visible / use.tokens))
    columns = (
        Column("attention", "attention"),
        Column("own", "the model's", unknown=""),
        Column("bytes", "memory", format_amount),
        Column("token_bytes", "a token", format_amount),
    )
    notes = (
        f"{dims.layers} layers, {dims.heads} query heads, {first.heads} K/V heads of "
        f"{first.k_dim} elements.",
        "MLA of a model without latents: 4.5 d_head elements a layer, as in DeepSeek-V2.",
    )
    return ReportTable("attention", "Kinds of attention", columns, rows, notes)


def list_batches(one: ModelOutline, use: CacheUse) -> ReportTable:
    """Sequences that fit at each context."""
    kind = find_type(use.kv_dtype)
    weights = count_weight_bytes(one.params, use.bits)
    longest = max(use.tokens, one.spec.context)
    rows: list[tuple[Value, ...]] = []
    for tokens in sorted({max(1, longest >> i) for i in range(LENGTHS)} | {use.tokens}):
        size = count_model_bytes(one.spec, tokens, kind)
        seed = count_seed_bytes(CacheDimensions.of(one.spec), tokens, 1, kind.bits / 8)
        rows.append((tokens, size, count_batch(use.memory, weights, size),
                     count_batch(use.memory, weights, seed)))  # fmt: skip
    columns = (
        Column("context", "context"),
        Column("bytes", "a sequence", format_amount),
        Column("batch", "batch"),
        Column("seed_batch", "batch by the course formula"),
    )
    left = format_amount(max(0.0, use.memory - weights))
    title = f"Batches in {format_amount(use.memory)}; weights of {use.bits:g} bits leave {left}"
    return ReportTable("batches", title, columns, rows)


def plot_cache(one: ModelOutline, use: CacheUse) -> LinePlot:
    """Memory of one sequence against context, a line for each kind of attention."""
    kind = find_type(use.kv_dtype)
    longest = max(use.tokens, one.spec.context)
    lengths = sorted({max(1, longest * i // LENGTHS) for i in range(LENGTHS + 1)})
    series = [
        Series(
            name,
            [(n, count_by_attention(one.spec, n, kind)[name] / GIB) for n in lengths],
        )
        for name in ("MHA", "GQA", "MQA", "MLA")
    ]
    if count_visible_bytes(one.spec, longest, kind) < count_model_bytes(one.spec, longest, kind):
        seen = [(n, count_visible_bytes(one.spec, n, kind) / GIB) for n in lengths]
        series.append(Series("what windows see", seen))
    left = (use.memory - count_weight_bytes(one.params, use.bits)) / GIB
    title = f"K/V cache of one sequence of {one.name}"
    return LinePlot(title, "context, tokens", "memory, GiB", series, [Limit("left over", left)])


def format_amount(amount: float) -> str:
    """Bytes with two decimals, or three: 768 B, 36.00 KiB, 3.125 GiB."""
    for unit, name in ((GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if amount >= unit:
            return f"{f'{amount / unit:,.3f}'.removesuffix('0')} {name}"
    return f"{amount:.0f} B"
