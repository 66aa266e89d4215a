"""Compares quantisations of a model on this machine: what each costs in quality, and its speed.

Invariant: all candidates are made from the same model with the same calibration, judged by the same
rows of it, and timed in turn; one that cannot be made is listed with the reason.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from flyweight.bench.ours import BenchEngineOptions, OwnEngine
from flyweight.bench.workloads import Workload
from flyweight.config import Settings
from flyweight.describe import SilentListener, describe, find
from flyweight.errors import ConfigError, FlyweightError, nearest
from flyweight.eval import divergence
from flyweight.eval.divergence import Divergence
from flyweight.eval.session import EvalSession
from flyweight.eval.store import StoreReader
from flyweight.eval.windows import EvalText, WindowPlan
from flyweight.quantization import (
    CalibrationSource,
    Evaluation,
    SilentEvaluation,
    prepare_model,
    run_prepared,
)
from flyweight.quantize.assignment import list_quantised
from flyweight.quantize.options import QuantizeOptions
from flyweight.spec import KV_TYPES

GROUPS = (128, 64, 32)
GENERATED, SEQUENCES, PROMPT = 64, 16, 512  # tokens of the timed runs
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to make the model smaller: options of `flyweight quantize`; `grouped` ones get the
    largest group that fits.  `like` takes the size of another candidate's file for its budget.
    """

    name: str
    options: Mapping[str, Any]
    grouped: bool = False
    like: str = ""


CANDIDATES = (
    Candidate("FP32", {"type": "F32"}),
    Candidate("BF16", {"type": "BF16"}),
    Candidate("INT8 dynamic", {"method": "int8-dynamic"}),
    Candidate("INT8 static", {"method": "int8-static"}),
    Candidate("Q8_0", {"type": "Q8_0"}),
    Candidate("INT4 RTN", {"method": "rtn", "format": "gptq"}, grouped=True),
    Candidate("INT4 GPTQ", {"method": "gptq"}, grouped=True),
    Candidate("INT4 AWQ", {"method": "awq"}, grouped=True),
    Candidate("NF4", {"method": "nf4"}),
    Candidate("Q4_K_M", {"type": "Q4_K_M"}),
    Candidate("Q4_0", {"type": "Q4_0"}),
    Candidate("Q3_K_M", {"type": "Q3_K_M"}),
    Candidate("Q2_K", {"type": "Q2_K"}),
    Candidate("binary", {"method": "binary"}, grouped=True),
    Candidate("mixed", {}, like="Q4_K_M"),
)


def choose_candidates(names: str | None) -> Sequence[Candidate]:
    """Those of a list such as `Q8_0,Q4_0`, or all.  Raises `ConfigError`."""
    if names is None:
        return CANDIDATES
    known = {one.name: one for one in CANDIDATES}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise ConfigError(
                "is not valid", "only", value=name,
                allowed=", ".join(known) + nearest(name, known),
            )  # fmt: skip
        if known[name].like and known[name].like not in wanted:
            raise ConfigError(
                f"needs {known[name].like}, whose size it has", "only", value=name,
                hint=f"nearest valid: {known[name].like},{name}",
            )  # fmt: skip
    return [known[name] for name in known if name in wanted]


@dataclass(slots=True)
class ComparedModel:
    """A candidate: its file and size, seconds to make, divergence and speeds; or why it was not
    made.  Speeds are tokens a second of one sequence and of 16; `ttft` is seconds to the first
    token after the prompt.
    """

    name: str
    path: Path | None = None
    nbytes: int = 0
    made: float = 0.0
    found: Divergence | None = None
    decode: float = 0.0
    batch: float = 0.0
    ttft: float = 0.0
    problem: str = ""
    best: bool = False  # no other is both nearer to the model and faster


@dataclass(frozen=True, slots=True)
class KVTypeCost:
    """A type of K/V: bytes of a token, and the divergence from the model's usual type."""

    kind: str
    nbytes: int
    found: Divergence


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """What is compared, and on what: `text` and `windows` for quality, `calibration` for methods
    that need one, `rounds` of timing, `engine` settings by name.
    """

    text: EvalText
    windows: WindowPlan
    calibration: CalibrationSource = None
    rounds: int = 3
    samples: int = 64
    engine: Mapping[str, Any] = field(default_factory=dict)
    candidates: Sequence[Candidate] = CANDIDATES


