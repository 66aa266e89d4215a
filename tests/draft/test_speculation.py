"""`speculative_config`: read the same wherever it is given, and refused in one line that helps."""

import json
from typing import Any

import pytest

from flyweight.arguments.engine import choose_engine
from flyweight.config import Limits, Settings
from flyweight.draft.methods import DrafterParts, make_drafter
from flyweight.draft.ngram import NgramDrafter
from flyweight.errors import ConfigError
from flyweight.speculation import read_speculation
from flyweight.speculation_methods import METHODS, MOST_DRAFTS

LIMITS = Limits(64, 2, 64, 16, 8)
GOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [  # given, what it means
    ({"num_speculative_tokens": 3}, {"prompt_lookup_max": 5, "prompt_lookup_min": 2}),
    (
        {"method": "ngram", "num_speculative_tokens": 64, "prompt_lookup_max": 1},
        {"prompt_lookup_max": 1, "prompt_lookup_min": 1},
    ),
    (
        {"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_min": 9, "model": None},
        {"prompt_lookup_max": 9, "prompt_lookup_min": 9},
    ),
    (
        {"model": "[ngram]", "num_speculative_tokens": 2},
        {"prompt_lookup_max": 5, "prompt_lookup_min": 2},
    ),
    (
        {"method": "ngram", "model": "ngram", "num_speculative_tokens": 2},
        {"prompt_lookup_max": 5, "prompt_lookup_min": 2},
    ),
    (
        {"method": "ngram", "model": "[ngram]", "num_speculative_tokens": 2},
        {"prompt_lookup_max": 5, "prompt_lookup_min": 2},
    ),
]


@pytest.mark.parametrize("given, options", GOOD)
def test_a_mapping_text_and_what_was_read_mean_the_same(given, options) -> None:
    found = read_speculation(given)
    assert found is not None and found == read_speculation(json.dumps(given))
    assert found.options == options and found == read_speculation(found.write())
    settings = Settings.of(speculative_config=given)
    assert settings == Settings.of(speculative_config=json.dumps(given))
    assert settings.speculation == found
    assert settings.draft_tokens == given["num_speculative_tokens"]
    assert choose_engine({"speculative_config": given}).settings == Settings.of(
        speculative_config=given
    )
    assert isinstance(make_drafter(found, DrafterParts(LIMITS, 100)), NgramDrafter)


def test_the_verifier_is_kept() -> None:
    given = {"method": "ngram", "num_speculative_tokens": 3, "verifier": "rejection"}
    found = Settings.of(speculative_config=given).speculation
    assert found is not None and found.verifier == "rejection"
    assert found == read_speculation(found.write()) and "distribution" in found.promise
    plain = read_speculation(given | {"verifier": "coupled"})
    assert plain is not None and "verifier" not in plain.write()


def test_vllms_other_name_of_a_method_is_known() -> None:
    found = read_speculation({"method": "deepseek_mtp"})
    assert found is not None and (found.method, found.num_speculative_tokens) == ("mtp", 1)
    assert read_speculation(found.write()) == found


def test_one_process_for_the_draft_is_what_there_is() -> None:
    given = {"model": "a", "num_speculative_tokens": 3}
    assert read_speculation({**given, "draft_tensor_parallel_size": 1}) == read_speculation(given)


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_heads_inside_name_their_method(method: str) -> None:
    found = read_speculation({"model": f"stories-{method}", "num_speculative_tokens": 3})
    assert found is not None and found.method == method


def test_nothing_given_means_off() -> None:
    assert read_speculation("") is None and Settings().speculation is None
    assert choose_engine({"speculative_config": None}).settings.draft_tokens == 0


