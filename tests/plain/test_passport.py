"""The quality passport as data: what is read is within its limits, and what a limit refuses."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flyweight.errors import CheckpointError, ConfigError
from flyweight.passport import (
    MOST_BYTES,
    UNKNOWN,
    ContextProbe,
    Passport,
    Quality,
    QualityLimit,
    ValidShare,
)
from passports import make_passport

LIMIT = QualityLimit(0.05, "my model.gguf", "", "int8")
FULL = make_passport(
    method="gptq",
    bits=4.25,
    recipe="4-bit g64",
    long_context=ContextProbe(
        context=4096, tokens=1024, perplexity=9.5, kld_mean=0.1, top1_agreement=0.9
    ),
    json_valid=ValidShare(valid=3, total=4),
    tool_call_valid=ValidShare(valid=0, total=2),
    prompts_sha256="beef",
)


def change(**more: Any) -> bytes:
    return json.dumps({**json.loads(FULL.to_json()), **more}).encode()


def test_a_passport_comes_back() -> None:
    assert Passport.from_json(FULL.to_json().encode(), "x") == FULL
    short = make_passport(kv_cache={}, perplexity_error=None)
    text = short.to_json()
    assert Passport.from_json(text.encode(), "x") == short
    assert "kv_cache" not in text and "perplexity_error" not in text and "null" not in text


def test_what_a_later_version_adds_is_ignored() -> None:
    later = change(format=7, new={"deep": [1, 2]}, json_valid={"valid": 3, "total": 4, "of": "x"})
    assert Passport.from_json(later, "x") == FULL


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[]", "x: a JSON object was expected, found an array"),
        (b"{", "x: not valid JSON"),
        (b"\xff{}", "x: not valid JSON"),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, "x: JSON nested too deeply"),
        (b" " * (MOST_BYTES + 1), "at most 65536"),
        (b"{}", "x: fingerprint is missing"),
        (change(kld_mean=float("nan")), "x: kld_mean = nan; a number from 0"),
        (change(perplexity=float("inf")), "x: perplexity = inf; a number from 0"),
        (change(kld_mean=-0.1), "x: kld_mean = -0.1"),
        (change(kld_mean=True), "x: kld_mean = True"),
        (change(kld_mean="0.1"), "x: kld_mean = '0.1'"),
        (change(kld_mean=None), "x: kld_mean = None"),
        (change(top1_agreement=1.5), "x: top1_agreement = 1.5; a number from 0 to 1"),
        (change(tokens=2.5), "x: tokens = 2.5; a whole number"),
        (change(tokens=10**400), "x: tokens = "),
        (change(text="a\x1b[31m"), "x: text = 'a\\\\x1b"),
        (change(text="a" * 1001), "up to 1000 printable characters"),
        (change(json_valid=[1]), "x: json_valid = [1]; an object expected"),
        (change(json_valid={"valid": 5, "total": 4}), "x: json_valid: 5 of 4 cannot be true"),
        (change(kv_cache={"int8": 1}), "x: kv_cache: int8 = 1; an object expected"),
        (change(kv_cache=dict.fromkeys(map(str, range(33)), 1)), "at most 32 types"),
        (change(kv_cache={"\n": 1}), "is not the name of a type"),
        (FULL.to_json().encode()[:-1] + b', "tokens": 1}', "the key 'tokens' appears twice"),
    ],
)
def test_hostile_passports(text: bytes, words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Passport.from_json(text, "x")
    said = str(caught.value)
    assert words.replace("\\\\", "\\") in said and "\n" not in said and "\x1b" not in said
    assert len(said) < 300
    found = Quality.of(text, "x", lambda: "f")
    assert found.passport is None and found.problem.startswith("the passport is damaged: x")


@example("text", "")
@given(st.sampled_from(sorted(json.loads(FULL.to_json()))), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
def test_any_value_is_read_or_refused(name: str, value: Any) -> None:
    try:
        found = Passport.from_json(change(**{name: value}), "x")
    except CheckpointError as error:
        assert "\n" not in str(error)
    else:
        assert Passport.from_json(found.to_json().encode(), "x") == found


def test_figures_that_are_none_are_not_written() -> None:
    with pytest.raises(ConfigError, match="perplexity = inf cannot be written into a passport"):
        make_passport(perplexity=float("inf"))
    with pytest.raises(ConfigError, match="kld_mean = nan"):
        make_passport(kld_mean=float("nan"))


def test_a_passport_of_other_weights_is_unknown() -> None:
    text = make_passport("f").to_json().encode()
    assert Quality.of(text, "x", lambda: "f").passport == make_passport("f")
    other = Quality.of(text, "x", lambda: "g")
    assert other.passport is None and other.describe() == (
        "unknown: the passport is of other weights (x)"
    )
    assert Quality.of(b"", "x", lambda: "f") == UNKNOWN


def test_clients_are_not_shown_commands() -> None:
    shown = FULL.summarize()
    assert shown["kld_mean"] == 0.02 and shown["kv_cache"]["int8"]["kld_mean"] == 0.001
    assert not {"command", "fingerprint", "against_fingerprint"} & shown.keys()


MEASURE = "flyweight eval stamp 'my model.gguf'"


@pytest.mark.parametrize(
    ("quality", "limit", "words"),
    [
        (UNKNOWN, LIMIT, f"my model.gguf has no passport; {MEASURE} --against FULL measures it"),
        (Quality(problem="it is damaged"), LIMIT, "cannot be checked: it is damaged; flyweight"),
        (
            Quality(make_passport(kld_mean=0.0712)),
            LIMIT,
            "max_kld = 0.05 is below the mean KLD of my model.gguf, 0.0712; nearest valid: 0.0712",
        ),
        (
            Quality(make_passport(activations="bf16")),
            LIMIT,
            "the passport is of activations = bf16, not int8; "
            f"{MEASURE} --against FULL --activations int8 measures it",
        ),
        (
            Quality(make_passport()),
            QualityLimit(0.05, "my model.gguf", "int4", "int8"),
            "the passport has no figure for kv_cache_dtype = int4; "
            f"{MEASURE} --kv-cache-types int4 measures it",
        ),
        (
            Quality(make_passport(kld_mean=0.0001)),
            QualityLimit(0.0005, "my model.gguf", "int8", "int8"),
            "max_kld = 0.0005 is below the mean KLD of kv_cache_dtype = int8, 0.001; "
            "nearest valid: 0.001",
        ),
    ],
)
def test_what_a_limit_refuses(quality: Quality, limit: QualityLimit, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quality.check(limit)
    assert words in str(caught.value)


def test_what_a_limit_lets_through() -> None:
    for limit in (
        LIMIT,
        QualityLimit(0.02, "m", "", "bf16"),  # the limit itself, and more exact activations
        QualityLimit(0.02, "m", "int8", "int8"),
    ):
        Quality(make_passport()).check(limit)
