"""Another node of a server, `flyweight serve --headless`: it serves no HTTP, and computes with its
ranks what node 0 requests.

Invariant: returns only once its ranks have ended.  A node 0 that is lost may come back; what this
node says then is of the files as they are then, which its new ranks read.
"""

from contextlib import closing
from pathlib import Path

from flyweight.backends import choose_backend, read_place
from flyweight.config import Settings
from flyweight.describe import LoadListener, check_quality, describe
from flyweight.errors import ConfigError
from flyweight.external_cache import read_code
from flyweight.kv.peers.channel import TransferError
from flyweight.model_memory import make_memory_plan, measure_needs
from flyweight.parallel.nodes.follower import join, receive_start, run_ranks
from flyweight.parallel.nodes.identity import make_hello
from flyweight.parallel.nodes.messages import NodeHello
from flyweight.parallel.nodes.secret import read_node_key
from flyweight.parallel.numa import assign_cores
from flyweight.parallel.sharding import cut_description, divide_cores, list_places
from flyweight.plan.machine import list_nodes, read_machine

OVERRIDDEN = ("load_format", "packed_cache", "threads", "isa")  # what node 0 does not decide


def run_node(settings: Settings, path: Path, tell: LoadListener) -> int:
    """Runs ranks of the model in `path` until node 0 ends; the exit code.  Raises `ConfigError`
    where node 0 refuses this one, ends with an error, or cannot be reached in time.
    """
    key = read_node_key(settings)
    cores = assign_cores(list_nodes(), settings.local_ranks)
    settings = divide_cores(settings, read_machine().cores, cores)
    own = {name: getattr(settings, name) for name in OVERRIDDEN} | {"model": str(path)}
    where = settings.master_addr, settings.master_port
    hello, seen = None, None
    while True:
        files = identify_files(settings, path)
        if hello is None or files != seen:
            hello, seen = describe_node(settings, path, tell), files
        tell.note(f"joining {where[0]}:{where[1]} as node {settings.node_rank}")
        link = join(where, key, settings.distributed_timeout_seconds)
        try:
            with closing(link):
                setups = receive_start(link, hello)
                tell.note(f"computing with {len(setups)} of {settings.ranks} ranks")
                ended = run_ranks(link, setups, own, cores)
        except TransferError as error:
            tell.note(f"node 0 is lost: {error}")
            continue
        if ended.problem:
            raise ConfigError(ended.problem)
        tell.note("node 0 has ended")
        return 0


def identify_files(settings: Settings, path: Path) -> tuple[object, ...]:
    """What differs once the model's files or those of flyweight were replaced; reads headers."""
    found = describe(path, settings.quantization)
    checkpoint = found.checkpoint
    seen = checkpoint.fingerprint, checkpoint.stamps, read_code(settings.backend)
    checkpoint.close()
    return seen


def describe_node(settings: Settings, path: Path, tell: LoadListener) -> NodeHello:
    """Raises `ConfigError` where its ranks do not fit this machine."""
    whole = describe(path, settings.quantization)
    check_quality(settings, whole.quality)
    ops = choose_backend(settings, 1)
    places = list_places(settings, whole, ops)
    found = cut_description(whole, places[settings.node_rank * settings.local_ranks])
    needs = measure_needs(found.checkpoint, found.spec, found.plan, ops)
    memory = make_memory_plan(settings, needs, read_place(settings, ops))
    tell.show_plan(memory, whole)
    hello = make_hello(settings, whole, ops, memory)
    whole.checkpoint.close()
    return hello
