"""`flyweight advise`: the documents' selection matrix and rules, checked against this machine.

Invariant: a row of the matrix agrees where its model fits into 80 % of the memory and the roofline
lets it reach the document's latency; a rule agrees where its own check holds.
"""

from dataclasses import dataclass

from flyweight.errors import ConfigError, nearest
from flyweight.plan.roofline import sum_work
from flyweight.planning.advice_facts import AdviceFacts
from flyweight.planning.estimate import estimate_memory
from flyweight.planning.quantities import write_gb
from flyweight.planning.report import Column, Report, ReportTable
from flyweight.planning.rules import ANSWER, RULES, USE_CASES
from flyweight.planning.speed import make_decode, make_nominal_shape
from flyweight.planning.units import write_seconds

HEADROOM = 0.8
NAMES = {4: "INT4", 8: "INT8", 16: "FP16"}
MATRIX_COLUMNS = (
    Column("use_case", "for"),
    Column("model", "model"),
    Column("hardware", "hardware"),
    Column("document_seconds", "says", write_seconds),
    Column("least_seconds", "at least", write_seconds),
    Column("bytes", "memory", write_gb),
    Column("fits", "fits"),
    Column("agrees", "agrees"),
)
RULE_COLUMNS = (
    Column("rule", "rule"),
    Column("document", "from"),
    Column("says", "what it says"),
    Column("here", "what holds here"),
    Column("agrees", "agrees"),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """A row of the matrix: `tokens` of an answer take `seconds`, as the document has it."""

    use_case: str
    params: float
    bits: int
    batch: int
    hardware: str
    seconds: float | None
    tokens: int

    @property
    def model(self) -> str:
        return f"{self.params / 1e9:g}B {NAMES[self.bits]} ×{self.batch}"


MATRIX = (
    Selection("chat", 7e9, 4, 1, "GPU", 0.1, 1),
    Selection("bulk", 13e9, 8, 16, "GPU", 8.0, ANSWER),
    Selection("cheap", 3e9, 4, 4, "CPU", 2.0, ANSWER),
    Selection("quality", 70e9, 16, 2, "multi-GPU", 0.5, 1),
    Selection("rag", 7e9, 4, 4, "edge", None, ANSWER),
)


def check_use_case(name: str | None) -> None:
    """Raises `ConfigError` listing those there are."""
    if name is not None and name not in USE_CASES:
        raise ConfigError(
            "is unknown",
            "use_case",
            value=name,
            allowed=f"{', '.join(USE_CASES)}{nearest(name, USE_CASES)}",
        )


def report_advice(facts: AdviceFacts, use_case: str | None) -> Report:
    """The tables of `flyweight advise`; those of one use case, or all."""
    wanted = USE_CASES if use_case is None else (use_case,)
    matrix = [make_selection_row(one, facts) for one in MATRIX if one.use_case in wanted]
    rules = []
    for rule in RULES:
        if rule.cases & {*wanted}:
            found = rule.check(facts)
            agrees = "cannot tell" if found.agrees is None else found.agrees
            rules.append((rule.name, rule.source, rule.says, found.here, agrees))
    notes = (
        "Latency: a token for chat and quality, an answer of 100 tokens for the others; the "
        "document does not say. At least: the roofline of weights alone.",
        "Memory: the course's formula, 20 % over the weights; it fits below 80 % of "
        f"{write_gb(facts.machine.total)}. S2 has no row for RAG: its edge batch is taken.",
    )
    tables = [
        ReportTable("selection", "Selection matrix (S2)", MATRIX_COLUMNS, matrix, notes),
        ReportTable("rules", "Rules", RULE_COLUMNS, rules),
    ]
    basis = (
        f"Measured now: steps of {facts.model} ({facts.basis}) in 4, 8 and 16 bits, on part of it "
        f"with made-up weights; reading at {facts.limits.read / 1e9:.3g} GB/s on "
        f"{facts.machine.cores} cores.",
    )
    return Report("Advice", tables, basis)


def make_selection_row(one: Selection, facts: AdviceFacts) -> tuple[str | float | bool | None, ...]:
    shape = make_nominal_shape(one.params, one.bits)
    step = sum_work(shape, [make_decode(one.batch, 1)], facts.limits)
    least, need = one.tokens * step.seconds, estimate_memory(one.params, one.bits)
    fits = need <= HEADROOM * facts.machine.total
    agrees = fits and (one.seconds is None or least <= one.seconds)
    return one.use_case, one.model, one.hardware, one.seconds, least, need, fits, agrees
