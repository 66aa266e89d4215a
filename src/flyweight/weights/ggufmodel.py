"""A model in GGUF, seen as a `Checkpoint`: names and metadata in Hugging Face's
vocabulary.

Invariant: every tensor of the file appears in `tensors` (under its own name when the table has
none), so that none is ignored silently; rope_freqs alone becomes part of the config.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import BlockRows, GroupedWeight
from flyweight.validation.untrusted import shown
from flyweight.weights import gguf_config, gguf_names
from flyweight.weights.formats import Rows
from flyweight.weights.formats.dense import to_f32
from flyweight.weights.ggufparts import GgufParts, read_parts
from flyweight.weights.tensorinfo import Span, TensorInfo
from flyweight.wire import F32

LONGROPE = {"rope_factors_long.weight": "long_factor", "rope_factors_short.weight": "short_factor"}
ROPE_TENSORS = ("rope_freqs.weight", *LONGROPE)
ROW = "shared_expert_gate.weight"  # a matrix of one row, which converters write as a vector


class GgufCheckpoint:
    """A `Checkpoint` over one file, or over all the parts of which `path` is one."""

    converted = True
    format = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gguf = read_parts(path)
        try:
            self._describe(self._gguf, str(path))
        except CheckpointError:
            self.close()
            raise

    def _describe(self, gguf: GgufParts, where: str) -> None:
        arch = gguf_names.find_architecture(gguf.metadata, where)
        self.config = gguf_config.make_hf_config(gguf.metadata, gguf.spans, where)
        self.generation: dict[str, Any] = {}
        ends = gguf_config.find_end_ids(gguf.metadata, where)
        self.eos_ids = tuple(sorted(set(ends)))
        self._spans: dict[str, Span] = {}
        for name, span in gguf.spans.items():
            known = gguf_names.translate(arch, name)
            if known in self._spans:
                raise CheckpointError(
                    f"{where}: two tensors mean {shown(known)}, one of them {shown(name)}"
                )
            if known.endswith(ROW) and len(span.shape) == 1:
                span = replace(span, shape=(1, *span.shape))
            self._spans[known] = span
        self._read_rope_factors(where)
        self.tensors = {n: TensorInfo(n, s.shape, s.kind) for n, s in self._spans.items()}

    @property
    def tokenizer_source(self) -> Mapping[str, object]:
        return self._gguf.metadata

    @property
    def fingerprint(self) -> str:
        return self._gguf.digest()

    @property
    def stamps(self) -> tuple[int, ...]:
        return tuple(part.file.stamp for part in self._gguf.files)

    def read(self, name: str, start: int, stop: int) -> Rows:
        return self._gguf.rows(name, self._spans[name], start, stop)

    def blocks(self, name: str, start: int, stop: int) -> BlockRows:
        return self._gguf.blocks(name, self._spans[name], start, stop)

    def close(self) -> None:
        self._gguf.close()

    def _read_rope_factors(self, where: str) -> None:
        """Rope scaling worked out by the converter, one divisor for each frequency: Llama 3.x's,
        and the two lists of longrope.
        """
        found = {
            name: self._take_divisors(name, where) for name in ROPE_TENSORS if name in self._spans
        }
        scaling = self.config.get("rope_scaling")
        if "rope_freqs.weight" in found:
            if scaling is None or scaling["rope_type"] in (None, "none"):
                scaling = {"rope_type": "linear", "factor": 1.0}
            if scaling["rope_type"] != "linear":
                raise CheckpointError(
                    f"{where}: rope_freqs.weight with rope scaling of type "
                    f"{shown(scaling['rope_type'])}; allowed: linear"
                )
            with np.errstate(over="ignore"):  # a family refuses what overflows
                factors = found["rope_freqs.weight"] * np.float32(scaling["factor"])
            self.config["rope_scaling"] = {"rope_type": "factors", "factors": factors.tolist()}
        elif found:
            if len(found) != 2:
                raise CheckpointError(f"{where}: {next(iter(found))} without its other half")
            lists = {known: found[name].tolist() for name, known in LONGROPE.items()}
            self.config["rope_scaling"] = {**(scaling or {}), "rope_type": "longrope", **lists}
        elif scaling and scaling["rope_type"] in (None, "none"):
            self.config["rope_scaling"] = None  # only what goes with longrope's lists

    def _take_divisors(self, name: str, where: str) -> F32:
        """The tensor's values, taken out of the model's tensors."""
        span = self._spans.pop(name)
        rows = None
        if len(span.shape) == 1:
            rows = self._gguf.rows(name, span, 0, span.shape[0])
        if rows is None or isinstance(rows, GroupedWeight):
            raise CheckpointError(
                f"{where}: {name} is {span.kind} {list(span.shape)}; a list of floats expected"
            )
        values = to_f32(rows)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise CheckpointError(f"{where}: {name} must be positive")
        return values
