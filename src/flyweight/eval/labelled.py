"""Labelled texts, and the prompts that classify them with and without examples.

Invariant: the examples of a text are drawn by a seed from the others, never the text itself or a
copy of it, in turn from every label.  Knows no model.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from pathlib import Path
from random import Random

from flyweight.errors import ConfigError, nearest
from flyweight.validation.untrusted import parse_object, read_bytes

MOST_BYTES = 64 << 20
MOST_LABELS = 64
MOST_SHOTS = 64


@dataclass(frozen=True, slots=True)
class LabelledText:
    """`where` is its line."""

    text: str
    label: str
    where: str


def read_labelled(file: str, labels: Sequence[str] = ()) -> list[LabelledText]:
    """The objects with a text and a label of a `.jsonl` file; other keys are skipped.  Where
    `labels` are given there are no others.  Raises `ConfigError` and `CheckpointError`.
    """
    path = Path(file).expanduser()
    found = []
    for i, line in enumerate(read_bytes(path, MOST_BYTES).splitlines(), 1):
        if line.strip():
            found.append(_read(line, f"{path}:{i}", labels))
    if not found:
        raise ConfigError(": there is no text", str(path))
    return found


def _read(line: bytes, where: str, labels: Sequence[str]) -> LabelledText:
    given = parse_object(line, where)
    for key in ("text", "label"):
        value = given.get(key)
        if not isinstance(value, str) or not value.strip():
            raise ConfigError("is not valid", f"{where}: {key}", value=value, allowed="text")
    text, label = given["text"], given["label"].strip()
    if labels and label not in labels:
        allowed = ", ".join(labels) + nearest(label, labels)
        raise ConfigError("is unknown", f"{where}: label", value=label, allowed=allowed)
    return LabelledText(text, label, where)


@dataclass(frozen=True, slots=True)
class ClassifyPlan:
    """Texts with the labels they may have; `shots` examples are put before a text.  `drawn` are the
    samples in random order, by label.  Raises `ConfigError`.
    """

    samples: Sequence[LabelledText]
    labels: tuple[str, ...]
    shots: int = 2
    seed: int = 0
    instruction: str = ""
    drawn: tuple[tuple[LabelledText, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.labels)
        if not 2 <= count <= MOST_LABELS:
            raise ConfigError(
                f"has {count} labels", "labels", allowed=f"2 to {MOST_LABELS} different ones"
            )
        if not 0 <= self.shots <= MOST_SHOTS:
            allowed = f"0 to {MOST_SHOTS}"
            raise ConfigError("is not valid", "shots", value=self.shots, allowed=allowed)
        copies = Counter(sample.text for sample in self.samples)
        least = len(self.samples) - max(copies.values(), default=0)
        if self.shots > least:
            raise ConfigError(
                "is more than there are other texts", "shots", value=self.shots,
                allowed=f"0 to {least}",
            )  # fmt: skip
        shuffled = list(self.samples)
        Random(self.seed).shuffle(shuffled)
        drawn = (tuple(s for s in shuffled if s.label == label) for label in self.labels)
        object.__setattr__(self, "drawn", tuple(drawn))

    @classmethod
    def of(
        cls, samples: Sequence[LabelledText], labels: Sequence[str], shots: int, seed: int
    ) -> "ClassifyPlan":
        """`labels` are by default those that the samples have, in order."""
        return cls(samples, tuple(labels or dict.fromkeys(s.label for s in samples)), shots, seed)

    def choose_examples(self, number: int) -> list[LabelledText]:
        """The examples of a sample: the same ones for most, so that their blocks are cached."""
        text = self.samples[number].text
        queues = [(one for one in queue if one.text != text) for queue in self.drawn]
        turns = chain.from_iterable(zip_longest(*queues))
        return list(islice((one for one in turns if one is not None), self.shots))

    def make_prompt(self, number: int, *, examples: bool) -> str:
        """What a label is to follow, after a space."""
        head = self.instruction or f"Classify each text as {_join(self.labels)}."
        shown = self.choose_examples(number) if examples else []
        parts = [head, *(f"{_write(one.text)} {one.label}" for one in shown)]
        return "\n\n".join([*parts, _write(self.samples[number].text)])


def _write(text: str) -> str:
    return f"Text: {' '.join(text.split())}\nLabel:"


def _join(labels: Sequence[str]) -> str:
    quoted = [json.dumps(label, ensure_ascii=False) for label in labels]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"
