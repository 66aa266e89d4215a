"""The report of `plan quant`: sizes by bits of a weight, the loss that was measured, and the
context that a memory leaves.

Invariant: a loss is either quoted from the founding document, or read from the model's passport; it
is never estimated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flyweight.plan.memory import Packer, count_weight_bytes
from flyweight.planning.cache import count_model_bytes, find_type
from flyweight.planning.estimate import count_weight_bytes as count_plain_bytes
from flyweight.planning.estimate import estimate_memory
from flyweight.planning.outline import KINDS_BY_BITS, ModelOutline, assume_bits
from flyweight.planning.plots import Limit, LinePlot, Series
from flyweight.planning.quantities import write_gb, write_params
from flyweight.planning.report import Column, Report, ReportTable, Value

# Of "LLM Inference Optimization" for edge RAG, the table of quantisation levels: loss of quality.
SEED_LEVELS = (
    ("FP32", 32, "0 %"),
    ("FP16", 16, "below 1 %"),
    ("INT8", 8, "2 to 3 %"),
    ("INT4", 4, "5 to 8 %"),
    ("binary", 1, "above 20 %"),
)


@dataclass(frozen=True, slots=True)
class QuantUse:
    """A model of `params` parameters in `memory`; K/V of `kv_dtype`, of the shapes of `shaped`."""

    params: float
    memory: int
    kv_dtype: str
    shaped: ModelOutline | None


def report_levels(use: QuantUse, own: ModelOutline | None, ops: Callable[[], Packer]) -> Report:
    """The course's table; of a model (`own`), what its weights take in every kind too."""
    tables = [list_levels(use)]
    if own is not None:
        tables += [list_kinds(own, ops()), list_measured(own)]
    return Report("Quantisation", tables, plot=plot_levels(use))


def list_levels(use: QuantUse) -> ReportTable:
    full = count_plain_bytes(use.params, 32)
    rows: list[tuple[Value, ...]] = []
    for name, bits, loss in SEED_LEVELS:
        size, whole = count_plain_bytes(use.params, bits), estimate_memory(use.params, bits)
        rows.append((name, size, whole, 1 - size / full, loss, *find_context(use, whole)))
    columns = (
        Column("level", "level"),
        Column("bytes", "weights", write_gb),
        Column("bytes_with_20_percent", "with 20 %", write_gb),
        Column("saved", "saved", lambda share: f"{100 * share:.1f} %"),
        Column("seed_loss", "loss, course"),
        Column("context", "context", unknown="none"),
        Column("sequences", "sequences", unknown="none"),
    )
    shaped = use.shaped.name if use.shaped else ""
    notes = [
        f"Context: tokens of a sequence whose K/V fits {write_gb(use.memory)} next to the third "
        "column, and how many such sequences do"
    ]
    notes[0] += (
        f"; shapes and longest context of {shaped}." if shaped else "; not known without a MODEL."
    )
    title = f"Sizes of {write_params(use.params)} parameters"
    return ReportTable("levels", title, columns, rows, notes)


def find_context(use: QuantUse, taken: float) -> tuple[int | None, int | None]:
    """Tokens of a sequence whose K/V fits what is left, up to the model's context, and how many
    such sequences fit; None where no token does.
    """
    if use.shaped is None or taken >= use.memory:
        return None, None
    spec = use.shaped.spec
    tokens = int((use.memory - taken) // count_model_bytes(spec, 1, find_type(use.kv_dtype)))
    length = min(tokens, spec.context)
    return (length, tokens // length) if length else (None, None)


def list_kinds(own: ModelOutline, ops: Packer) -> ReportTable:
    """Every matrix in one kind, as flyweight packs it, and the weights as they are."""
    rows: list[tuple[Value, ...]] = []
    for bits, kind in KINDS_BY_BITS.items():
        size = count_weight_bytes(assume_bits(own, bits), ops)
        rows.append((kind, bits, 8 * size / own.params, size))
    now = count_weight_bytes(own.kinds, ops)
    rows.append(("as the files", None, 8 * now / own.params, now))
    columns = (
        Column("kind", "kind"),
        Column("nominal_bits", "bits", unknown=""),
        Column("bits", "with scales", lambda bits: f"{bits:.2f}"),
        Column("bytes", "weights", write_gb),
    )
    title = f"Weights of {own.name}, packed"
    return ReportTable("kinds", title, columns, rows, strong=frozenset({len(rows) - 1}))


def list_measured(own: ModelOutline) -> ReportTable:
    """The figures of the passport; a model without one has a row that says so."""
    found = own.quality.passport
    rows: Sequence[Sequence[Value]] = [(own.name, None, None, None, None)]
    note = f"{own.quality.describe()}. flyweight eval stamp measures it."
    if found is not None:
        rows = [(own.name, found.bits, found.perplexity, found.kld_mean, found.top1_agreement)]
        note = f"Measured: {found.describe()}."
    columns = (
        Column("model", "model"),
        Column("bits", "bits"),
        Column("perplexity", "perplexity", unknown="not measured"),
        Column("kld_mean", "mean KLD", unknown="not measured"),
        Column("top1_agreement", "same top 1", unknown="not measured"),
    )
    return ReportTable("measured", "Loss that was measured", columns, rows, (note,))


def plot_levels(use: QuantUse) -> LinePlot:
    """Memory against bits."""
    points = [(float(bits), estimate_memory(use.params, bits) / 1e9) for bits in range(1, 33)]
    series = [Series(f"{write_params(use.params)}, with 20 %", points)]
    limits = [Limit(write_gb(use.memory), use.memory / 1e9)]
    return LinePlot("Memory against bits of a weight", "bits", "memory, GB", series, limits)
