"""Launches of kernels with little work on the host.

Invariant: a kernel compiled once is launched without Triton's search for it, which costs more than
the launch.  The key has all that Triton compiles by: the integers, and whether the first tensor,
the caller's, begins at 16 bytes; the other tensors are ours and always do.
"""

from typing import Any

from torch import Tensor

_compiled: dict[tuple[Any, ...], Any] = {}


def launch(kernel: Any, programs: int, args: tuple[Tensor | int, ...], warps: int) -> None:
    """`args` are all arguments in order, a tensor first, constants too.  No multiplication is fused
    to an addition: weights have the reference's bits.
    """
    first = args[0]
    assert isinstance(first, Tensor)
    numbers = [a for a in args if type(a) is int]
    key = (id(kernel), warps, first.get_device(), first.data_ptr() % 16, *numbers)
    held = _compiled.get(key)
    if held is not None:
        held[(programs, 1, 1)](*args)
        return
    made = kernel[(programs,)](*args, num_warps=warps, enable_fp_fusion=False)
    if made is not None:  # the interpreter makes none
        _compiled[key] = made
