"""SamplingParams: what is in range passes, what is not is refused in one line that helps."""

import math
import pickle
from copy import deepcopy
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.errors import RequestError
from flyweight.sampling_params import LAST
from flyweight.types import COLDEST, HOTTEST, SamplingParams

OUTSIDE = [  # field, value, words of the allowed range, nearest valid value
    ("temperature", -0.1, "0 (greedy), or 0.0001 to 1000000", "0.0"),
    ("temperature", -1e30, "0 (greedy), or 0.0001 to 1000000", "0.0"),
    ("temperature", 1e-9, "0 (greedy), or 0.0001 to 1000000", "0.0"),
    ("temperature", 9e-5, "0 (greedy), or 0.0001 to 1000000", "0.0001"),
    ("temperature", 1000001.0, "0 (greedy), or 0.0001 to 1000000", "1000000.0"),
    ("temperature", 1e300, "0 (greedy), or 0.0001 to 1000000", "1000000.0"),
    ("top_p", 0.0, "above 0, up to 1", "0.01"),
    ("top_p", -1.0, "above 0, up to 1", "0.01"),
    ("top_p", 1.0001, "above 0, up to 1", "1.0"),
    ("top_k", -2, "0 or more", "0"),
    ("min_p", -0.01, "0 to 1", "0.0"),
    ("min_p", 1.5, "0 to 1", "1.0"),
    ("repetition_penalty", 0.0, "0.0001 to 10", "0.0001"),
    ("repetition_penalty", 1e-46, "0.0001 to 10", "0.0001"),
    ("repetition_penalty", 10.5, "0.0001 to 10", "10.0"),
    ("presence_penalty", -2.1, "-2 to 2", "-2.0"),
    ("presence_penalty", 2.1, "-2 to 2", "2.0"),
    ("frequency_penalty", -5.0, "-2 to 2", "-2.0"),
    ("frequency_penalty", 5.0, "-2 to 2", "2.0"),
    ("typical_p", 0.0, "above 0, up to 1", "0.01"),
    ("typical_p", 1.01, "above 0, up to 1", "1.0"),
    ("top_n_sigma", -0.5, "0 to 1000", "0.0"),
    ("xtc_probability", 1.5, "0 to 1", "1.0"),
    ("xtc_threshold", 0.51, "0 to 0.5", "0.5"),
    ("dry_multiplier", -1.0, "0 to 100", "0.0"),
    ("dry_base", 0.9, "1 to 100", "1.0"),
    ("dry_allowed_length", 0, "1 or more", "1"),
    ("repeat_last_n", -2, "-1 or more", "-1"),
    ("dry_penalty_last_n", -2, "-1 or more", "-1"),
    ("mirostat", 3, "0 to 2", "2"),
    ("mirostat_tau", -0.1, "0 to 100", "0.0"),
    ("mirostat_eta", 1.1, "0 to 1", "1.0"),
    ("allowed_token_ids", (3, -1), "0 or more", "0"),
    ("best_of", 0, "1 to 128", "1"),
    ("best_of", 200, "1 to 128", "128"),
    ("prompt_logprobs", 65, "-1 to 64", "64"),
    ("n", 0, "1 to 128", "1"),
    ("n", 129, "1 to 128", "128"),
    ("seed", -(2**63) - 1, f"{-(2**63)} to {2**64 - 1}", str(-(2**63))),
    ("seed", 2**64, f"{-(2**63)} to {2**64 - 1}", str(2**64 - 1)),
    ("max_tokens", 0, "1 or more", "1"),
    ("max_tokens", -5, "1 or more", "1"),
    ("min_tokens", -1, "0 to 16", "0"),
    ("min_tokens", 17, "0 to 16", "16"),
    ("logprobs", -2, "-1 to 64", "-1"),
    ("logprobs", 65, "-1 to 64", "64"),
    ("stop_token_ids", (3, -1), "0 or more", "0"),
    ("logit_bias", {-7: 1.0}, "0 or more", "0"),
    ("logit_bias", {7: 100.5}, "-100 to 100", "100.0"),
    ("logit_bias", {7: -101}, "-100 to 100", "-100.0"),
]
WRONG_KIND = [
    ("ignore_eos", "no"),
    ("skip_special_tokens", 1),
    ("include_stop_str_in_output", None),
    *(
        (name, value)
        for name in ("temperature", "top_p", "min_p")
        for value in (math.nan, math.inf)
    ),
    *((name, None) for name in ("temperature", "top_p", "top_k", "n", "min_tokens")),
    *((name, "1") for name in ("temperature", "top_k", "seed", "logprobs", "max_tokens")),
    *((name, True) for name in ("temperature", "top_k", "n", "seed")),
    ("temperature", 10**400),
    ("top_p", np.float32("nan")),
    ("top_k", 1.5),
    ("n", 2.0),
    ("stop", ("",)),
    ("bad_words", (7,)),
    ("bad_words", ("",)),
    ("dry_sequence_breakers", ("x" * 2000,)),
    ("allowed_token_ids", 5),
    ("allowed_token_ids", []),
    ("mirostat", 1.0),
    ("echo", 1),
    ("logits_processors", (7,)),
    ("logits_processors", print),
    ("stop", (b"x",)),
    ("stop", 5),
    ("stop_token_ids", ("7",)),
    ("stop_token_ids", 5),
    ("stop_token_ids", "57"),
    ("logit_bias", {"7": 1.0}),
    ("logit_bias", {7: "1"}),
    ("logit_bias", {7: math.nan}),
    ("logit_bias", [7]),
]
EDGES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1e-4},
    {"temperature": 100},
    {"top_p": 1},
    {"top_p": 1e-6},
    {"min_p": 0},
    {"min_p": 1},
    {"repetition_penalty": 1e-3},
    {"repetition_penalty": 10},
    {"presence_penalty": -2, "frequency_penalty": 2},
    {"n": 128, "logprobs": 64},
    {"mirostat": 2, "dry_multiplier": 0.8, "temperature": 0.7},
    {"typical_p": 0.5, "top_n_sigma": 1, "xtc_probability": 1, "xtc_threshold": 0.5, "top_k": 3},
    {"allowed_token_ids": [4, 4, 1], "bad_words": "no", "dry_sequence_breakers": None},
    {"seed": -(2**63)},
    {"seed": 2**64 - 1},
    {"max_tokens": None, "min_tokens": 10**6},
    {"max_tokens": 5, "min_tokens": 5},
    {"logit_bias": {0: -100, 9: 100}},
    {"stop": None, "stop_token_ids": None, "logit_bias": None},
]


