"""Priorities of requests: bounded by the operator, and refused where all come in order."""

from collections.abc import Iterator

import pytest

from http_server import Running, started

BODIES = {
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/v1/embeddings": {"input": "a"},
}


@pytest.fixture(scope="module")
def in_order() -> Iterator[Running]:
    with started("--scheduling-policy", "fcfs") as running:
        yield running


@pytest.mark.parametrize("path", BODIES)
def test_none_is_taken_where_the_first_come_is_the_first_served(
    in_order: Running, path: str
) -> None:
    for priority in (1, -1):
        got = in_order.post(path, {**BODIES[path], "priority": priority})
        error = got.json["error"]
        assert (got.status, error["param"]) == (400, "priority")
        assert f"priority = {priority} is out of range" in error["message"]
        assert "--scheduling-policy fcfs" in error["message"]
    assert in_order.post(path, {**BODIES[path], "priority": 0}).status == 200
    assert in_order.post(path, BODIES[path]).status == 200


def row(running: Running) -> tuple[str, str]:
    rows = {r["feature"]: r for r in running.get("/v1/engine/effective").json["features"]}
    return rows["scheduling"]["requested"], rows["scheduling"]["effective"]


def test_the_ledger_and_the_document_say_so(in_order: Running, server: Running) -> None:
    assert row(in_order) == ("--scheduling-policy fcfs", "fcfs")
    assert row(server) == ("by default", "priority")
    schemas = in_order.get("/openapi.json").json["components"]["schemas"]
    whole, _ = schemas["ChatBody"]["properties"]["priority"]["anyOf"]
    assert (whole["minimum"], whole["maximum"]) == (0, 0)


def test_an_operator_bounds_them_either_way() -> None:
    body = BODIES["/v1/completions"]
    with started("--max-priority", "5") as running:
        for priority in (5, -5):
            assert running.post("/v1/completions", {**body, "priority": priority}).status == 200
        for priority, near in ((6, 5), (-6, -5)):
            got = running.post("/v1/completions", {**body, "priority": priority})
            assert got.json["error"]["message"] == (
                f"priority = {priority} is out of range; allowed: -5 to 5; nearest valid: {near}"
            )
