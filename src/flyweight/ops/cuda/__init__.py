"""The CUDA backend: `ops.base.Ops` over torch tensors and Triton kernels, on one device.

Invariant: arrays between ops are tensors on the device.  `linear` and `embed` give float32; what
`linear` reads (`norm`, `act`, `attend`) is rounded to bfloat16 where it is made, with activations
bf16.  Accumulation is float32, in an order that depends on the shape of the weight or on the
position of a token, never on the other rows of a call.  Host arrays (a batch's columns, vectors of
weights) are copied to the device once and kept.  Knows no models and no files.

Behind it: weights, linear, attention, rows (norms, activations), experts, sample, step (a batch's
columns) and graphs.
With TRITON_INTERPRET=1 and device "cpu" the kernels run in Triton's interpreter, for tests.
"""

from flyweight.ops.cuda.backend import CudaOps

__all__ = ["CudaOps"]
