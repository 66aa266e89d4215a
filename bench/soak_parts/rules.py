"""What a soak must show, and its tables.

Invariant: a rule has what was found, what is allowed, and whether it is kept; one that could not be
judged says why and counts as kept.  Knows no server.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from soak_parts.client import ANSWERED, FATES, LOST
from soak_parts.record import SoakRecord
from soak_parts.watch import LEAST_MINUTES, MIB, measure_growths

JUDGED = ("rss", "files", "threads", "processes")  # pss counts what other processes share, too


@dataclass(frozen=True, slots=True)
class JudgedRule:
    """`kept` is None where the rule was not judged."""

    name: str
    found: str
    allowed: str
    kept: bool | None

    def make_row(self) -> list[str]:
        words = {True: "kept", False: "BROKEN", None: "not judged"}
        return [self.name, self.found, self.allowed, words[self.kept]]


def judge_run(record: SoakRecord) -> list[JudgedRule]:
    """All rules, by what the record has."""
    facts = record.facts
    rules = [
        JudgedRule("lost requests", str(record.count(LOST)), "0", record.count(LOST) == 0),
        judge_unexpected(record),
        *judge_canaries(record),
        judge_faults(record),
        judge_number("loads by the operator", record.fates["load", ANSWERED], least=1),
        judge_number("unloads", record.fates["unload", ANSWERED], least=1),
        judge_number("aborted streams", record.fates["aborted stream", "left"], least=1),
        judge_number("aborted unloads", record.fates["aborted unload", "left"], least=1),
        JudgedRule("blocks released at the end", str(facts["idle"]), "True", bool(facts["idle"])),
        JudgedRule("exit code", str(facts["exit_code"]), "0", facts["exit_code"] == 0),
        judge_restarts(record),
    ]
    if "page" in facts:
        found = facts["page"]["trouble"]
        rules.append(JudgedRule("page", found or "no error", "no error", not found))
    return [*rules, *judge_growths(record)]


def judge_number(name: str, found: int, least: int) -> JudgedRule:
    return JudgedRule(name, str(found), f"{least} or more", found >= least)


def judge_unexpected(record: SoakRecord) -> JudgedRule:
    codes = sorted({f"{one.kind}: {one.status} {one.code}" for one in record.unexpected})
    found = f"{len(record.unexpected)} ({'; '.join(codes[:5])})" if codes else "0"
    return JudgedRule("unexpected refusals and errors", found, "0", not codes)


def judge_canaries(record: SoakRecord) -> Iterator[JudgedRule]:
    least = min((one.checked_after_kill for one in record.canaries.values()), default=0)
    for one in record.canaries.values():
        found = f"{len(one.differing)} of {one.checked} differ"
        yield JudgedRule(f"canary {one.name}", found, "0", not one.differing)
    yield judge_number("canaries of each model after the kill", least, least=1)


def judge_faults(record: SoakRecord) -> JudgedRule:
    name = "disk full once"
    if not record.facts["has_disk"]:
        return JudgedRule(name, "this user may mount nothing", "once", None)
    full = sum(event == "disk full" for _, event in record.events)
    return JudgedRule(name, str(full), "1", full == 1)


def judge_restarts(record: SoakRecord) -> JudgedRule:
    """The engine has ended by our kill only, and came back."""
    found, back = record.facts["restarts"], [one.end for one in record.downtimes]
    seconds = ", ".join(
        "not back" if one.end is None else f"back after {one.end - one.begin:.1f} s"
        for one in record.downtimes
    )
    kept = found == len(back) == 1 and None not in back
    return JudgedRule("engine restarts", f"{found:g} ({seconds})", "1", kept)


def judge_growths(record: SoakRecord) -> Iterator[JudgedRule]:
    """A short run is not judged: caches still fill up."""
    long = record.seconds >= 60 * LEAST_MINUTES
    for row in list_growths(record):
        if row["kind"] not in JUDGED:
            continue
        unit = MIB if row["kind"] == "rss" else 1
        words = f"{row['growth'] / unit:+.1f} at {row['mean'] / unit:.1f}"
        name = f"growth of {row['kind']}, {row['part']}" + (", MiB" if unit > 1 else "")
        kept = row["growth"] <= row["allowed"] if long else None
        yield JudgedRule(name, words, f"{row['allowed'] / unit:.1f}", kept)


def list_growths(record: SoakRecord) -> list[dict[str, Any]]:
    """Of the server's processes; the engine's newest one began when it was back."""
    back = [one.end for one in record.downtimes if one.end is not None]
    return measure_growths(record.samples, record.seconds, {"engine": back[-1]} if back else {})


def list_fates(record: SoakRecord) -> list[list[str]]:
    """A row for each kind of request: how many had which fate, and the codes."""
    kinds = sorted({kind for kind, _ in record.fates})
    rows = [["request", *FATES, "codes"]]
    for kind in kinds:
        codes = {code: n for (of, code), n in sorted(record.codes.items()) if of == kind}
        said = ", ".join(f"{code} {n}" for code, n in codes.items())
        rows.append([kind, *(str(record.fates[kind, fate]) for fate in FATES), said])
    return [*rows, ["all", *(str(record.count(fate)) for fate in FATES), ""]]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def make_report(record: SoakRecord, rules: Sequence[JudgedRule]) -> str:
    heads = ["rule", "found", "allowed", ""]
    figures = [[name, f"{value:,.0f}"] for name, value in record.facts["totals"].items()]
    tables: list[list[list[str]]] = [
        list_fates(record), figures, [heads, *(rule.make_row() for rule in rules)],
    ]  # fmt: skip
    return "\n\n".join(format_table(table) for table in tables if table)


def make_document(record: SoakRecord, rules: Sequence[JudgedRule]) -> dict[str, Any]:
    found = [{"rule": one.name, "found": one.found, "allowed": one.allowed, "kept": one.kept}
             for one in rules]  # fmt: skip
    return {"rules": found, "growth": list_growths(record),
            **record.make_document()}  # fmt: skip
