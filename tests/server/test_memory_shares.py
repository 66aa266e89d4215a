"""What each of several models may hold: shares that add up, and a load that disturbs no other."""

import pytest

from flyweight.config import Settings
from flyweight.errors import ConfigError, MemoryShortage
from flyweight.model_memory import make_memory_plan
from flyweight.models.registry import find_family
from flyweight.ops.reference import ReferenceOps
from flyweight.plan.ledger import MemoryLedger
from flyweight.plan.machine import Machine
from flyweight.plan.memory import GIB, MIB, Needs
from flyweight.resources import EngineResources, ProcessResources
from flyweight.server.lifecycle.loading import plan_entries
from flyweight.server.model_options import ModelOptions
from flyweight.server.settings import ServerSettings
from flyweight.spec import Files

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
BASE = 50 * MIB  # what the process holds before its first engine


def find_rooms(*memory: str) -> list[int]:
    """The rooms of models with these values of `memory`, under a limit of 1 GiB."""
    settings = Settings(model="stories", memory_limit="1GiB")
    names = ("small", "big", "last")
    models = [
        ModelOptions(settings, (name,), memory=one)
        for name, one in zip(names, memory, strict=False)
    ]
    return [plan.setup.room for plan in plan_entries(models, ServerSettings())]


def test_shares_are_of_the_memory_limit() -> None:
    expected = [GIB // 4, GIB * 65 // 100]
    assert find_rooms("25%", "65%") == find_rooms("0.25", "0.65") == expected
    assert find_rooms("256MiB", ".65") == expected
    assert find_rooms("", "1") == [GIB // 2, GIB], "an equal part, and all"


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (
            ("0.5", "75%"),
            "the models' memory is 1.25 GiB together, more than the 1.00 GiB of memory_limit; "
            "nearest valid: small 40%, big 60%",
        ),
        (
            ("1.5", "25%"),
            "memory of small = '1.5' is out of range; allowed: a share above 0, up to 1, or a "
            "size; nearest valid: 1",
        ),
        (
            ("", "0"),
            "memory of big = '0' is out of range; allowed: a share above 0, up to 1, or a size; "
            "nearest valid: 0.01",
        ),
        (
            ("", "0MB"),
            "memory of big = '0MB' is out of range; allowed: a share above 0, up to 1, or a size; "
            "nearest valid: 0.01",
        ),
        (
            ("", "101%"),
            "memory of big = '101%' is out of range; allowed: above 0% to 100%; "
            "nearest valid: 100%",
        ),
        (("much", ""), "memory of small = 'much' is not a size; write 6GiB, 512MB or 80%"),
    ],
)
def test_shares_that_cannot_be_are_refused(memory: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_rooms(*memory)
    assert str(caught.value) == words


# --- what does not fit ---


def measure_needs() -> Needs:
    kind = find_family(CONFIG)
    spec = kind.read_spec(CONFIG)
    slots = kind.plan(spec, Files()).slots
    return Needs.of(spec, {one.name: [(one.shape, "f32")] for one in slots}, ReferenceOps("f32"))


NEEDS = measure_needs()


def reserve(
    process: ProcessResources, owner: int, limit: int, room: int = 0, *, served: bool = False,
    ranks: int = 1,
) -> int:  # fmt: skip
    """Plans an engine; what it reserves."""
    settings = Settings(
        memory_limit=f"{limit}", max_model_len=512, max_num_seqs=1, threads=1,
        tensor_parallel_size=ranks,
    )  # fmt: skip
    own = EngineResources(process, owner, room, fixed=bool(room))
    before = process.ledger.reserved
    make_memory_plan(settings, NEEDS, Machine(1, 64 * GIB, 64 * GIB), served=served, resources=own)
    return process.ledger.reserved - before


def make_process() -> ProcessResources:
    return ProcessResources(MemoryLedger(BASE))


def test_only_what_would_fit_alone_is_a_shortage() -> None:
    """A shortage unloads other models, so a model that is too large must not cause one."""
    size = reserve(make_process(), 1, 8 * GIB)
    process, limit = make_process(), BASE + size * 3 // 2
    assert reserve(process, 1, limit) == size
    with pytest.raises(MemoryShortage):
        reserve(process, 2, limit)
    with pytest.raises(ConfigError, match=r"^memory_limit of .* is too small") as caught:
        reserve(process, 2, BASE + size // 2)
    assert not isinstance(caught.value, MemoryShortage)
    with pytest.raises(ConfigError, match=r"^memory of .* is too small.* memory = ") as caught:
        reserve(process, 2, 8 * GIB, size // 2)
    assert not isinstance(caught.value, MemoryShortage)
    assert process.ledger.reserved == size, "what was refused has reserved nothing"


def test_several_ranks_reserve_what_all_of_them_hold() -> None:
    alone = reserve(make_process(), 1, 8 * GIB)
    process = make_process()
    pair = reserve(process, 1, 8 * GIB, ranks=2)
    assert pair > 2 * alone  # the second has a Python of its own
    reserve(process, 2, 8 * GIB)
    assert process.ledger.reserved == pair + alone
    with pytest.raises(ConfigError, match="in each of 2 processes"):
        reserve(make_process(), 1, BASE + pair - 64 * MIB, ranks=2)


def test_the_api_server_is_counted_once_whichever_model_is_unloaded() -> None:
    process = make_process()
    with_server = reserve(process, 1, 8 * GIB, served=True)
    plain = reserve(process, 2, 8 * GIB, served=True)
    assert with_server > plain
    process.ledger.release(1)
    assert reserve(process, 3, 8 * GIB, served=True) == with_server
    process.ledger.release(2)
    assert reserve(process, 4, 8 * GIB, served=True) == plain
