"""What the extension is handed may be wrong; it answers with an exception, never with a crash.

Called below the Python glue, with what no engine passes: sizes at the end of 63 bits, wrong dtypes,
starts that point past the tokens, more threads than there are, a fork.
"""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from flyweight import _native
from flyweight.ops.cpu import CpuOps

END = 2**63 - 1
KINDS = len(_native.kinds())
F32_MODES = [0] * KINDS


def pool() -> _native.Pool:
    return _native.Pool(2)


def tiles() -> _native.Tiles:
    """16 rows of 4 ones."""
    made = _native.Tiles(_native.Arena(), "f32", 16, 4)
    _native.pack_rows(pool(), made, 0, 16, np.ones(64, np.float32).view(np.uint8))
    return made


@pytest.mark.parametrize(("row", "rows"), [(END, 1), (1, END), (16, 1), (-1, 1)])
def test_rows_beyond_a_weight_are_refused(row: int, rows: int) -> None:
    with pytest.raises(ValueError, match="rows beyond"):
        _native.pack_rows(pool(), tiles(), row, rows, np.zeros(16, np.uint8))


@pytest.mark.parametrize("column", [END, END - 15, 1, -1])
def test_a_column_beyond_the_output_is_refused(column: int) -> None:
    x, out = np.ones((1, 4), np.float32), np.zeros((1, 16), np.float32)
    with pytest.raises(ValueError, match="narrow"):
        _native.linear(pool(), _native.Panels(), x, tiles(), None, out, column, 0)


@pytest.mark.parametrize(("n", "k"), [(1 << 40, 1 << 40), (END, 1), (1, END), (END, END)])
def test_a_size_no_machine_has(n: int, k: int) -> None:
    assert _native.packed_nbytes("f32", n, k) >= 1 << 62
    with pytest.raises(MemoryError):
        _native.Tiles(_native.Arena(), "f32", n, k)
    with pytest.raises(ValueError, match="negative"):
        _native.packed_nbytes("f32", -n, k)


@pytest.mark.parametrize(
    ("blocks", "heads", "block"), [(1 << 40, 1, 1 << 40), (1 << 32, 1, 1), (1, 1 << 62, 1)]
)
def test_kv_larger_than_its_memory_is_refused(blocks: int, heads: int, block: int) -> None:
    memory = np.zeros(128, np.uint8)
    with pytest.raises(ValueError):
        _native.KV(memory, memory, 2, blocks, (heads, block, 16, 16, False))


def test_kv_between_its_elements_is_refused() -> None:
    memory = np.zeros(1024, np.uint8)
    skip = 1 - memory.ctypes.data % 2
    with pytest.raises(ValueError, match="aligned"):
        _native.KV(memory[skip:], memory[skip:], 0, 1, (1, 16, 16, 16, False))


def test_starts_past_the_tokens_are_not_followed() -> None:
    memory = np.zeros(16 * 16 * 4 + 64, np.uint8)
    kv = _native.KV(memory, memory, 2, 1, (1, 16, 16, 16, False))
    starts, tables = np.array([0, 2**31 - 1, 2], np.int32), np.zeros((2, 1), np.int32)
    q, positions = np.zeros((2, 1, 16), np.float32), np.arange(2, dtype=np.int32)
    with pytest.raises(ValueError, match="starts must ascend"):
        _native.attend(
            pool(), _native.Scratch(), q, kv, positions, starts, tables, (1.0, (0, 0), 0.0, None)
        )


def test_other_dtypes_are_refused_not_converted() -> None:
    """A converted output would be a copy nobody sees; a converted id could be another id."""
    x, out = np.ones((1, 4), np.float32), np.zeros((1, 16), np.float32)
    for wrong_x, wrong_out in ((x.astype(float), out), (x, out.astype(float)), (x, out[:, ::-1])):
        with pytest.raises(TypeError):
            _native.linear(pool(), _native.Panels(), wrong_x, tiles(), None, wrong_out, 0, 0)
    with pytest.raises(TypeError):
        _native.embed(pool(), tiles(), np.array([2**32 + 3]), np.zeros((1, 4), np.float32))
    with pytest.raises(TypeError):
        _native.pack_rows(pool(), tiles(), 0, 1, np.ones(16, np.float32))


