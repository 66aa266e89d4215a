"""Settings and limits: what is in range passes, what is not is refused in one line that helps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.config import Limits, Settings, parse_bytes
from flyweight.errors import ConfigError

GIB = 1 << 30

OUTSIDE = [  # setting, value, words of the error
    (
        "max_model_len",
        1,
        "max_model_len = 1 is out of range; allowed: a whole number, 2 to 16777216",
    ),
    ("max_model_len", 1, "nearest valid: 2"),
    ("max_model_len", "many", "max_model_len = 'many' is not valid"),
    ("threads", 0, "threads = 0 is out of range; allowed: a whole number, 1 to 256"),
    ("threads", 1000, "nearest valid: 256"),
    ("threads", True, "threads = True is not valid"),
    ("activations", "int4", "activations = 'int4' is not valid; allowed: int8, bf16, f32 (did you"),
    (
        "kv_cache_dtype",
        "fp16",
        "fp8_e5m2, float16, half, bfloat16, float32, float, fp8 (did you mean 'f16'?)",
    ),
    ("backend", "gpu", "backend = 'gpu' is not valid; allowed: cpu, cuda, reference"),
    ("block_size", 0, "nearest valid: 1"),
    ("block_size", 5000, "nearest valid: 1024"),
    ("blocks", -1, "nearest valid: 0"),
    ("max_num_seqs", 0, "nearest valid: 1"),
    ("max_num_batched_tokens", 3, "allowed: a whole number, 64 to 1048576"),
    (
        "speculative_config",
        {"num_speculative_tokens": 65},
        "speculative_config.num_speculative_tokens = 65 is out of range; allowed: a whole number, "
        "1 to 64; nearest valid: 64",
    ),
    ("draft_tokens", 4, "unknown setting 'draft_tokens'"),
    ("seed", 2**64, "seed = "),
    ("enable_prefix_caching", "yes", "allowed: True, False"),
    ("memory_limit", "lots", "memory_limit = 'lots' is not a size; write 6GiB, 512MB or 80%"),
    ("memory_limit", "150%", "nearest valid: 100%"),
    ("memory_limit", "6 parsecs", "is not a size"),
    ("memory_limit", -5, "memory_limit = '-5' is not a size"),
    ("model", 7, "model = 7 is not valid"),
    ("max_model_length", 7, "unknown setting 'max_model_length' (did you mean 'max_model_len'?)"),
]


@pytest.mark.parametrize("name, value, words", OUTSIDE)
def test_what_is_out_of_range_is_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings.of(**{name: value})
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_blocks_must_hold_one_sequence() -> None:
    Settings.of(max_model_len=64, block_size=16, blocks=4)
    with pytest.raises(ConfigError, match=r"max_model_len = 65; nearest valid: 5"):
        Settings.of(max_model_len=65, block_size=16, blocks=4)


def test_only_an_unnamed_instruction_set_comes_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("FLYWEIGHT_ISA", "scalar")
    assert Settings.of().isa == "scalar"
    assert Settings.of(isa="avx2").isa == "avx2"
    monkeypatch.setenv("FLYWEIGHT_ISA", "")
    assert Settings.of().isa is None


@pytest.mark.parametrize(
    "text, value",
    [
        ("6GiB", 6 * GIB),
        ("6gib", 6 * GIB),
        (" 1.5 GiB ", 3 * GIB // 2),
        ("512MB", 512 * 10**6),
        ("512M", 512 * 10**6),
        ("100", 100),
        ("100B", 100),
        ("80%", 8 * GIB),
        ("0.1%", GIB // 100),
        ("3k", 3000),
        ("3Ki", 3072),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_bytes(text, 10 * GIB) == value


@given(st.text(max_size=30))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        assert parse_bytes(text, GIB) >= 0
    except ConfigError as error:
        assert "memory_limit" in str(error)


@pytest.mark.parametrize("text", ["0%", "9" * 400 + "GiB", "1e9", "GiB", "1 2", "٣GiB", "%", ""])
def test_odd_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="memory_limit"):
        parse_bytes(text, GIB)


@pytest.mark.parametrize(
    "name, value",
    [
        ("block_size", 0), ("blocks", 0), ("blocks", 2**31), ("max_model_len", 1),
        ("max_num_seqs", 0), ("max_num_batched_tokens", 7), ("draft_tokens", -1), ("max_chunk", 0),
    ],
)  # fmt: skip
def test_limits_are_checked(name: str, value: int) -> None:
    good = {
        "max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64,
        "block_size": 16, "blocks": 32,
    }  # fmt: skip
    Limits(**good)
    with pytest.raises(ConfigError, match=name):
        Limits(**{**good, name: value})
