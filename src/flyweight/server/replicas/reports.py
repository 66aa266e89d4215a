"""What replicas are started with, what they report, and which of them cannot serve with the others.

Invariant: a replica of another version of flyweight is refused, whatever its report is encoded as.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from flyweight import __version__
from flyweight.server import pipe
from flyweight.server.replicas.builds import ADAPTERS, CODE
from flyweight.server.replicas.places import locate_settings

FILES = ("vocab", "width", "context", "tokenizer")  # facts of engines that the model's files decide
ALIKE = (*FILES, "max_model_len", "scored", "adapters", "block_size")
WEIGHTS = ("fingerprint", ADAPTERS)  # facts that a reload may change
SHOWN = 12  # digits of a fingerprint


class ReplicaSetup(msgspec.Struct, array_like=True):
    """What replicas are started with; those that replace others have the next `generation`.
    `problem` is why one could not be decoded.
    """

    generation: int
    engine: pipe.EngineSetup
    problem: str = ""


class ReplicaReport(msgspec.Struct, array_like=True):
    """A replica's state: `facts` once its engine is loaded, or why it `failed`; messages of its
    `loading` in their order, without shares done, and the `gauges` of its newest step.
    """

    version: str
    generation: int = 0
    facts: dict[str, Any] | None = None
    failed: str = ""
    loading: list[pipe.LoadingProgress] = []
    gauges: pipe.Gauges | None = None


def encode_setup(generation: int, setup: pipe.EngineSetup) -> bytes:
    """A `ReplicaSetup`, whose settings mean the same on every host."""
    settings = locate_settings(setup.settings)
    setup = msgspec.structs.replace(setup, settings=settings, replica=True)
    return msgspec.msgpack.encode(ReplicaSetup(generation, setup))


def decode_setup(data: bytes) -> ReplicaSetup:
    """One that cannot be decoded is that of another version, and starts no engine."""
    try:
        return msgspec.msgpack.decode(data, type=ReplicaSetup)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        words = f"a replica's setup cannot be decoded: {error}"
        problem = f"{words}; every machine needs the server's flyweight, this one has {__version__}"
        return ReplicaSetup(0, pipe.EngineSetup({}, 0.0), problem)


def decode_report(data: bytes) -> ReplicaReport:
    """One that cannot be decoded is that of another version, which has failed here."""
    try:
        return msgspec.msgpack.decode(data, type=ReplicaReport)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        words = f"a replica's report cannot be decoded: {error}"
        return ReplicaReport("", failed=f"{words}; every machine needs flyweight {__version__}")


def find_difference(
    report: ReplicaReport, facts: Mapping[str, Any], weights: Mapping[str, Any]
) -> str:
    """Why a replica cannot serve with others, whose engines have these `facts`; empty where it can.
    `weights` are the facts `WEIGHTS` of its generation, as far as they are known.
    """
    if report.version != __version__:
        if not report.version:
            return report.failed
        return f"a replica runs flyweight {report.version}, this server {__version__}"
    if report.failed or report.facts is None:
        return report.failed
    if facts and report.facts[CODE] != facts[CODE]:
        pair = shorten(report.facts[CODE]), shorten(facts[CODE])
        return (
            "a replica has another build of flyweight {}: {}, another one {}; install the same on "
            "every machine".format(__version__, *pair)
        )
    for name in ALIKE if facts else ():
        theirs, ours = report.facts[name], facts[name]
        if theirs != ours:
            pair = shorten(theirs), shorten(ours)
            return "a replica's engine has {} = {}, another one's {}".format(name, *pair)
    for name, ours in weights.items():
        theirs = report.facts[name]
        if theirs != ours:
            what = "model has the" if name != ADAPTERS else "adapters have the"
            return (
                f"a replica's {what} fingerprint {shorten(theirs)}, and not {shorten(ours)}; "
                "copy the same files to every machine"
            )
    return ""


def shorten(value: Any) -> str:
    """A fact as messages show it: a fingerprint's first digits are enough."""
    if isinstance(value, list | tuple):
        return ", ".join(map(shorten, value)) or "none"
    return value[:SHOWN] if isinstance(value, str) else str(value)