@pytest.mark.parametrize(("name", "value", "allowed", "near"), OUTSIDE)
def test_out_of_range_is_refused_helpfully(name: str, value: Any, allowed: str, near: str) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(**{name: value})
    text = str(refused.value)
    culprit = value
    if isinstance(value, dict):  # the offending id or its bias
        key, bias = next(iter(value.items()))
        culprit = key if key < 0 else bias
    elif isinstance(value, tuple):
        culprit = value[-1]
    assert refused.value.path == name
    assert text.startswith(f"{name} = {culprit!r} ")
    assert allowed in text and text.endswith(f"nearest valid: {near}") and "\n" not in text
    if not isinstance(value, dict | tuple):
        SamplingParams(**{name: type(value)(near)})  # and what it names is valid


@pytest.mark.parametrize(("name", "value"), WRONG_KIND)
def test_the_wrong_kind_of_value_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match="allowed: ") as refused:
        SamplingParams(**{name: value})
    assert refused.value.path == name and str(refused.value).startswith(f"{name} = ")


@pytest.mark.parametrize(("name", "value"), [("temperature", "hot"), ("min_p", []), ("stop", 5)])
def test_another_kind_of_value_is_not_called_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"{name} = .* is not valid; allowed: a"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("options", EDGES, ids=str)
def test_the_edges_are_in_range(options: dict[str, Any]) -> None:
    SamplingParams(**options)


