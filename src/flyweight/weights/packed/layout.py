"""Where each packed matrix of a model lies in its kept file, and the key that names the file.

Invariant: places follow from the model's plan alone, so a kept file holds no offset, no size and no
name that would have to be believed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256

from flyweight.spec import WeightPlan

HUGE_PAGE = 2 << 20  # bytes; data begin on one
CACHE_LINE = 64  # each matrix begins on one
HEAD = 96  # bytes before the checksums
DIGEST = 32  # bytes of a checksum

Matrix = tuple[str, tuple[int, int], str]  # slot, shape [N, K], kind


@dataclass(frozen=True, slots=True)
class MatrixPlace:
    """One packed matrix: `nbytes` bytes from `offset` on."""

    slot: str
    shape: tuple[int, int]
    kind: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    @property
    def range(self) -> slice:
        return slice(self.offset, self.end)


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """A kept file: what it must be called by (`key`), and its matrices in loading order."""

    key: bytes
    places: tuple[MatrixPlace, ...]

    @property
    def start(self) -> int:
        """Where data begin."""
        return _round_up(HEAD + DIGEST * len(self.places), HUGE_PAGE)

    @property
    def size(self) -> int:
        """Bytes of the whole file, whole huge pages."""
        return _round_up(self.places[-1].end if self.places else self.start, HUGE_PAGE)

    @property
    def data(self) -> int:
        return sum(place.nbytes for place in self.places)


def lay_out(
    key: bytes, matrices: Iterable[Matrix], nbytes: Callable[[tuple[int, int], str], int]
) -> PackedLayout:
    """One matrix after the other."""
    found = list(matrices)
    at = _round_up(HEAD + DIGEST * len(found), HUGE_PAGE)
    places = []
    for slot, shape, kind in found:
        place = MatrixPlace(slot, shape, kind, at, nbytes(shape, kind))
        places.append(place)
        at = _round_up(place.end, CACHE_LINE)
    return PackedLayout(key, tuple(places))


def make_key(fingerprint: str, stamps: Iterable[int], plan: WeightPlan, packing: str) -> bytes:
    """What a kept file is made from: the model's files (their headers, sizes and samples are in the
    `fingerprint`; `stamps` are the times of their last change), the plan, and the layout of tiles.
    """
    found = sha256()
    for part in (fingerprint, ",".join(map(str, stamps)), repr(plan.slots), packing):
        found.update(f"{len(part)}:{part}".encode())
    return found.digest()


def _round_up(count: int, to: int) -> int:
    return -(-count // to) * to
