"""The server's OpenAPI document and its page."""

import asyncio
import gzip
import re
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from flyweight.server.apis import openapi as docs
from flyweight.server.apis.routes import ROUTES
from http_server import Running, started


def test_unpacking_is_done_once_and_keeps_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key anybody may fetch; threads that read prompts are not theirs."""
    made: list[bytes] = []
    unpack = gzip.decompress
    monkeypatch.setattr(gzip, "decompress", lambda raw: made.append(raw) or unpack(raw))
    docs.unpack.cache_clear()
    url = SimpleNamespace(path="/docs/swagger-ui-bundle.js")
    request: Any = SimpleNamespace(url=url, headers={})
    nobody: Any = SimpleNamespace()  # a front end without threads
    got = [asyncio.run(docs.get_file(nobody, request)) for _ in range(3)]
    assert len(made) == 1 and {one.body for one in got} == {unpack(made[0])}
    request.headers = {"accept-encoding": "gzip"}
    assert asyncio.run(docs.get_file(nobody, request)).body == made[0]


def test_the_document_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a long while of everybody's time, and is the same for all."""
    made: list[dict[str, Any]] = []

    def document(tables: Any, vocab: int, width: int, settings: Any) -> dict[str, Any]:
        made.append({"openapi": f"{tables} {vocab} {width} {settings}"})
        return made[-1]

    monkeypatch.setattr(docs, "make_document", document)
    openapi = docs.make_openapi_handler(dict)
    request: Any = None

    async def write_in_thread(work: Any) -> Any:
        return await asyncio.to_thread(work)

    async def requested() -> list[bytes]:
        first = SimpleNamespace(client=SimpleNamespace(facts={"vocab": 5, "width": 3}))
        directory = SimpleNamespace(first=first)
        server: Any = SimpleNamespace(
            directory=directory, settings="s", write_in_thread=write_in_thread, document=None
        )
        found = await asyncio.gather(*(openapi(server, request) for _ in range(3)))
        return [bytes(one.body) for one in (*found, await openapi(server, request))]

    got = asyncio.run(requested())
    assert len(made) == 1 and set(got) == {b'{"openapi":"{} 5 3 s"}'}


def test_the_page_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    request: Any = None
    first = asyncio.run(docs.get_page(request, request)).body
    monkeypatch.setattr(docs, "FOLDER", None)
    assert asyncio.run(docs.get_page(request, request)).body == first


def test_every_route_is_in_the_document(server: Running) -> None:
    found = server.get("/openapi.json").json
    listed = {(m.upper(), p) for p, methods in found["paths"].items() for m in methods}
    assert listed == {(e.method, e.path.replace(":path}", "}")) for e in ROUTES}
    for path, methods in found["paths"].items():
        for operation in methods.values():
            assert set(operation["responses"]) == {"200", "4XX", "5XX"}, path


def test_what_is_referred_to_is_there(server: Running) -> None:
    got = server.get("/openapi.json")
    names = set(re.findall(rb'"#/components/schemas/([^"]+)"', got.body))
    assert names and {name.decode() for name in names} <= set(got.json["components"]["schemas"])


def test_an_id_ends_where_the_vocabulary_does(server: Running) -> None:
    found = server.get("/openapi.json").json
    vocab = server.get("/server_info").json["engine"]["vocab"]
    body = found["components"]["schemas"]["DetokenizeBody"]
    assert body["properties"]["tokens"]["items"]["exclusiveMaximum"] == vocab
    assert b"x-token" not in server.get("/openapi.json").body


@pytest.mark.parametrize("path", [e.path for e in ROUTES if e.body is not None])
def test_bodies_are_refused_in_the_shape_that_is_documented(server: Running, path: str) -> None:
    got = server.post(path, {"no_such_field": 1})
    assert got.status == 400
    document = server.get("/openapi.json").json
    shape = document["paths"][path]["post"]["responses"]["4XX"]["content"]["application/json"]
    name = shape["schema"]["$ref"].rsplit("/", 1)[1]
    required = document["components"]["schemas"][name]["required"]
    assert sorted(required) == sorted(got.json)


def test_the_page_loads_nothing_from_elsewhere(server: Running) -> None:
    page = server.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "http" not in policy
    wanted = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    assert all(link.startswith(("docs/", "data:")) for link in wanted)
    for link in wanted:
        if link.startswith("docs/"):
            assert server.get(f"/{link}").status == 200, link
    packed = server.get("/docs/swagger-ui-bundle.js", **{"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip" and len(packed.body) < 1 << 19
    plain = server.get("/docs/swagger-ui-bundle.js")
    assert "content-encoding" not in plain.headers and b"SwaggerUIBundle" in plain.body


def test_static_files_need_no_key_and_the_document_does() -> None:
    with started("--api-key", "k") as running:
        opened = [e for e in ROUTES if e.open]
        assert {running.get(e.path).status for e in opened} == {200}
        closed: list[Any] = [e for e in ROUTES if not e.open and e.method == "GET"]
        assert {running.get(e.path.split("{")[0]).status for e in closed} == {401}
        document = running.get("/openapi.json", authorization="Bearer k").json
        assert document["security"] == [{"bearer": []}, {"x-api-key": []}]
        assert running.get("/openapi.json", **{"x-api-key": "k"}).status == 200
        refused = running.post("/v1/messages", {})
        assert refused.status == 401 and refused.json["type"] == "error"
        assert list(running.post("/api/chat", {}).json) == ["error"]


@pytest.mark.parametrize(
    ("path", "body", "taken"),
    [
        ("/tokenize", {"prompt": "a"}, True),
        ("/tokenize", {"prompt": None}, False),
        ("/tokenize", {"prompt": "a", "content": "b"}, False),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, False),
        ("/completion", {"prompt": "a", "n_predict": 1, "return_progress": False}, True),
        ("/completion", {"prompt": "a", "n_predict": 1, "return_progress": 0}, False),
        ("/completion", {"prompt": "a", "n_predict": 1, "logit_bias": [["cat", False]]}, True),
        ("/completion", {"prompt": "a", "n_predict": 1, "logit_bias": [[None, 1]]}, False),
        ("/v1/responses", {"input": "a", "background": True}, False),
        ("/api/embed", {"model": "stories", "options": {"num_ctx": None, "new": None}}, True),
        ("/api/embed", {"model": "stories", "options": {"new": 1}}, False),
        ("/v1/embeddings", {"input": ""}, False),
        ("/v1/embeddings", {"input": "a", "dimensions": 192}, True),
        ("/v1/embeddings", {"input": "a", "dimensions": 193}, False),
        ("/completion", {"prompt": "a", "n_predict": 1, "mirostat": 2}, True),
    ],
)
def test_the_document_takes_what_the_server_takes(
    server: Running, path: str, body: dict[str, Any], taken: bool
) -> None:
    document = server.get("/openapi.json").json
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    schema = {**content["schema"], "components": document["components"]}
    assert Draft202012Validator(schema).is_valid(body) is taken
    assert (server.post(path, body).status == 200) is taken


def test_a_server_without_a_key_says_so(server: Running) -> None:
    assert server.get("/openapi.json").json["security"] == []
