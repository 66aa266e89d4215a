"""A quality passport as a person sees it: rows of figures, and what they were measured on.

Invariant: every figure of a passport has a row; words out of a file are made printable.
"""

from rich.table import Table

from flyweight.cli.show import make_table
from flyweight.passport import Passport, Quality
from flyweight.validation.untrusted import printable


def make_quality_table(quality: Quality) -> Table:
    """The passport, or why there is none that counts."""
    table = make_table("Quality passport")
    passport = quality.passport
    rows = {"unknown": quality.problem} if passport is None else list_rows(passport)
    for name, value in rows.items():
        table.add_row(printable(name), printable(value))
    return table


def list_rows(found: Passport) -> dict[str, str]:
    """Its figures in words."""
    return {
        "perplexity": f"{found.perplexity:.4f}{format_error(found.perplexity_error, 4)}",
        "mean KLD": f"{found.kld_mean:.6f}{format_error(found.kld_mean_error, 6)} nats a token",
        "KLD": f"median {found.kld_median:.6f}, 99 % {found.kld_p99:.6f}, "
        f"99.9 % {found.kld_p99_9:.6f}, max {found.kld_max:.6f}",
        "same top 1": f"{100 * found.top1_agreement:.2f}"
        f"{format_error(found.top1_agreement_error, 2, 100)} %",
        "against": f"{found.against} ({found.against_fingerprint})",
        "text": f"{found.text}, SHA-256 {found.text_sha256}.., {found.tokens} tokens, "
        f"context {found.context}, stride {found.stride}",
        **list_extras(found),
        **list_making(found),
        "measured": f"{found.date}, flyweight {found.flyweight}",
        "command": found.command,
    }


def list_extras(found: Passport) -> dict[str, str]:
    """What only some passports have."""
    rows: dict[str, str] = {}
    if (probe := found.long_context) is not None:
        rows["long context"] = (
            f"mean KLD {probe.kld_mean:.6f}, same top 1 {100 * probe.top1_agreement:.2f} %, "
            f"perplexity {probe.perplexity:.4f} (last {probe.tokens} of {probe.context} tokens)"
        )
    for name, share in (("valid JSON", found.json_valid), ("tool calls", found.tool_call_valid)):
        if share is not None:
            rows[name] = f"{share.valid} of {share.total} greedy answers are valid"
    for kind, kept in found.kv_cache.items():
        rows[f"K/V in {kind}"] = (
            f"mean KLD {kept.kld_mean:.6f}, 99.9 % {kept.kld_p99_9:.6f}, "
            f"same top 1 {100 * kept.top1_agreement:.2f} % ({kept.tokens} tokens)"
        )
    return rows


def list_making(found: Passport) -> dict[str, str]:
    """How the model was made, as far as the passport says."""
    bits = "" if found.bits is None else f"{found.bits:.2f} bits a weight"
    made = ", ".join(part for part in (found.method, bits, found.recipe) if part)
    rows = {"made as": made} if made else {}
    if found.file_format:
        rows["format"] = found.file_format
    if found.requantized_from:
        rows["made from"] = found.requantized_from
    if found.activations:
        rows["activations"] = found.activations
    return rows


def format_error(error: float | None, places: int, scale: float = 1) -> str:
    """A standard error, where there is one."""
    return "" if error is None else f" ± {scale * error:.{places}f}"
