"""Who can reach a Ray cluster: one that is started here is not reached from other machines, and an
existing one off loopback has to have authentication.

Invariant: what reaches Ray without a token can run programs, so such a cluster is never used.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._private import auto_init_hook, ray_constants

from flyweight.errors import ConfigError
from flyweight.parallel.ray_stranger import PATIENCE, REFUSED
from flyweight.validation.nodes import is_loopback

MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
SET = f"set {MODE}=token and {TOKEN}, also where Ray is started"
UP = "see whether Ray is up there: ray status"


@contextmanager
def on_loopback() -> Iterator[None]:
    """A cluster that `ray.init` starts meanwhile listens on loopback, and has a token: the user's,
    or one of its own.  Raises `ConfigError` where Ray is too old for that.
    """
    # A thread of Ray's that outlives the cluster would start another one with its next call, which
    # the next `ray.init` meets, and which other machines can reach
    auto_init_hook.enable_auto_connect = False
    # Ray turns authentication on where this is unset; Ray Serve listens off loopback all the same
    if os.environ.get(MODE, "").lower() != "token":
        os.environ.pop(MODE, None)
    if not {TOKEN, TOKEN_FILE} & os.environ.keys():
        os.environ[TOKEN] = secrets.token_hex(32)
    # Ray replaces a given 127.0.0.1 by the machine's outward address unless this is off
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
    if os.environ.get(MODE, "").lower() != "token":
        ray.shutdown()
        hint = "pip install --upgrade 'flyweight[distributed]'"
        raise ConfigError("this version of Ray starts no cluster with authentication", hint=hint)


def check_authentication(cluster: str, option: str, given: str) -> None:
    """Raises `ConfigError` where the HOST:PORT of a cluster is off loopback and Ray uses no tokens
    here.  `given` is the value of `option` that led there.
    """
    if _is_near(cluster) or os.environ.get(MODE, "").lower() == "token":
        return
    raise _refuse(cluster, "needs authentication", option, given)


def check_cluster(cluster: str, option: str, given: str) -> None:
    """`check_authentication`, and whether the cluster at HOST:PORT requires a token: one that was
    started without tokens ignores them.  ray://HOST:PORT is not checked.
    """
    check_authentication(cluster, option, given)
    if "://" in cluster or _is_near(cluster):
        return
    without = {name: value for name, value in os.environ.items() if name not in (TOKEN, TOKEN_FILE)}
    words = [sys.executable, "-P", "-m", "flyweight.parallel.ray_stranger", cluster]
    try:
        done = subprocess.run(
            words, env=without | {MODE: "disabled"}, capture_output=True, timeout=3 * PATIENCE
        )
    except subprocess.TimeoutExpired:
        problem = "cannot be checked for authentication in time"
        raise _refuse(cluster, problem, option, given, UP) from None
    if done.returncode == 0:
        raise _refuse(cluster, "takes programs without a token", option, given)
    if done.returncode != REFUSED:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        problem = f"cannot be checked for authentication ({said})"
        raise _refuse(cluster, problem, option, given, UP)


def _is_near(cluster: str) -> bool:
    host = cluster.rpartition("://")[2].rpartition(":")[0].strip("[]")
    return not host or is_loopback(host)


def _refuse(cluster: str, problem: str, option: str, given: str, hint: str = SET) -> ConfigError:
    where = f": the Ray cluster at {cluster} is off loopback and {problem}"
    return ConfigError(where, option, value=given, hint=hint)
