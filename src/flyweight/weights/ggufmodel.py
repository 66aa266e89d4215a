"""A model in one GGUF file, seen as a `Checkpoint`: names and metadata in Hugging Face's
vocabulary.

Invariant: every tensor of the file appears in `tensors` (under its own name when the table has
none), so that none is ignored silently; rope_freqs alone becomes part of the config.
"""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import GroupedWeight
from flyweight.untrusted import shown
from flyweight.weights import gguf_names
from flyweight.weights.formats import Rows
from flyweight.weights.formats.dense import to_f32
from flyweight.weights.gguf import GgufFile, read_gguf
from flyweight.weights.tensorinfo import Span, TensorInfo


class GgufCheckpoint:
    """A `Checkpoint` over one file; files split by gguf-split must be merged first."""

    converted = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gguf = read_gguf(path)
        try:
            self._describe(self._gguf, str(path))
        except CheckpointError:
            self.close()
            raise

    def _describe(self, gguf: GgufFile, where: str) -> None:
        parts = gguf.metadata.get("split.count", 0)
        if not isinstance(parts, int) or parts not in (0, 1):
            raise CheckpointError(
                f"{where}: part of a model split in {shown(parts)}; "
                "join them with gguf-split --merge"
            )
        arch = gguf_names.architecture(gguf.metadata, where)
        self.config = gguf_names.hf_config(gguf.metadata, gguf.spans, where)
        self.generation: dict[str, Any] = {}
        ends = gguf_names.end_ids(gguf.metadata, where)
        self.eos_ids = tuple(sorted(set(ends)))
        self._spans: dict[str, Span] = {}
        for name, span in gguf.spans.items():
            known = gguf_names.translate(arch.names, name)
            if known in self._spans:
                raise CheckpointError(
                    f"{where}: two tensors mean {shown(known)}, one of them {shown(name)}"
                )
            self._spans[known] = span
        self._read_rope_factors(where)
        self.tensors = {n: TensorInfo(n, s.shape, s.kind) for n, s in self._spans.items()}

    @property
    def tokenizer_source(self) -> Mapping[str, object]:
        return self._gguf.metadata

    @property
    def fingerprint(self) -> str:
        """Hash of the metadata, the tensor table, the size and samples of the data; path and times
        do not count.
        """
        return blake2b(self._gguf.file.digest(self._gguf.data), digest_size=16).hexdigest()

    def read(self, name: str, start: int, stop: int) -> Rows:
        return self._gguf.file.rows(name, self._spans[name], start, stop)

    def close(self) -> None:
        self._gguf.file.close()

    def _read_rope_factors(self, where: str) -> None:
        """Llama 3.x's rope scaling, worked out by the converter: one divisor for each frequency."""
        span = self._spans.pop(gguf_names.ROPE_FACTORS, None)
        if span is None:
            return
        pairs = self.config["head_dim"] // 2
        rows = None
        if span.shape == (pairs,):
            rows = self._gguf.file.rows(gguf_names.ROPE_FACTORS, span, 0, pairs)
        if rows is None or isinstance(rows, GroupedWeight):
            raise CheckpointError(
                f"{where}: {gguf_names.ROPE_FACTORS} is {span.kind} {list(span.shape)}; "
                f"[{pairs}] floats expected"
            )
        scaling = self.config["rope_scaling"] or {"rope_type": "linear", "factor": 1.0}
        with np.errstate(over="ignore"):  # what overflows is refused below
            factors = to_f32(rows) * np.float32(scaling["factor"])
        if scaling["rope_type"] != "linear" or not (
            np.isfinite(factors).all() and (factors > 0).all()
        ):
            raise CheckpointError(
                f"{where}: {gguf_names.ROPE_FACTORS} must be positive, "
                "with no rope scaling but linear beside it"
            )
        self.config["rope_scaling"] = {"rope_type": "factors", "factors": factors.tolist()}