REFUSED: list[tuple[object, str]] = [
    ('{"method" "ngram"}', """at character 11, '{"method"  >>> "ngram"}'"""),
    ("{method: ngram}", "at character 2, '{ >>> method: ngram}'"),
    ('{"method": "ngram"', "at character 19, the end of"),
    ("ngram", 'allowed: an object such as {"method": "ngram", "num_speculative_tokens": 4}'),
    ("[1]", "a JSON object was expected, found an array"),
    ('{"method": "ngram", "method": "ngram"}', "the key 'method' appears twice"),
    ("[" * 100_000, "speculative_config: JSON nested too deeply"),
    ('{"num_speculative_tokens": ' + "9" * 5000 + "}", "speculative_config: not valid JSON"),
    ([1], "speculative_config = [1] is not valid; allowed: an object such as {"),
    ({}, "num_speculative_tokens is missing; allowed: 1 to 64"),
    ({"num_speculative_tokens": 0}, "= 0 is out of range; allowed: a whole number, 1 to 64"),
    ({"num_speculative_tokens": -1}, "nearest valid: 1"),
    ({"num_speculative_tokens": MOST_DRAFTS + 1}, f"nearest valid: {MOST_DRAFTS}"),
    ({"num_speculative_tokens": 2.5}, "num_speculative_tokens = 2.5 is not valid"),
    ({"num_speculative_tokns": 3}, "'num_speculative_tokns' is unknown (did you mean 'num_spec"),
    ({"a": 1, "b": 2}, "'a' is unknown, 'b' is unknown"),
    ({"method": "ngrams", "num_speculative_tokens": 3}, "(did you mean 'ngram'?)"),
    ({"method": 7, "num_speculative_tokens": 3}, "speculative_config.method = 7 is not valid"),
    ({"num_speculative_tokens": 3, "prompt_lookup_max": 0}, "prompt_lookup_max = 0 is out of"),
    ({"num_speculative_tokens": 3, "prompt_lookup_max": "4"}, "prompt_lookup_max = '4' is not"),
    (
        {"num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 3},
        "speculative_config.prompt_lookup_min = 3 is out of range; allowed: a whole number, 1 to "
        "2; nearest valid: 2",
    ),
    (
        {"num_speculative_tokens": 3, "verifier": "rejecting"},
        "speculative_config.verifier = 'rejecting' is not valid; allowed: coupled, rejection (did",
    ),
    ({"num_speculative_tokens": 3, "revision": "main"}, "does not apply to ngram; leave it out"),
    (
        {"model": "a", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2},
        "speculative_config.draft_tensor_parallel_size = 2 does not apply to draft_model: a draft "
        "model runs in the process of the model; leave it out; allowed: method, ",
    ),
    (
        {"model": "a", "num_speculative_tokens": 3, "enforce_eager": True},
        "speculative_config.enforce_eager = true does not apply to draft_model: it is the engine's",
    ),
    (
        {"method": "mtp", "model": "a"},
        "model = 'a' does not apply to mtp; leave it out",
    ),
    ({"method": "mpt", "num_speculative_tokens": 3}, "(did you mean 'mtp'?)"),
    (
        {"method": "cascade", "model": "a", "cascade_min_token_prob": 1.5},
        "cascade_min_token_prob = 1.5 is out of range; allowed: 0 to 1; nearest valid: 1",
    ),
    (
        {"method": "cascade"},
        "speculative_config.model is missing; allowed: stories-draft, a .gguf file, a folder or a "
        "name on the Hub",
    ),
    (
        {"method": "medusa", "num_speculative_tokens": 2},
        "model is missing; allowed: stories-medusa, a folder of heads or a name on the Hub",
    ),
    (
        {"method": "eagle3", "num_speculative_tokens": 2, "model": 7},
        "model = 7 is not valid; allowed: stories-eagle3, a folder of heads or a name on the Hub",
    ),
    ("null", "a JSON object was expected, found null"),
    ("[null]", "a JSON object was expected, found an array"),
    ([None, True], "speculative_config = [null, true] is not valid; allowed: an object"),
    ('{"num_speculative_tokens": true}', "num_speculative_tokens = true is not valid"),
    ('{"num_speculative_tokens": NaN}', "num_speculative_tokens = NaN is not valid"),
    ('{"method": {"a": [null, false]}}', 'method = {"a": [null, false]} is not valid'),
    ('{"method": "suffix", "suffix_decoding_min_token_prob": NaN}', "= NaN is not valid"),
    (
        '{"method": "suffix", "suffix_decoding_min_token_prob": Infinity}',
        "min_token_prob = Infinity is out of range; allowed: 0 to 1; nearest valid: 1",
    ),
    (
        {"method": "suffix", "suffix_decoding_max_spec_factor": 0},
        "max_spec_factor = 0 is out of range; allowed: 0.01 to 64; nearest valid: 0.01",
    ),
]


@pytest.mark.parametrize("given, says", REFUSED)
def test_what_cannot_be_is_one_line(given: object, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings.of(speculative_config=given)
    assert says in str(refused.value), str(refused.value)
    assert str(refused.value).startswith("speculative_config") and "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", [row.name for row in METHODS.values() if not row.module])
def test_a_method_that_is_not_built_is_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_speculation({"method": name, "num_speculative_tokens": 3})
    assert f"method = {name!r} is not supported yet; allowed: ngram" in str(refused.value)
    assert '{"method": "ngram", "num_speculative_tokens": 3}' in str(refused.value)


@pytest.mark.parametrize("row", [row for row in METHODS.values() if row.module])
def test_what_a_row_declares_can_be_given(row) -> None:
    """Each key at both ends of its range, where no other key forbids it."""
    needed = {key.name: "m" for key in row.keys if key.name == "model"}
    for key in row.keys:
        for value in (key.low, key.high) if key.low is not None else ():
            given = {"method": row.name, "num_speculative_tokens": 1, key.name: value}
            found = read_speculation(needed | given)
            assert found is not None and found.options[key.name] == value


def test_the_keywords_of_prompt_lookup_are_short_for_it() -> None:
    found = choose_engine({"draft_tokens": 4, "prompt_lookup_min": 1}).settings
    assert found == Settings.of(
        speculative_config={
            "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": False,
        }
    )  # fmt: skip
    assert choose_engine({"draft_tokens": 0}).settings.draft_tokens == 0
    for given, says in [
        ({"draft_tokens": 65}, "num_speculative_tokens = 65 is out of range"),
        ({"draft_tokens": False}, "num_speculative_tokens = false is not valid"),
        ({"prompt_lookup_max": 3}, "prompt_lookup_max has no effect without draft_tokens"),
        ({"draft_tokens": 2, "speculative_config": {}}, "exclude each other"),
    ]:
        with pytest.raises(ConfigError, match=says):
            choose_engine(given)


def test_drafts_are_limited_where_they_do_not_pay_unless_that_is_switched_off() -> None:
    given = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5}
    found = read_speculation(given)
    assert found is not None and found.adaptive and "adaptive" not in found.write()
    fixed = read_speculation({**given, "adaptive": False})
    assert fixed is not None and read_speculation(fixed.write()) == fixed != found
    assert ("up to 3" in found.describe(), "up to 3" in fixed.describe()) == (True, False)
    one = read_speculation({**given, "num_speculative_tokens": 1})
    assert one is not None and "up to 1 token a step" in one.describe()
    with pytest.raises(ConfigError, match=r"adaptive = 1 is not valid; allowed: true or false"):
        read_speculation({**given, "adaptive": 1})