def test_fields_may_be_at_any_address() -> None:
    values = np.arange(64, dtype=np.float32)
    raw = np.zeros(257, np.uint8)
    raw[1:] = values.view(np.uint8)
    made, out = tiles(), np.zeros((16, 4), np.float32)
    _native.pack_rows(pool(), made, 0, 16, raw[1:])
    _native.embed(pool(), made, np.arange(16, dtype=np.int32), out)
    assert (out.reshape(-1) == values).all()


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_the_system_does_not_grant() -> None:
    """One line that names them, and the threads that were granted have ended."""
    said = run(
        """
import os, resource
from flyweight.errors import ConfigError
from flyweight.ops.cpu import CpuOps
before = len(os.listdir("/proc/self/task"))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20),) * 2)
try:
    CpuOps(1024)
except ConfigError as refused:
    print(refused, len(os.listdir("/proc/self/task")) == before)
"""
    )
    assert said.startswith("threads = 1024; the system grants fewer (") and said.endswith("True\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_child_of_a_fork_may_use_and_free_the_pool() -> None:
    said = run(
        """
import os
import platform
import numpy as np
from flyweight import _native
pool, x = _native.Pool(4), np.ones((64, 4096), np.float32)
want = _native.norm(pool, x, x[0], 1e-5)
child = os.fork()
if child == 0:
    same = (_native.norm(pool, x, x[0], 1e-5) == want).all()
    del pool
    os._exit(0 if same else 1)
print(os.waitpid(child, 0)[1])
"""
    )
    assert said == "0\n"


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="sets MXCSR")
def test_a_caller_that_flushes_subnormals_changes_nothing() -> None:
    """A library built with -ffast-math leaves its thread so; one row and many must still agree."""
    said = run(
        """
import ctypes
import numpy as np
from flyweight.ops.cpu import CpuOps

from flyweight.ops.grouped import GroupedWeight
libm = ctypes.CDLL("libm.so.6")
before, flushing = ctypes.create_string_buffer(32), ctypes.create_string_buffer(32)
libm.fegetenv(before), libm.fegetenv(flushing)
flushing[28:32] = (int.from_bytes(before[28:32], "little") | 0x8040).to_bytes(4, "little")
rng = np.random.default_rng(0)
x = (rng.normal(size=(70, 64)) * 1e-36).astype(np.float32)
same = True
for threads in (1, 2):
    for mode in ("f32", "bf16", "int8"):
        ops = CpuOps(threads, activations=mode)
        weight = ops.pack((2, 64), [rng.normal(size=(2, 64)).astype(np.float32)])
        codes, scales = rng.integers(-99, 99, (2, 64)), np.full((2, 2), 0.01)
        codes, scales = codes.astype(np.int8), scales.astype(np.float16)
        q8 = ops.pack((2, 64), [GroupedWeight((2, 64), 8, 32, codes, scales)])
        for packed in (weight, q8):
            want = ops.linear(x, packed)
            libm.fesetenv(flushing)
            one, many = ops.linear(x[:1], packed), ops.linear(x, packed)
            libm.fesetenv(before)
            same &= (many == want).all() and (one == want[:1]).all() and bool(want.any())
print(same)
"""
    )
    assert said == "True\n"


def few() -> tuple[list[object], list[object]]:
    """Three experts of 2 inner elements over rows of 4."""
    ops = CpuOps(1)
    up = [ops.pack((4, 4), [np.ones((4, 4), np.float32)]) for _ in range(3)]
    down = [ops.pack((4, 2), [np.ones((4, 2), np.float32)]) for _ in range(3)]
    return list(up), list(down)


