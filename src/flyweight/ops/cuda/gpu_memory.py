"""The process that reads the memory of GPUs: `python -m flyweight.ops.cuda.gpu_memory NUMBER ...`.

Writes a list of [total, free] bytes.  Invariant: holds no memory of a GPU once it has ended.
"""

import json
import sys
from collections.abc import Sequence

import torch


def main(numbers: Sequence[str]) -> int:
    found = [torch.cuda.mem_get_info(int(number)) for number in numbers]
    print(json.dumps([(total, free) for free, total in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
