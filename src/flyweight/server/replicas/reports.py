"""What replicas are started with, what they report, and which of them cannot serve with the others.

Invariant: a replica of another version of flyweight is refused, whatever its report is encoded as.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from flyweight import __version__
from flyweight.server import pipe
from flyweight.server.replicas.places import locate_settings

FILES = ("vocab", "width", "context", "tokenizer")  # facts of engines that the model's files decide
ALIKE = (*FILES, "max_model_len", "scored", "adapters", "block_size")
SHOWN = 12  # digits of a fingerprint


class ReplicaSetup(msgspec.Struct, array_like=True):
    """What replicas are started with; those that replace others have the next `generation`."""

    generation: int
    engine: pipe.EngineSetup


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
    setup = msgspec.structs.replace(setup, settings=locate_settings(setup.settings))
    return msgspec.msgpack.encode(ReplicaSetup(generation, setup))


def decode_report(data: bytes) -> ReplicaReport:
    """One that cannot be decoded is that of another version, which has failed here."""
    try:
        return msgspec.msgpack.decode(data, type=ReplicaReport)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        words = f"a replica's report cannot be decoded: {error}"
        return ReplicaReport("", failed=f"{words}; every machine needs flyweight {__version__}")


def find_difference(report: ReplicaReport, facts: Mapping[str, Any], fingerprint: str) -> str:
    """Why a replica cannot serve with others, whose engines have these `facts`; empty where it can.
    `fingerprint` is of their model, "" where it may have another one.
    """
    if report.version != __version__:
        return f"a replica runs flyweight {report.version}, this server {__version__}"
    if report.facts is None:
        return ""
    for name in ALIKE if facts else ():
        theirs, ours = report.facts[name], facts[name]
        if theirs != ours:
            pair = shorten(theirs), shorten(ours)
            return "a replica's engine has {} = {}, another one's {}".format(name, *pair)
    model = report.facts["fingerprint"]
    if not fingerprint or model == fingerprint:
        return ""
    return (
        f"a replica's model has the fingerprint {shorten(model)}, and not "
        f"{shorten(fingerprint)}; copy the same files to every machine"
    )


def shorten(value: Any) -> str:
    """A fact as messages show it: a fingerprint's first digits are enough."""
    return value[:SHOWN] if isinstance(value, str) else str(value)
