"""Apache Beam's RunInference, with the runner of this process."""

import importlib.util
from typing import Any

import msgspec
import pytest

from batch_texts import OPTIONS, PROMPTS, ROWS, generate_texts

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None, reason="Apache Beam is missing"
)


@pytest.mark.long
def test_texts_are_those_of_generate_and_errors_are_results() -> None:
    import apache_beam as beam
    from apache_beam.ml.inference.base import RunInference
    from apache_beam.testing.util import assert_that

    from flyweight.batch.beam import FlyweightModelHandler

    expected = generate_texts()
    bad = {"prompt": "a", "temperature": -1, "custom_id": "bad"}
    elements: list[Any] = [*PROMPTS[:3], *ROWS[3:], bad]

    def check(results: list[Any]) -> None:
        assert len(results) == len(elements)
        for one in results:
            line = one.inference
            if line["custom_id"] == "bad":
                assert line["error"]["code"] == "bad_value"
                continue
            name = one.example if isinstance(one.example, str) else one.example["prompt"]
            assert line["response"]["body"]["choices"][0]["text"] == expected[name]
            assert one.model_id == "stories"

    handler = FlyweightModelHandler("stories", threads=1, memory_limit="2GiB", max_batch_size=4)
    with beam.Pipeline("DirectRunner") as pipeline:
        results = pipeline | beam.Create(elements) | RunInference(handler, inference_args=OPTIONS)
        assert_that(results, check)


def test_elements_that_are_no_rows_are_errors_of_their_own() -> None:
    import numpy

    from flyweight.batch.beam import FlyweightModelHandler, encode_elements

    elements: list[Any] = [{"prompt": "a", "seed": numpy.int64(3)}, "b", 7, {"prompt": "c"}]
    rows, lines = encode_elements(elements, {"max_tokens": 2})
    assert [row.number for row in rows] == [1, 3] and sorted(lines) == [0, 2]
    error = msgspec.json.decode(lines[2])["error"]
    assert error["message"] == "the element is no row: int is neither a text nor a mapping"
    assert FlyweightModelHandler().get_num_bytes(elements) > 0


def test_sizes_of_batches_are_checked() -> None:
    from flyweight.batch.beam import FlyweightModelHandler
    from flyweight.errors import ConfigError

    with pytest.raises(ConfigError, match="min_batch_size = 0 is out of range"):
        FlyweightModelHandler("stories", min_batch_size=0)
    assert FlyweightModelHandler().batch_elements_kwargs()["max_batch_size"] == 64
