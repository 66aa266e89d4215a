"""What a tuning leaves: `tuned.yaml` for `serve --config`, and the evidence next to it.

Invariant: the evidence has everything that was measured, in order; it is added to after each
measurement, so that an interrupted tuning goes on from there, and nothing in it is overwritten.
Figures are used again only for the same subject: what `tuner.describe_subject` names.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from flyweight import __version__
from flyweight.errors import ConfigError
from flyweight.plot import draw_front
from flyweight.tune.search import Measure
from flyweight.tune.trial import LoadFigures, SettingsTrial


class Evidence:
    """A file of measurements, one a line of JSON with the key of its subject; a line for each
    subject says what that is.  Lines that are damaged, and those of other subjects, are left as
    they are.
    """

    def __init__(self, path: Path, subject: Mapping[str, Any]) -> None:
        self.path = path
        text = json.dumps(subject, sort_keys=True, default=str)
        self.key = sha256(text.encode()).hexdigest()[:32]
        self.known: dict[tuple[SettingsTrial, int], list[LoadFigures]] = {}
        self._broken = False  # whether the last line has no end
        rows = self._read()
        for row in rows:
            self._add(row)
        if not rows:
            self._append({"subject": json.loads(text)})
        self._used: dict[tuple[SettingsTrial, int], int] = {}

    def remember(self, measure: Measure) -> Measure:
        """The same, which takes from the file what it has, in order, and adds what it has not."""

        def recall(candidate: SettingsTrial, size: int) -> LoadFigures:
            key = candidate, size
            turn = self._used[key] = self._used.get(key, 0) + 1
            kept = self.known.setdefault(key, [])
            if len(kept) < turn:
                kept.append(measure(candidate, size))
                figures = asdict(kept[-1])
                self._append({"changes": dict(candidate.changes), "size": size, "figures": figures})
            return kept[turn - 1]

        return recall

    def count(self) -> int:
        """How many measurements there are."""
        return sum(map(len, self.known.values()))

    def _read(self) -> list[dict[str, Any]]:
        """The lines of this subject; a file that cannot be read has none."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        self._broken = bool(text) and not text.endswith("\n")
        rows = []
        for line in text.splitlines():
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and row.get("key") == self.key:
                    rows.append(row)
        return rows

    def _add(self, row: Mapping[str, Any]) -> None:
        """Keeps a measurement; a line that is none says what the subject is, or is damaged."""
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            key = SettingsTrial.of(row["changes"]), int(row["size"])
            self.known.setdefault(key, []).append(LoadFigures(**row["figures"]))

    def _append(self, row: Mapping[str, Any]) -> None:
        """Raises `ConfigError`."""
        line = json.dumps({"key": self.key, **row}) + "\n"
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" * self._broken + line)
        except OSError as error:
            raise refuse_file(self.path, error) from error
        self._broken = False


def make_config(model: str, settings: Mapping[str, Any], lines: tuple[str, ...]) -> str:
    """The text of a file for `serve --config`; `lines` are comments above."""
    chosen = {"model": model, **settings}
    rows = [f"{name.replace('_', '-')}: {json.dumps(value)}" for name, value in chosen.items()]
    return "\n".join([*(f"# {line}" for line in lines), *rows, ""])


def list_options(chosen: SettingsTrial, bounds: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate as options of `serve`, with the limits that were the targets."""
    settings = dict(chosen.changes)
    settings.pop("model", None)
    return settings | dict(bounds)


def draw_trials(seen: Mapping[SettingsTrial, LoadFigures]) -> str:
    """An SVG of throughput against latency, the front of the best marked."""
    points = [
        (one.label, got.throughput, got.latency, is_best(got, seen.values()))
        for one, got in seen.items()
    ]
    return draw_front(points, ("tokens/s", "latency, s"))


def is_best(one: LoadFigures, others: Any) -> bool:
    """Whether no other is better in both."""
    return not any(
        other.throughput >= one.throughput and other.latency <= one.latency and other != one
        for other in others
    )


def write_text(path: Path, text: str) -> None:
    """Writes a file under its name once it is whole.  Raises `ConfigError`."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise refuse_file(path, error) from error


def refuse_file(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot be written: {error.strerror or error}", "output", value=str(path))


def describe_program() -> str:
    return f"flyweight {__version__}"
