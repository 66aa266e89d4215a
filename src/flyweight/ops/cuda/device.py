"""The device that computes: the first GPU that CUDA shows, or the CPU under Triton's interpreter.

Invariant: memory is read afresh; nothing is allocated to read it, and what torch keeps of models
that were closed is given back first.
"""

import torch
import triton

from flyweight.errors import ConfigError

MIN_CAPABILITY = (8, 0)  # products and conversions of bfloat16 begin there


def find_device() -> torch.device:
    """Raises `ConfigError` where there is none, or one that is too old."""
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
        found = torch.cuda.get_device_capability(device)
        if found < MIN_CAPABILITY:
            name, (major, minor) = torch.cuda.get_device_name(device), found
            raise ConfigError(
                f"needs a GPU of compute capability 8.0 or later; {name} has {major}.{minor}",
                "backend",
                value="cuda",
                hint="nearest valid: cpu",
            )
        return device
    if triton.knobs.runtime.interpret:  # TRITON_INTERPRET=1: for tests
        return torch.device("cpu")
    raise ConfigError(
        "needs an NVIDIA GPU that this torch can use; torch.cuda.is_available() is False",
        "backend",
        value="cuda",
        hint="nearest valid: cpu",
    )


def read_memory(device: torch.device) -> tuple[int, int] | None:
    """(total, free) bytes of the device; None where it is the CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total, free
