"""Sends a request without a token to a Ray cluster, whose address is the only argument.

Whether Ray uses tokens is read once in a process, so this has one of its own.

Invariant: ends with `REFUSED` where the cluster requires a token, with 0 where it does not.
"""

import sys

from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError

REFUSED = 3
PATIENCE = 10  # seconds


def main() -> int:
    try:
        GcsClient(address=sys.argv[1]).internal_kv_keys(b"", namespace=None, timeout=PATIENCE)
    except AuthenticationError:
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
