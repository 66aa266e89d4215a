"""The device that computes: the first GPU that CUDA shows, that of a rank, or the CPU under
Triton's interpreter.

Invariant: memory is read afresh; nothing is allocated to read it, and what torch keeps of models
that were closed is given back first.
"""

import json
import subprocess
import sys
from collections.abc import Sequence

import torch
import triton

from flyweight.errors import ConfigError

MIN_CAPABILITY = (8, 0)  # products and conversions of bfloat16 begin there


def find_device(local_rank: int | None = None) -> torch.device:
    """The GPU of a rank of this host, else the current one.  Raises `ConfigError` where there is
    none, or one that is too old.
    """
    if torch.cuda.is_available():
        if local_rank is not None and local_rank < torch.cuda.device_count():
            torch.cuda.set_device(local_rank)  # on this thread, on which Triton launches
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


def count_devices(device: torch.device) -> int | None:
    """The GPUs of this host; None where the device is the CPU."""
    count: int | None = torch.cuda.device_count() if device.type == "cuda" else None
    return count


def read_memories(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """(total, free) bytes of these GPUs, read by another process: one that reads the memory of a
    GPU holds some of it until it ends.
    """
    if not numbers:
        return []
    command = [sys.executable, "-P", "-m", "flyweight.ops.cuda.gpu_memory", *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it ended"])[-1]
        named = ", ".join(map(str, numbers))
        raise ConfigError(f"the memory of GPUs {named} cannot be read: {why}")
    return [(total, free) for total, free in json.loads(done.stdout)]


def read_memory(device: torch.device) -> tuple[int, int] | None:
    """(total, free) bytes of the device; None where it is the CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total, free
