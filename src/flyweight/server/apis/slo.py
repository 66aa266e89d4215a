"""Deadlines as bodies and headers have them.

Invariant: a deadline that is read is within the range; a field of the body wins over its header.
"""

import re
from collections.abc import Mapping
from math import inf
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema
from starlette.requests import Request

from flyweight.errors import RequestError
from flyweight.server.admission.deadlines import Deadlines
from flyweight.server.apis.fields import Fields

LEAST, MOST = 1, 86_400_000  # milliseconds: up to a day
RANGE = f"{LEAST} to {MOST} milliseconds"
NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
SWITCHES = {"true": True, "false": False}
PREFIX = "x-slo-"  # of the headers


def _check_range(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(RANGE)
    if not LEAST <= value <= MOST:
        raise ValueError(f"{RANGE}; nearest valid: {LEAST if value < LEAST else MOST}")
    return value


Milliseconds = Annotated[
    float,
    BeforeValidator(_check_range),
    WithJsonSchema({"type": "number", "minimum": LEAST, "maximum": MOST}),
]


class SloFields(Fields):
    """Times after the arrival of the request."""

    ttft_ms: Milliseconds | None = Field(None, description="Deadline of the first token.")
    e2el_ms: Milliseconds | None = Field(None, description="Deadline of the last token.")
    strict: bool | None = Field(
        None, description="Refuse the request if it is predicted to miss a deadline."
    )


Slo = Annotated[
    SloFields | None, Field(description="Deadlines, also as headers x-slo-ttft-ms, x-slo-e2el-ms.")
]


def read_deadlines(request: Request, body: BaseModel) -> Deadlines | None:
    """The deadlines of a request; None where it has none, or its route generates nothing.  Raises
    `RequestError`.
    """
    if "slo" not in type(body).model_fields:
        return None
    given = getattr(body, "slo", None) or SloFields.model_validate({})
    times = [
        _read_header(request.headers, name) if own is None else own
        for name, own in (("ttft-ms", given.ttft_ms), ("e2el-ms", given.e2el_ms))
    ]
    strict = _read_switch(request.headers, "strict") if given.strict is None else given.strict
    ttft, e2el = (inf if one is None else one / 1000 for one in times)
    return None if ttft == e2el == inf else Deadlines(ttft, e2el, strict)


def _read_header(headers: Mapping[str, str], name: str) -> float | None:
    """Raises `RequestError`."""
    text = headers.get(PREFIX + name)
    if text is None:
        return None
    value = float(text) if NUMBER.fullmatch(text) else text
    try:
        return float(_check_range(value))
    except ValueError as error:
        raise RequestError(
            "is not valid", PREFIX + name, value=text[:100], allowed=str(error)
        ) from None


def _read_switch(headers: Mapping[str, str], name: str) -> bool:
    """Raises `RequestError`."""
    text = headers.get(PREFIX + name, "false")
    if text not in SWITCHES:
        allowed = ", ".join(SWITCHES)
        raise RequestError("is not valid", PREFIX + name, value=text[:100], allowed=allowed)
    return SWITCHES[text]
