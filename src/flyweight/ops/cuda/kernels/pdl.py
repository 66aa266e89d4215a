"""Programmatic dependent launch: a kernel starts while the one before it still runs.

Invariant: a kernel launched with `launch_pdl=True` calls `wait_inputs` before it reads anything
that another kernel writes, and before it writes anything.  What no kernel writes, weights, may be
fetched before.  Needs a GPU of compute capability 9.0; elsewhere the calls are nothing.
"""

import torch
import triton
import triton.language as tl


def _find() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


PDL = _find()


@triton.jit
def start_next(PDL: tl.constexpr):
    """Lets the next kernel start as soon as all programs of this one have come here."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_inputs(PDL: tl.constexpr):
    """Waits until the kernels before have written everything."""
    if PDL:
        tl.extra.cuda.gdc_wait()
