from collections.abc import Sequence
import enum
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray


def isas() -> list[str]:
    """Names of the instruction sets this machine can run, best last."""

class Pool:
    """Worker threads and the kernels they run; `isa` empty takes the best."""

    def __init__(self, threads: int, isa: str = '') -> None: ...

    @property
    def threads(self) -> int: ...

    @property
    def isa(self) -> str: ...

    @property
    def opens_pairs(self) -> bool:
        """Whether products in bf16 open grouped weights to bf16."""

KV_SPARE: int = 64

class KV:
    """K and V bytes of one layer with their layout (native/kv.h)."""

    def __init__(self, k: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], v: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')] | None, dtype: int, blocks: int, shape: tuple[int, int, int, int, bool]) -> None: ...

class Scratch:
    """Working memory; one call at a time may use it."""

    def __init__(self) -> None: ...

    @property
    def nbytes(self) -> int: ...

def rope_store(pool: Pool, qkv: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], kv: KV, slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], cos: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], sin: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], norms: tuple[Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, float]) -> NDArray[numpy.float32]: ...

def attend(pool: Pool, scratch: Scratch, q: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], kv: KV, positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], scoring: tuple[float, tuple[int, int], float, Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None]) -> NDArray[numpy.float32]: ...

def populate_kv(pool: Pool, kv: KV, first: int, count: int) -> None: ...

def move_kv(pool: Pool, scratch: Scratch, kv: KV, src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

def accumulate_gram(pool: Pool, h: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
    """Adds x^T x to a symmetric h [K, K], for rows x [T, K]."""

def gptq_sweep(pool: Pool, rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], factor: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, group: int, bits: int, symmetric: bool, shrink: bool) -> tuple[NDArray[numpy.uint8], NDArray[numpy.float32], NDArray[numpy.uint8]]:
    """
    Codes [N, K], scales and zero points [N, K / group] of finite rows [N, K]; factor [K, K] is the upper Cholesky
    factor of the inverse Hessian, None for rounding to nearest.
    """

class GatedAct(enum.Enum):
    silu = 0

    gelu = 1

    gelu_tanh = 2

    swiglu_clamped = 3

class PlainAct(enum.Enum):
    silu = 0

    gelu = 1

    gelu_tanh = 2

    relu = 3

def norm(pool: Pool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], w: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float) -> NDArray[numpy.float32]: ...

def add_norm(pool: Pool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], residual: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], w: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float) -> NDArray[numpy.float32]: ...

def layer_norm(pool: Pool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], w: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], b: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, eps: float) -> NDArray[numpy.float32]: ...

def act(pool: Pool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], kind: GatedAct) -> NDArray[numpy.float32]: ...

def add(pool: Pool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], residual: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

def activate(pool: Pool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], kind: PlainAct) -> NDArray[numpy.float32]: ...

def scale(pool: Pool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], by: float) -> None: ...

def softcap(pool: Pool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], cap: float) -> None: ...