@pytest.mark.parametrize("wrong", [3, -1, 2**31 - 1, -(2**31)])
def test_an_expert_that_is_not_there(wrong: int) -> None:
    x, weights = np.ones((2, 4), np.float32), np.ones((2, 2), np.float32)
    ids = np.array([[0, 1], [2, wrong]], np.int32)
    with pytest.raises(ValueError, match="beyond the experts"):
        _native.experts(
            pool(), _native.Panels(), x, ids, weights, few(), _native.GatedAct.silu, F32_MODES
        )


def test_experts_that_do_not_fit_are_refused() -> None:
    up, down = few()
    ops = CpuOps(1)
    x, ids = np.ones((2, 4), np.float32), np.array([[0], [1]], np.int32)
    weights = np.ones((2, 1), np.float32)
    odd = ops.pack((3, 4), [np.ones((3, 4), np.float32)])
    wide = ops.pack((4, 8), [np.ones((4, 8), np.float32)])
    more = ops.pack((6, 4), [np.ones((6, 4), np.float32)])
    for matrices, message in (
        ((up, down[:2]), "a matrix an expert"),
        (([odd, *up[1:]], down), "gate and up"),
        (([up[0], wide, up[2]], down), "columns"),
        (([up[0], more, up[2]], down), "rows"),
        ((up, [down[0], wide, down[2]]), "columns"),
        (([up[0], (), up[2]], down), "rows"),
    ):
        with pytest.raises(ValueError, match=message):
            ops._gemm.experts(x, (ids, weights), matrices, _native.GatedAct.silu)
    for some_ids, some_weights in (
        (ids[:1], weights[:1]),
        (ids, weights[:1]),
        (ids[:, :0].copy(), weights[:, :0].copy()),
    ):
        with pytest.raises(ValueError, match="experts"):
            ops._gemm.experts(x, (some_ids, some_weights), (up, down), _native.GatedAct.silu)
    for act, modes in ((_native.GatedAct.silu, [0]), (_native.GatedAct.silu, [2] * KINDS)):
        with pytest.raises(ValueError, match="mode"):
            _native.experts(pool(), _native.Panels(), x, ids, weights, (up, down), act, modes)
    with pytest.raises(TypeError):
        ops._gemm.experts(x, (ids.astype(np.int64), weights), (up, down), _native.GatedAct.silu)
    with pytest.raises(AttributeError):
        ops._gemm.experts(x, (ids, weights), ([1, 2, 3], down), _native.GatedAct.silu)


def test_heads_that_do_not_fit_are_refused() -> None:
    up, down = few()
    x = np.ones((2, 3, 4), np.float32)
    for weights in (up[:2], [*up[:2], down[0]], []):
        with pytest.raises(ValueError):
            _native.linear_heads(pool(), _native.Panels(), x, weights, F32_MODES)


def test_routes_that_no_spec_allows() -> None:
    logits, bias = np.ones((2, 6), np.float32), np.ones(5, np.float32)
    softmax = _native.Scoring.softmax
    for rule in (
        (0, softmax, False, 1.0, 1, 1, 1), (7, softmax, False, 1.0, 1, 1, 1),
        (1, softmax, False, 1.0, 4, 1, 1), (1, softmax, False, 1.0, 0, 1, 1),
        (1, softmax, False, 1.0, 3, 4, 1), (1, softmax, False, 1.0, 3, 0, 1),
        (1, softmax, False, 1.0, 3, 1, 0), (1, softmax, False, 1.0, 3, 1, 3),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="route"):
            _native.route(pool(), logits, None, rule)
    with pytest.raises(ValueError, match="bias"):
        _native.route(pool(), logits, bias, (1, softmax, False, 1.0, 1, 1, 1))
    with pytest.raises(ValueError, match="1024"):
        _native.route(
            pool(), np.ones((1, 1025), np.float32), None, (1, softmax, False, 1.0, 1, 1, 1)
        )
