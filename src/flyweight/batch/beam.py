"""Apache Beam's RunInference with a model of ours: the extra `beam`.

Invariant: an element gets one result, and what is wrong with it is its result.  A process loads the
model once; its threads take turns.
"""

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Unpack

import msgspec
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from flyweight.arguments.keywords import EngineOptions
from flyweight.batch.answering import RowAnswerer, make_failure
from flyweight.batch.rows import Row
from flyweight.errors import ConfigError, RequestError
from flyweight.llm import LLM
from flyweight.server.settings import ServerSettings

Element = str | Mapping[str, Any]


class BeamModel:
    """A model with the turn of its threads."""

    def __init__(self, settings: dict[str, Any], server: ServerSettings) -> None:
        self._llm = LLM(**settings)
        self._answerer = RowAnswerer(self._llm, server)
        self._turn = Lock()

    def answer(self, rows: Iterable[Row]) -> dict[int, bytes]:
        """The output lines of rows by their numbers."""
        with self._turn:
            return {one.number: one.line for one in self._answerer.answer(rows)}


class FlyweightModelHandler(ModelHandler[Element, PredictionResult, BeamModel]):  # type: ignore[misc]
    """Answers prompts (texts) and rows (mappings, as in a batch's input).

    `inference` of a result is the line of a batch's output as a dictionary: `custom_id`,
    `response` and `error`.  `model` and further keywords are those of `LLM`; `server` has limits
    and defaults of requests.  Batches have `min_batch_size` to `max_batch_size` elements.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        server: ServerSettings | None = None,
        min_batch_size: int = 1,
        max_batch_size: int = 64,
        **options: Unpack[EngineOptions],
    ) -> None:
        super().__init__()
        if not 1 <= min_batch_size <= max_batch_size:
            allowed = f"1 to max_batch_size = {max_batch_size}"
            raise ConfigError(
                "is out of range", "min_batch_size", value=min_batch_size, allowed=allowed
            )
        self._settings: dict[str, Any] = {"model": model, **options}
        self._server = server or ServerSettings()
        self._sizes = {"min_batch_size": min_batch_size, "max_batch_size": max_batch_size}

    def load_model(self) -> BeamModel:
        """Raises `ConfigError` or `CheckpointError`."""
        return BeamModel(self._settings, self._server)

    def run_inference(
        self,
        batch: Sequence[Element],
        model: BeamModel,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionResult]:
        """The results in the order of the batch; `inference_args` are defaults of its rows."""
        rows, lines = encode_elements(batch, inference_args or {})
        lines |= model.answer(rows)
        name = str(self._settings["model"] or "stories")
        for i, element in enumerate(batch):
            line = msgspec.json.decode(lines[i])
            del line["id"]  # of a file's row
            yield PredictionResult(element, line, name)

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """They are checked with each row."""

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        return self._sizes

    def get_num_bytes(self, batch: Sequence[Element]) -> int:
        rows, _ = encode_elements(batch, {})
        return sum(len(row.data) for row in rows)

    def get_metrics_namespace(self) -> str:
        return "BeamML_Flyweight"


def encode_elements(
    batch: Sequence[Element], defaults: Mapping[str, Any]
) -> tuple[list[Row], dict[int, bytes]]:
    """The elements as rows, and by their numbers the output lines of those that cannot be."""
    rows: list[Row] = []
    lines: dict[int, bytes] = {}
    for i, one in enumerate(batch):
        try:
            rows.append(Row(i, 0, encode_element(one, defaults)))
        except Exception as error:  # of many kinds; a mapping of the user's may raise any
            refused = RequestError(f"the element is no row: {error}", code="invalid_json")
            lines[i] = make_failure(Row(i, 0, b""), f"row-{i}", refused).line
    return rows, lines


def encode_element(element: Element, defaults: Mapping[str, Any]) -> bytes:
    """An element as a row.  Raises where it is neither text nor a mapping that JSON can hold."""
    if not isinstance(element, str | Mapping):
        raise TypeError(f"{type(element).__name__} is neither a text nor a mapping")
    fields: dict[str, Any] = {"prompt": element} if isinstance(element, str) else dict(element)
    if isinstance(fields.get("body"), Mapping):
        fields["body"] = {**defaults, **fields["body"]}
        return msgspec.json.encode(fields)
    return msgspec.json.encode({**defaults, **fields})
