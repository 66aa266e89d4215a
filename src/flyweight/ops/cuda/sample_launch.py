"""Launches of kernels with little work on the host.

Invariant: a kernel compiled once is launched without Triton's search for it, which costs more than
the launch; the key has all that Triton compiles by: integers, and which tensors begin at 16 bytes.
"""

from typing import Any

from torch import Tensor

_compiled: dict[tuple[Any, ...], Any] = {}


def launch(kernel: Any, programs: int, args: tuple[Any, ...], warps: int) -> None:
    """`args` are all arguments in order, constants too.  No multiplication is fused to an addition:
    weights have the reference's bits.
    """
    traits = [a.data_ptr() % 16 == 0 if isinstance(a, Tensor) else a for a in args]
    key = (kernel, warps, args[0].device, *traits)
    held = _compiled.get(key)
    if held is not None:
        held[(programs, 1, 1)](*args)
        return
    made = kernel[(programs,)](*args, num_warps=warps, enable_fp_fusion=False)
    if made is not None:  # the interpreter makes none
        _compiled[key] = made
