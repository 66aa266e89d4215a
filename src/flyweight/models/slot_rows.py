"""Some of the rows of a weight slot, as another slot.

Invariant: the rows are those of the whole slot, in the requested order, with their biases.  Reads
no tensor.
"""

from collections.abc import Sequence
from dataclasses import replace

from flyweight.spec import SlotPlan, Source


def take_rows(slot: SlotPlan, wanted: Sequence[range]) -> SlotPlan:
    """A slot with some of its rows, in the given order."""
    shape = (sum(map(len, wanted)), *slot.shape[1:])
    first = slot.sources[0]
    if len(slot.sources) == 1 and len(first.order) == first.out:
        return replace(slot, shape=shape, sources=(_take_ordered_rows(first, wanted),))
    sources: list[Source] = []
    for rows in wanted:
        at = 0
        for source in slot.sources:
            own = range(max(rows.start - at, 0), min(rows.stop - at, source.out))
            at += source.out
            if own:
                sources.append(_take_source_rows(source, own))
    return replace(slot, shape=shape, sources=tuple(sources))


def _take_source_rows(source: Source, rows: range) -> Source:
    """Neighbouring rows, which are whole heads where heads' rows have an order."""
    turned = len(source.order) or 1
    assert rows.start % turned == len(rows) % turned == 0, f"{source.tensor}: heads are cut"
    if source.transposed:
        return replace(source, outputs=(rows.start, len(rows)))
    return replace(source, start=source.start + rows.start, rows=len(rows))


def _take_ordered_rows(source: Source, wanted: Sequence[range]) -> Source:
    """Rows of a source whose rows are all in an order of their own (q, k and v of each head
    together, or gate and up in turns); in the file they are neighbours.
    """
    places = [source.order[row] for rows in wanted for row in rows]
    first = min(places)
    assert sorted(places) == [*range(first, first + len(places))], f"{source.tensor}: no neighbours"
    cut = _take_source_rows(replace(source, order=()), range(first, first + len(places)))
    return replace(cut, order=tuple(place - first for place in places))
