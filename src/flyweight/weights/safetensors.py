"""The safetensors reader: an 8-byte length, a JSON header, then the tensors' bytes end to end.

Invariant: tensors tile the data section exactly (no overlap, no hole, no byte past the end), each
as long as its shape and type say. Format: huggingface.co/docs/safetensors. Does not know which
tensors a model wants.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import parse_object, shown
from flyweight.weights.mapped import MappedFile
from flyweight.weights.tensorinfo import Span

KINDS = {
    "F32": "f32", "F16": "f16", "BF16": "bf16", "U8": "u8", "BOOL": "u8", "I64": "i64",
    "I32": "i32", "I16": "i16", "I8": "i8", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2",
    "F8_E8M0": "e8m0", "F4": "f4",
}  # fmt: skip
BITS = {
    "f32": 32, "f16": 16, "bf16": 16, "u8": 8, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "e4m3": 8,
    "e5m2": 8, "e8m0": 8, "f4": 4,
}  # fmt: skip
MOST_HEADER = 100_000_000
MOST_TENSORS = 1 << 17  # of one file; the largest published models have 2^10
MOST_AXES = 8
ENTRY = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """`header` is where the data begins, in bytes; `spans` hold offsets into the file; `metadata`
    is the header's free text.
    """

    file: MappedFile
    header: int
    spans: dict[str, Span]
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_safetensors(path: Path, faults: list[str] | None = None) -> SafetensorsFile:
    """Maps a file and checks its whole header; reads no tensor.  With `faults`, those of single
    tensors are added there, and the tensors left out.
    """
    file = MappedFile(path)
    try:
        length = int.from_bytes(file.copy(0, 8, "the header's length"), "little")
        if length > MOST_HEADER:
            raise CheckpointError(
                f"{path}: header of {length} bytes; at most {MOST_HEADER} "
                "(is this a safetensors file?)"
            )
        text = file.copy(8, length, "the header")
        if (count := text.count(b'"data_offsets"')) > MOST_TENSORS:  # each costs a kilobyte parsed
            raise CheckpointError(f"{path}: header of {count} tensors; at most {MOST_TENSORS}")
        header = parse_object(text, f"{path}: header")
        metadata = _read_text(header.pop("__metadata__", None))
        spans = _read_spans(header, path, 8 + length, faults)
        _check_tiling(spans, path, (8 + length, file.size), faults)
    except CheckpointError:
        file.close()
        raise
    file.drop(0, 8 + length)
    return SafetensorsFile(file, 8 + length, spans, metadata)


def _read_text(found: Any) -> dict[str, str]:
    """Free text about the file, which only some formats write what they need into."""
    pairs = found.items() if isinstance(found, dict) else ()
    return {key: text for key, text in pairs if isinstance(text, str)}


def _read_spans(
    header: dict[str, Any], path: Path, data: int, faults: list[str] | None
) -> dict[str, Span]:
    found: dict[str, Span] = {}
    for name, entry in header.items():
        try:
            found[name] = _read_span(f"{path}: tensor {shown(name)}", entry, data)
        except CheckpointError as error:
            _report_fault(str(error), faults)
    return found


def _report_fault(message: str, faults: list[str] | None) -> None:
    """A fault of one tensor, after which the others can still be read."""
    if faults is None:
        raise CheckpointError(message)
    faults.append(message)


def _read_span(where: str, entry: Any, data: int) -> Span:
    if not isinstance(entry, dict) or set(entry) != ENTRY:
        raise CheckpointError(f"{where}: its header entry must hold dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in KINDS:
        raise CheckpointError(f"{where} has dtype {shown(dtype)}; readable: {', '.join(KINDS)}")
    if not _are_naturals(shape) or len(shape) > MOST_AXES:
        raise CheckpointError(
            f"{where} has shape {shown(shape)}; up to {MOST_AXES} whole numbers expected"
        )
    if not _are_naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has data_offsets {shown(offsets)}; [begin, end] expected")
    kind, stored = KINDS[dtype], offsets[1] - offsets[0]
    needed = math.prod(shape) * BITS[kind] // 8
    if kind == "f4" and (not shape or shape[-1] % 2):
        raise CheckpointError(f"{where}: shape {shape} of {dtype}; rows must fill whole bytes")
    if stored != needed:
        raise CheckpointError(
            f"{where}: shape {shape} of {dtype} needs {needed} bytes, "
            f"its data_offsets span {stored}"
        )
    return Span(tuple(shape), kind, data + offsets[0], stored)


def _are_naturals(value: Any) -> bool:
    """A list of whole numbers that could be sizes in a file."""
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in value)


def _check_tiling(
    spans: dict[str, Span], path: Path, bounds: tuple[int, int], faults: list[str] | None
) -> None:
    """`bounds`: where the data begins and the file ends.  After a fault of one entry the holes it
    leaves are no news.
    """
    (end, size), before, whole = bounds, "the header", not faults
    for name, span in sorted(spans.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        where = f"{path}: tensor {shown(name)}"
        ends = span.offset + span.nbytes
        if ends > size:
            _report_fault(
                f"{where} ends at byte {ends}, but the file ends at {size}; "
                "it is truncated or damaged",
                faults,
            )
        elif span.offset < end:
            _report_fault(f"{where} overlaps {before}", faults)
        elif span.offset > end and whole:
            _report_fault(f"{where} leaves a hole after {before}", faults)
        if ends > size or span.offset < end:
            del spans[name]
        end, before = ends, shown(name)
    if end < size and whole:
        _report_fault(
            f"{path}: {size - end} bytes follow the last tensor; the header does not know them",
            faults,
        )
