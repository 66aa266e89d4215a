"""What a tuning leaves: `tuned.yaml` for `serve --config`, and the evidence next to it.

Invariant: the evidence has everything that was measured, in order; it is written after each
measurement, so that an interrupted tuning goes on from there.  Figures are used again only for the
same model, load, targets and machine.
"""

import json
import os
from collections.abc import Mapping
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
    """A file of measurements, one a line of JSON after a line that says what they are of."""

    def __init__(self, path: Path, subject: Mapping[str, Any]) -> None:
        self.path = path
        text = json.dumps(subject, sort_keys=True, default=str)
        self.head = {"subject": json.loads(text), "key": sha256(text.encode()).hexdigest()[:32]}
        self.known = self._read()
        self._used: dict[tuple[SettingsTrial, int], int] = {}

    def remember(self, measure: Measure) -> Measure:
        """The same, which takes from the file what it has, in order, and adds what it has not."""

        def recall(candidate: SettingsTrial, size: int) -> LoadFigures:
            key = candidate, size
            turn = self._used[key] = self._used.get(key, 0) + 1
            kept = self.known.setdefault(key, [])
            if len(kept) < turn:
                kept.append(measure(candidate, size))
                self._append(candidate, size, kept[-1])
            return kept[turn - 1]

        return recall

    def count(self) -> int:
        """How many measurements there are."""
        return sum(map(len, self.known.values()))

    def _read(self) -> dict[tuple[SettingsTrial, int], list[LoadFigures]]:
        """What the file has of this subject; a file of another is begun anew."""
        found: dict[tuple[SettingsTrial, int], list[LoadFigures]] = {}
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
            if not lines or json.loads(lines[0]).get("key") != self.head["key"]:
                raise ValueError("another subject")
            for line in lines[1:]:
                row = json.loads(line)
                key = SettingsTrial.of(row["changes"]), int(row["size"])
                found.setdefault(key, []).append(LoadFigures(**row["figures"]))
        except (OSError, ValueError, KeyError, TypeError):
            found.clear()
            write_text(self.path, json.dumps(self.head) + "\n")
        return found

    def _append(self, candidate: SettingsTrial, size: int, seen: LoadFigures) -> None:
        row = {"changes": dict(candidate.changes), "size": size, "figures": asdict(seen)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


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
        (one.name, got.throughput, got.latency, is_best(got, seen.values()))
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
        raise ConfigError(
            f"cannot be written: {error.strerror or error}", "output", value=str(path)
        ) from error


def describe_program() -> str:
    return f"flyweight {__version__}"
