"""Who can reach a Ray cluster: one that is started here is not reached from other machines, and an
existing one off loopback has to have authentication.

Invariant: what reaches Ray without a token can run programs, so such a cluster is never joined.
"""

import os
import secrets
import sys
from typing import Any

from flyweight.errors import ConfigError
from flyweight.validation.nodes import is_loopback

MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
# Ray replaces 127.0.0.1 by the machine's outward address, and takes other loopback addresses
LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"


def protect_local_cluster() -> dict[str, Any]:
    """The arguments of `ray.init` for a cluster of this machine alone.  It has a token of its own
    where the user has set none.
    """
    if not {MODE, TOKEN, TOKEN_FILE} & os.environ.keys():
        os.environ[TOKEN] = secrets.token_hex(32)  # Ray turns authentication on by itself
    return {"_node_ip_address": LOOPBACK}


def check_authentication(cluster: str, option: str, given: str) -> None:
    """Raises `ConfigError` where the HOST:PORT of a cluster is off loopback and Ray uses no tokens.
    `given` is the value of `option` that led there.
    """
    host = cluster.rpartition("://")[2].rpartition(":")[0].strip("[]")
    if not host or is_loopback(host) or os.environ.get(MODE, "").lower() == "token":
        return
    raise ConfigError(
        f": the Ray cluster at {cluster} is off loopback and needs authentication", option,
        value=given, hint=f"set {MODE}=token and {TOKEN}, also where Ray is started",
    )  # fmt: skip