def gate(pool: Pool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

def take(pool: Pool, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> NDArray[numpy.float32]: ...

@overload
def encode_blocks(pool: Pool, kind: str, rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], importance: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> NDArray[numpy.uint8]:
    """
    Blocks of a type of GGUF, uint8 [N, bytes], of finite float32 [N, K], or of bfloat16 bits.
    """

@overload
def encode_blocks(pool: Pool, kind: str, rows: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)], importance: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> NDArray[numpy.uint8]: ...

def kinds() -> list[str]:
    """Names of the kinds of weights that kernels read, without their forms."""

PACKING: int = 1

def packed_nbytes(kind: str, n: int, k: int) -> int: ...

class Arena:
    """Memory that weights share, on huge pages."""

    def __init__(self) -> None: ...

class Tiles:
    """A matrix [n, k] of one kind in 16-row tiles, zero until packed."""

    def __init__(self, arena: Arena, kind: str, n: int, k: int) -> None: ...

    @property
    def kind(self) -> str: ...

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def bytes(self) -> Annotated[NDArray[numpy.uint8], dict(writable=False)]:
        """The tiles as they lie in memory."""

class TileFile:
    """
    A file of packed tiles, mapped; its pages may move to huge ones of our own.
    """

    def __init__(self, descriptor: int, small: bool) -> None: ...

    @property
    def unmoved(self) -> int:
        """Bytes that may still move."""

    def move(self, pool: Pool, count: int) -> None:
        """Moves so many more bytes, in whole huge pages."""

    @property
    def nbytes(self) -> int: ...

    def tiles(self, offset: int, kind: str, n: int, k: int) -> Tiles:
        """The matrix whose tiles begin at an offset."""

class Panels:
    """
    Rounded activations and other working memory of products, one call at a time.
    """

    def __init__(self) -> None: ...

    @property
    def nbytes(self) -> int: ...

def pack_rows(pool: Pool, tiles: Tiles, row: int, rows: int, codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], scales: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, mins: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, super_scales: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, super_mins: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
    """
    Writes rows [row, row + rows) from canonical fields, each given as its bytes; mins may be zero points.
    """

def pack_extras(tiles: Tiles, row: int, row_scales: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, columns: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, input_scale: float) -> None:
    """
    Writes what lies behind the tiles: the scales of rows from `row` on, and the rest.
    """

def checksum(bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> bytes:
    """32 bytes that damage changes; no protection against forgery."""

def block_kinds() -> list[str]:
    """Kinds whose blocks, as files have them, pack_blocks takes."""

def pack_blocks(pool: Pool, tiles: Tiles, row: int, rows: int, blocks: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """
    Writes rows [row, row + rows) from a file's blocks, given as their bytes.
    """

def linear(pool: Pool, panels: Panels, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], tiles: Tiles, bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], column: int, mode: int) -> None:
    """
    out[:, column:column+n] = x @ tiles.T + bias; mode 0 f32, 1 bf16, 2 int8 activations.
    """

def embed(pool: Pool, tiles: Tiles, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """out[i] = row ids[i] of the matrix, exactly."""

def probe_read(pool: Pool, tiles: Tiles) -> int:
    """Reads a matrix once; bytes."""

def probe_dot(pool: Pool, rounds: int) -> int:
    """int8 dots in registers; operations."""

def probe_bf16(pool: Pool, rounds: int) -> int:
    """bf16 products in registers; operations."""

def probe_fma(pool: Pool, rounds: int) -> int:
    """float32 fma in registers; operations."""

class Scoring(enum.Enum):
    softmax = 0

    chosen = 1

    sigmoid = 2

def route(pool: Pool, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, rule: tuple[int, Scoring, bool, float, int, int, int]) -> tuple[NDArray[numpy.int32], NDArray[numpy.float32]]:
    """
    ids and weights [T, top]; rule: top, scoring, normalise, scale, groups, kept, judges.
    """

def experts(pool: Pool, panels: Panels, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], ids: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], matrices: tuple[Sequence[object], Sequence[object]], act: GatedAct, modes: Sequence[int]) -> NDArray[numpy.float32]:
    """
    Each token's weighted sum of its experts; matrices: up and down, a weight an expert; modes: one a kind.
    """

def linear_heads(pool: Pool, panels: Panels, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], weights: Sequence[object], modes: Sequence[int]) -> NDArray[numpy.float32]:
    """out[:, h] = x[:, h] through weight h."""

def sample(pool: Pool, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], draw: tuple[Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]], history: tuple[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None, bias: tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None, allowed: tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None, banned: tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None, repeats: tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None, masks: tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)]] | None, given: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], logprobs: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[NDArray[numpy.int32], NDArray[numpy.float32], NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.float32]]: ...

class Stack:
    """Layers read from their recipes, with what keeps their weights alive."""

    def __init__(self, recipes: Sequence[object], acts: Sequence[object], hidden: int, modes: Sequence[int]) -> None: ...

    @property
    def floats(self) -> int:
        """Of a token, between kernels."""

class StackKV:
    """K/V of a stack's layers."""

    def __init__(self, layers: Sequence[object]) -> None: ...

def run_stack(pool: Pool, panels: Panels, scratch: Scratch, stack: Stack, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, residual: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], kv: StackKV, places: tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)]], ropes: Sequence[tuple[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]]], ancestors: tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None = None, taps: Sequence[tuple[int, Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]]] = []) -> NDArray[numpy.float32]:
    """
    Layer after layer: adds to the residual, returns what is still to be added; x: what is before the first; taps: layers, and arrays that get the residual after them, all added.
    """

def rotation(pool: Pool, positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], frequencies: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], scale: float) -> tuple[NDArray[numpy.float32], NDArray[numpy.float32]]:
    """
    cos and sin [T, dim/2] of every position times every frequency, times scale.
    """

class Bpe:
    """Byte-pair merging over a vocabulary."""

    def __init__(self, bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], end: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], uses: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], whole: bool, fallback: bool) -> None: ...

    def add_merges(self, bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], end: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
        """
        The merges, lowest rank first; the first that names what is no piece, or -1.
        """

    def encode(self, words: Sequence[str]) -> list[int]:
        """Ids of words, one word after the other."""

def malformed(bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], end: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """The first that is not UTF-8, or -1."""

def scan(bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], at: int, count: int, most: int) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """
    Where strings lie that follow their lengths: begin, end; fewer than count where one is cut short or too long.
    """