class Comparison:
    """Makes candidates of `model` in `folder`, measures and times them."""

    def __init__(
        self, model: str, folder: Path, plan: ComparisonPlan, report: Report | None = None
    ) -> None:
        self.model, self.folder, self.plan = model, folder, plan
        self._report = report or (lambda stage, done, total: None)
        found = describe(find(Settings.of(model=model)))
        kinds = {
            found.checkpoint.tensors[name].kind
            for name in list_quantised(found.checkpoint, found.plan)
        }
        self.source = found.checkpoint.path.name
        self.quantised = " ".join(sorted(kinds))  # types of a model that is quantised already
        self.spec, columns = found.spec, {
            slot.shape[-1] for slot in found.plan.slots if slot.name.startswith("layers.")
            and slot.kind == "linear"
        }  # fmt: skip
        found.checkpoint.close()
        self._group = next((g for g in GROUPS if all(k % g == 0 for k in columns)), 32)
        self.prompt = min(PROMPT, self.spec.context - 1)

    def run(self) -> tuple[list[ComparedModel], list[KVTypeCost]]:
        """All candidates in their order, and the types of K/V."""
        logits = self.folder / "logits"
        # codes of the input would otherwise be multiplied by codes of activations
        full = self._open(self.model, {"activations": "f32"} if self.quantised else {})
        header = divergence.make_header(full, self.plan.text, self.plan.windows)
        divergence.record(full, header, logits, lambda done, total: None)
        rows: list[ComparedModel] = []
        total = len(self.plan.candidates)
        with closing(StoreReader(logits)) as reader:
            for i, candidate in enumerate(self.plan.candidates):
                self._report(f"making {candidate.name}", i, 2 * total)
                rows.append(self._make(candidate, rows))
                if rows[-1].path is not None:
                    rows[-1].found = self._measure(str(rows[-1].path), reader, {})
            self._time([row for row in rows if row.path is not None])
            kinds = self._measure_kinds(reader)
        mark_best(rows)
        return rows, kinds

    def _open(self, model: str, engine: Mapping[str, Any]) -> EvalSession:
        return EvalSession(model, self.plan.text, self.plan.windows, {**self.plan.engine, **engine})

    def _measure(self, model: str, full: StoreReader, engine: Mapping[str, Any]) -> Divergence:
        session = self._open(model, engine)
        return divergence.compare(session, full, lambda done, total: None)

    def _make(self, candidate: Candidate, others: Sequence[ComparedModel]) -> ComparedModel:
        options = dict(candidate.options)
        if candidate.grouped:
            options["group_size"] = self._group
        if candidate.like:
            sizes = {row.name: row.nbytes for row in others if row.path}
            if candidate.like not in sizes:
                return ComparedModel(candidate.name, problem=f"no size of {candidate.like} to keep")
            options["target_size"] = sizes[candidate.like]
        suffix = ".gguf" if "type" in options or candidate.like else ""
        out = self.folder / f"{candidate.name.replace(' ', '-')}{suffix}"
        began = time.monotonic()
        try:
            made = QuantizeOptions(**options, requantize=True, samples=self.plan.samples)
            calibration = self.plan.calibration if made.takes_calibration else None
            prepared = prepare_model(self.model, str(out), made, calibration)
            run_prepared(prepared, out, Evaluation(tokens=0), None, SilentEvaluation)
        except FlyweightError as error:
            return ComparedModel(candidate.name, problem=str(error))
        files = [out] if out.is_file() else [*out.glob("*.safetensors")]
        nbytes = sum(file.stat().st_size for file in files)
        return ComparedModel(candidate.name, out, nbytes, time.monotonic() - began)

    def _time(self, rows: Sequence[ComparedModel]) -> None:
        """In turn, so that a machine that changes its speed is fair to all."""
        tests = [
            Workload(gen=GENERATED), Workload(gen=GENERATED, seqs=SEQUENCES),
            Workload(prompt=self.prompt),
        ]  # fmt: skip
        seconds: dict[str, list[list[float]]] = {row.name: [[], [], []] for row in rows}
        steps = self.plan.rounds * len(rows)
        for i in range(steps):
            row = rows[i % len(rows)]
            self._report(f"timing {row.name}", steps + i, 2 * steps)
            usual = {k: v for k, v in self.plan.engine.items() if k in ("threads", "memory_limit")}
            engine = OwnEngine(str(row.path), tests, BenchEngineOptions(**usual), SilentListener())
            for test, held in zip(tests, seconds[row.name], strict=True):
                held.append(engine.measure(test, i // len(rows)).seconds)
            del engine
            gc.collect()
        for row in rows:
            one, many, first = (median(held) for held in seconds[row.name])
            row.decode, row.batch, row.ttft = GENERATED / one, GENERATED * SEQUENCES / many, first

    def _measure_kinds(self, reader: StoreReader) -> list[KVTypeCost]:
        found = []
        for kind in KV_TYPES.values():
            nbytes = sum(kind.count_bytes(layer.kv) for layer in self.spec.layers)
            cost = self._measure(self.model, reader, {"kv_cache_dtype": kind.name})
            found.append(KVTypeCost(kind.name, nbytes, cost))
        return found


def mark_best(rows: Sequence[ComparedModel]) -> None:
    """Marks the Pareto front of divergence and decode speed."""
    known = [row for row in rows if row.found is not None]
    for row in known:
        assert row.found is not None
        row.best = not any(
            other is not row
            and other.found is not None
            and other.found.mean.mean <= row.found.mean.mean
            and other.decode > row.decode
            for other in known
        )
