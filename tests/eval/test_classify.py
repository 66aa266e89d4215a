"""Classification: intervals by hand, examples that never leak the answer, NumPy's labels."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from plain_llama import log_probabilities

from flyweight import LLM
from flyweight.bench.kernels import RunListener
from flyweight.errors import ConfigError, FlyweightError
from flyweight.eval.classify import Classification, ShotResult, classify, make_classifier
from flyweight.eval.labelled import ClassifyPlan, LabelledText, read_labelled
from flyweight.eval.proportions import compare_paired, make_wilson
from tiny_model import tiny_folder, tiny_tensors

SAMPLES = [
    LabelledText(text, label, f"a:{i}")
    for i, (text, label) in enumerate(
        [("the cat", "on"), ("a bird", "off"), ("rain", "on"), ("a mat", "off"), ("the cat", "on")]
    )
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tiny_folder(tmp_path_factory.mktemp("classify") / "model")
    options = {"activations": "f32", "kv_cache_dtype": "f32", "memory_limit": "8GiB"}
    with LLM(str(folder), max_num_seqs=16, **options) as made:
        yield made


def plan(shots: int, samples: list[LabelledText] = SAMPLES, **more: object) -> ClassifyPlan:
    return ClassifyPlan(samples, ("on", "off"), shots, instruction="?", **more)


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        # Wilson's figures as published for 95 %: 81 of 263, and the ends (Newcombe 1998, table I).
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_intervals_of_shares(right: int, total: int, low: float, high: float) -> None:
    found = make_wilson(right, total)
    assert found.value == right / total
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-5)


def test_intervals_of_differences() -> None:
    """By hand, of 10 texts, 3 gained and none lost: (4 - 1) / 12 = 0.25, and a half width of
    1.959964 sqrt((5/12 - 1/16) / 12) = 1.959964 sqrt(0.3541667 / 12) = 0.336714.
    """
    found = compare_paired(3, 0, 10)
    assert (found.value, found.low, found.high) == pytest.approx(
        (0.3, -0.086714, 0.586714), abs=1e-6
    )
    even, odd = compare_paired(2, 5, 40), compare_paired(5, 2, 40)
    assert (even.low, even.high) == pytest.approx((-odd.high, -odd.low))
    assert compare_paired(0, 0, 1).low >= -1


def test_examples_are_other_texts_in_turn_from_every_label() -> None:
    for seed in range(5):
        found = plan(3, seed=seed)
        for number, sample in enumerate(SAMPLES):
            examples = found.choose_examples(number)
            assert len(examples) == 3
            assert all(one.text != sample.text for one in examples)
        assert [one.label for one in found.choose_examples(2)[:2]] == ["on", "off"]


def test_a_seed_draws_the_same_examples() -> None:
    texts = [LabelledText(f"t{i}", "on" if i % 2 else "off", "") for i in range(20)]
    drawn = [tuple(plan(4, texts, seed=seed).choose_examples(0)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_prompts() -> None:
    found = ClassifyPlan.of(SAMPLES[:2], ("off", "on"), 1, 0)
    head = 'Classify each text as "off" or "on".\n\n'
    assert found.make_prompt(0, examples=False) == f"{head}Text: the cat\nLabel:"
    few = f"{head}Text: a bird\nLabel: off\n\nText: the cat\nLabel:"
    assert found.make_prompt(0, examples=True) == few


def test_the_likeliest_label_is_numpys(llm: LLM) -> None:
    """Sums of the reference's log-probabilities over each label's tokens."""
    run = make_classifier(llm, ("on", "off", "once more"), "likelihood")
    encode = llm.tokenizer.encode
    for prompt in ("the cat:", "a bird sang of", "Label:"):
        totals = {}
        for label in ("on", "off", "once more"):
            whole, begun = encode(f"{prompt} {label}"), len(encode(prompt))
            rows = log_probabilities(tiny_tensors(), whole[:-1])
            totals[label] = sum(rows[i - 1][whole[i]] for i in range(begun, len(whole)))
        assert run(prompt) == max(totals, key=lambda label: totals[label])


@pytest.mark.parametrize("method", ["likelihood", "choice"])
def test_both_prompts_of_every_text(llm: LLM, method: str) -> None:
    found = classify(llm, plan(1), method, RunListener())  # type: ignore[arg-type]
    assert found.few is not None and (found.zero.shots, found.few.shots) == (0, 1)
    for one in (found.zero, found.few):
        assert set(one.found) <= {"on", "off"} and len(one.found) == len(SAMPLES)
        assert one.right == tuple(a == s.label for a, s in zip(one.found, SAMPLES, strict=True))
        assert one.found[0] == one.found[4] and all(second > 0 for second in one.seconds)
    assert all(few > zero for few, zero in zip(found.few.tokens, found.zero.tokens, strict=True))
    alone = classify(llm, plan(0), method, RunListener())  # type: ignore[arg-type]
    assert alone.few is None is alone.difference and alone.zero.found == found.zero.found


def test_the_difference_is_of_the_same_texts() -> None:
    zero = ShotResult(0, (), (True, False, False, True), (1.0, 2.0, 4.0, 1.0), ())
    few = ShotResult(1, (), (True, True, True, False), (2.0, 2.0, 6.0, 4.0), ())
    found = Classification(zero, few)
    assert found.difference == compare_paired(2, 1, 4)
    assert found.time_ratio == 1.75  # of 2, 1, 1.5 and 4
    assert (zero.accuracy.value, few.ms) == (0.5, 3000.0)


@pytest.mark.parametrize(
    ("shots", "samples", "labels", "said"),
    [
        (
            4,
            SAMPLES,
            ("on", "off"),
            "shots = 4 is more than there are other texts; allowed: 0 to 3",
        ),
        (-1, SAMPLES, ("on", "off"), "shots = -1 is not valid; allowed: 0 to 64"),
        (0, SAMPLES, ("on",), "labels has 1 labels; allowed: 2 to 64"),
    ],
)
def test_plans_that_cannot_be(
    shots: int, samples: list[LabelledText], labels: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ClassifyPlan(samples, labels, shots)
    assert str(caught.value).startswith(said)


def test_a_text_that_is_too_long(llm: LLM) -> None:
    texts = [LabelledText("cat " * 4000, "on", "long.jsonl:1"), SAMPLES[1]]
    with pytest.raises(ConfigError, match=r"long\.jsonl:1: prompt has \d+ tokens with its label"):
        classify(llm, plan(0, texts), "likelihood", RunListener())


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ['{"text": "a", "label": "of"}'],
            "label = 'of' is unknown; allowed: on, off (did",
        ),
        (['{"text": "", "label": "on"}'], "a.jsonl:1: text = '' is not valid; allowed: text"),
        (['{"text": "a", "label": "on"}', '{"text": "a"}'], "a.jsonl:2: label = None"),
        (["[1]"], "a.jsonl:1"),
        ([""], "there is no text"),
    ],
)
def test_files_of_labelled_texts(tmp_path: Path, lines: list[str], said: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(lines))
    with pytest.raises(FlyweightError) as caught:
        read_labelled(str(file), ("on", "off"))
    assert said in str(caught.value) and "\n" not in str(caught.value)