def test_mirostat_is_the_only_cut() -> None:
    text = r"mirostat = 2 cannot be combined with top_p, xtc_probability; leave"
    with pytest.raises(RequestError, match=text):
        SamplingParams(mirostat=2, top_p=0.9, xtc_probability=0.5)


def test_guidance_is_refused_by_name_with_the_reason() -> None:
    with pytest.raises(RequestError, match=r"guidance_scale = 1.5 is not supported: requests"):
        SamplingParams(guidance_scale=1.5)
    SamplingParams(guidance_scale=1)


def test_spellings_settle() -> None:
    several = SamplingParams(bad_words="no", allowed_token_ids=[9, 4, 9])  # type: ignore[arg-type]
    assert several.bad_words == ("no",) and several.allowed_token_ids == (4, 9)
    params = SamplingParams(stop="END", stop_token_ids=[4, 5], top_k=-1, temperature=1)  # type: ignore[arg-type]
    assert params.stop == ("END",) and params.stop_token_ids == (4, 5) and params.top_k == 0
    assert isinstance(params.temperature, float)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64, Fraction])
def test_any_real_number_is_a_number(kind: Any) -> None:
    params = SamplingParams(temperature=kind(1), top_p=kind(1), logit_bias={3: kind(2)})
    assert (params.temperature, params.top_p, params.logit_bias) == (1.0, 1.0, {3: 2.0})
    assert {type(params.temperature), type(params.top_p), type(params.logit_bias[3])} == {float}


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint64])
def test_any_whole_number_is_a_number(kind: Any) -> None:
    params = SamplingParams(max_tokens=kind(5), seed=kind(7), stop_token_ids=(kind(3),), n=kind(2))
    assert (params.max_tokens, params.seed, params.stop_token_ids, params.n) == (5, 7, (3,), 2)
    assert {type(params.max_tokens), type(params.seed), type(params.stop_token_ids[0])} == {int}


@pytest.mark.parametrize("stop", [["x"] * 65, ["x" * 1025]])
def test_stop_strings_have_bounds(stop: list[str]) -> None:
    with pytest.raises(RequestError, match=r"allowed: (up to 64 strings|strings of 1 to 1024)"):
        SamplingParams(stop=stop)  # type: ignore[arg-type]


def test_options_are_copied() -> None:
    bias = {3: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[3] = 1e9
    assert params.logit_bias == {3: 1.0}


def test_options_can_be_set_and_are_checked() -> None:
    """As vLLM's examples do with the model's defaults."""
    params = SamplingParams(temperature=0.5)
    params.max_tokens, params.stop = 8, "end"  # type: ignore[assignment]
    assert params == SamplingParams(temperature=0.5, max_tokens=8, stop=["end"])
    for name, value in (("top_p", 2.0), ("max_tokens", -1), ("n", "3")):
        with pytest.raises(RequestError, match=f"{name} = "):
            setattr(params, name, value)
    assert params == SamplingParams(temperature=0.5, max_tokens=8, stop=["end"])
    with pytest.raises(AttributeError, match=r"no option 'max_token' .did you mean 'max_tokens'"):
        params.max_token = 3  # type: ignore[attr-defined]
    for copied in (params.clone(), deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert copied == params and copied is not params
        copied.n = 2
        assert params.n == 1
    assert fields(SamplingParams)[-1].name == LAST


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers()),
)
FIELDS = SamplingParams.__slots__


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4))
def test_anything_is_valid_or_refused(options: dict[str, Any]) -> None:
    """No other exception, whatever is given; what exists is in range."""
    try:
        params = SamplingParams(**options)
    except RequestError as refused:
        assert refused.path in options or "min_tokens" in options
        return
    assert params.temperature == 0 or COLDEST <= params.temperature <= HOTTEST
    assert 0 < params.top_p <= 1 and params.top_k >= 0
    assert 1 <= params.n <= 128 and 0 <= params.min_tokens <= (params.max_tokens or math.inf)
