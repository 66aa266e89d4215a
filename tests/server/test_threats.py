"""What the source may not hold, and how keys are compared: rows of the threat table that no request
can show.
"""

import ast
import asyncio
import hmac
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import chat_model
import flyweight
from flyweight.server.settings import ServerSettings
from flyweight.server.transport import guard
from flyweight.server.transport.guard import RequestGuard
from flyweight.server.transport.keys import ApiKeys
from http_server import Running, served

ROOT = Path(flyweight.__file__).parent
RUNS_CODE = {"eval", "exec", "compile", "__import__"}
PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
LISTENS = {"bind", "listen", "create_server", "start_server", "start_unix_server"}
MENDED = {"jinja2": (3, 1, 6), "starlette": (1, 0, 1)}  # sandbox escapes; Host and the path
SERVERS = {
    "socketserver",
    "xmlrpc",
    "zmq",
    "multiprocessing.managers",
    "multiprocessing.connection",
}


@cache
def source() -> list[tuple[str, ast.AST]]:
    """Every node of every module that the tests here look at, with its file."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.ClassDef)
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
    ]


def nodes(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    return ((path, node) for path, node in source() if isinstance(node, kind))


def imported() -> set[tuple[str, str]]:
    found = {(path, alias.name) for path, node in nodes(ast.Import) for alias in node.names}
    return found | {(path, node.module or "") for path, node in nodes(ast.ImportFrom)}


def called() -> Iterator[tuple[str, str]]:
    for path, node in nodes(ast.Call):
        function = node.func
        yield path, getattr(function, "id", "") or getattr(function, "attr", "")


def test_nothing_is_pickled_and_no_text_is_run() -> None:
    modules = imported()
    assert len(modules) > 500
    bad = {(path, name) for path, name in modules if name.split(".")[0] in PICKLES}
    builtins = {(path, node.func.id) for path, node in nodes(ast.Call)
                if isinstance(node.func, ast.Name) and node.func.id in RUNS_CODE}  # fmt: skip
    assert not bad and not builtins


def test_there_is_one_listener_and_no_other_kind_of_server() -> None:
    listens = {path for path, name in called() if name in LISTENS}
    # the one port, and who answers on it before there is a model; --prefix-cache-listen; --nnodes;
    # Ray Serve starts without its proxies
    http = {"server/lifecycle/start.py", "server/transport/http_server.py"}
    hosts = {"kv/peers/server.py", "parallel/nodes/leader.py", "parallel/ray_serve.py"}
    assert listens == http | hosts
    assert not {(path, name) for path, name in imported() if name.split(".")[0] in SERVERS}


def test_templates_have_one_environment_and_it_is_a_sandbox() -> None:
    made = {(path, name) for path, name in called() if name.endswith("Environment")}
    assert not made  # a `Sandbox` is
    bases = {(path, node.name) for path, node in nodes(ast.ClassDef)
             for base in node.bases if "Environment" in ast.unparse(base)}  # fmt: skip
    assert bases == {("text/sandbox.py", "Sandbox")}
    templates = {path for path, name in called() if name in ("Template", "from_string")}
    assert templates == {"text/chat.py"}


def test_the_least_versions_have_no_known_holes() -> None:
    """Of what reads requests and templates."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    least = dict(re.findall(r'^  "([a-z0-9-]+)>=([0-9.]+)', text, re.MULTILINE))
    for name, mended in MENDED.items():
        assert tuple(map(int, least[name].split("."))) >= mended, name
    assert "h11" not in {name.split(".")[0] for _, name in imported()}


def test_every_key_is_compared_whole_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def counted(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    class Counting:
        compare_digest = staticmethod(counted)

    monkeypatch.setattr(guard, "hmac", Counting)
    statuses = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    settings = ServerSettings(keys=("first", "a longer second", "3"))
    door = RequestGuard(app, settings, ApiKeys(settings))
    for key in (b"first", b"3", b"", b"x" * 500):
        head = [(b"host", b"localhost"), (b"authorization", b"Bearer " + key)]
        scope = {"type": "http", "method": "GET", "path": "/v1/models", "http_version": "1.1",
                 "headers": head}  # fmt: skip
        compared.clear()
        asyncio.run(door(scope, receive, send))
        assert compared == [(32, 32)] * 3, key
    assert [status for status in statuses if status] == [200, 200, 401, 401]


@pytest.mark.parametrize(
    "lines",
    ["gzip", "deflate", "br", "zstd", "identity, gzip", "identity\r\nContent-Encoding: gzip"],
)
def test_compressed_bodies_are_not_opened(server: Running, lines: str) -> None:
    head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: {lines}\r\n"
    body = b'{"content": "a"}'
    rest = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    assert server.raw((head + rest).encode() + body).split()[1] == b"415"


@pytest.mark.parametrize(
    "lines",
    ["Content-Length: 3\r\nContent-Length: 16", "Content-Length: 5\r\nTransfer-Encoding: chunked",
     "Content-Length: -1", "Content-Length: +16", "Content-Length: 0x10", "Content-Length: 1e1",
     "Content-Length: " + "9" * 40, "X-A: a\r\n b", "X-A: \x00",
     "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"],
)  # fmt: skip
def test_a_body_has_one_length_and_no_second_request_in_it(server: Running, lines: str) -> None:
    first = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n\r\n"
    second = "0\r\n\r\nGET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    found = server.raw((first + second).encode())
    assert found.startswith(b"HTTP/1.1 400 ") and found.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("depth", [1000, 100_000, 1_000_000])
@pytest.mark.parametrize(
    ("path", "before", "inside"),
    [("/v1/completions", '{"prompt": %s}', "[]"), ("/v1/chat/completions", '{"tools": %s}', "[]"),
     ("/v1/completions", '{"structured_outputs": {"json": %s}}', "{}"),
     ("/api/generate", '{"format": %s}', "{}"), ("/v1/responses", '{"metadata": %s}', "{}"),
     ("/v1/messages", '{"system": %s}', "[]"), ("/completion", '{"json_schema": %s}', "{}")],
)  # fmt: skip
def test_depth_is_refused(server: Running, path: str, before: str, inside: str, depth: int) -> None:
    opens = "[" if inside == "[]" else '{"not":'
    raw = before % (opens * depth + inside + inside[1] * depth)
    got = server.ask("POST", path, raw.encode())
    assert got.status == 400 and b"too deeply" in got.body


@pytest.mark.parametrize("depth", [150, 600, 900, 5000, 20_000])
@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ('{"a": ', "}")])
@pytest.mark.parametrize("written", [False, True])
def test_depth_of_a_calls_arguments_is_refused(
    server: Running, opens: str, closes: str, depth: int, *, written: bool
) -> None:
    """As an object, or as text that holds one: templates are given the object.  A list is none."""
    arguments = opens * depth + "1" + closes * depth
    given = json.dumps(arguments) if written else arguments
    call = f'{{"type": "function", "function": {{"name": "f", "arguments": {given}}}}}'
    talk = f'[{{"role": "assistant", "content": "x", "tool_calls": [{call}]}}]'
    for more in ("", ', "truncate_prompt_tokens": 5'):
        raw = f'{{"messages": {talk}{more}}}'.encode()
        got = server.ask("POST", "/v1/chat/completions", raw)
        said = b"nested" in got.body or (opens == "[" and b"allowed: an object" in got.body)
        assert got.status == 400 and said, got.body


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity", "9" * 5000, "1" * 10**6])
@pytest.mark.parametrize("field", ["max_tokens", "temperature", "seed", "n", "prompt", "priority"])
def test_numbers_that_are_none_are_refused(server: Running, field: str, number: str) -> None:
    got = server.ask("POST", "/v1/completions", f'{{"prompt": "x", "{field}": {number}}}'.encode())
    assert got.status == 400 and len(got.body) < 1000


def test_a_text_to_tokenise_is_bounded(server: Running) -> None:
    """It is read at one go, and no context bounds it."""
    got = server.post("/tokenize", {"content": "a" * (256 << 10)})
    assert got.status == 200 and got.json["count"] > 1000
    for name, text in (("content", "a" * ((256 << 10) + 1)), ("prompt", "é" * (128 << 10) + "a")):
        refused = server.post("/tokenize", {name: text})
        assert refused.status == 400 and refused.json["error"]["param"] == name
        assert "--max-tokenize-bytes" in refused.json["error"]["message"]


def test_a_text_of_ids_is_bounded(server: Running) -> None:
    """A few bytes of a body are one id, which may be many bytes of a reply."""
    word = server.post("/tokenize", {"content": "Once upon a time"}).json["tokens"][-1]
    size = len(server.post("/detokenize", {"tokens": [word] * 100}).json["content"]) / 100
    most = int((256 << 10) / size)
    got = server.post("/detokenize", {"tokens": [word] * (most - 9)})
    assert got.status == 200 and len(got.json["content"]) > (255 << 10)
    refused = server.post("/detokenize", {"tokens": [word] * (most + 9)})
    assert refused.status == 400 and refused.json["error"]["param"] == "tokens"
    assert "--max-tokenize-bytes" in refused.json["error"]["message"]


def test_all_of_a_conversation_that_is_cut_is_bounded(tmp_path: Path) -> None:
    """It is written and read to its end before it is cut: what its tools and documents say too."""
    all_of_it = "{% if tools or documents %}{{ tools }}{{ documents }}{% endif %}"
    template = chat_model.TEMPLATE + all_of_it
    model = chat_model.write(tmp_path / "model.gguf", template)
    with served({"model": str(model)}) as own:
        for text, status in (("a" * 100, 200), ("a" * ((256 << 10) + 1), 400)):
            tool = {"type": "function", "function": {"name": "f", "description": text}}
            for name, value in (("tools", [tool]), ("documents", [{"text": text}])):
                body = {"messages": [{"role": "user", "content": "x"}], name: value}
                got = own.post("/apply-template", {**body, "truncate_prompt_tokens": 5})
                assert got.status == status, got.body
                if status == 400:
                    assert got.json["error"]["param"] == name
                    assert "--max-tokenize-bytes" in got.json["error"]["message"]


@pytest.mark.parametrize("cut", ["\\ud83d", "a\\uDE00", "\\ud83d\\ud83d", "\\ud83dx"])
def test_an_invalid_surrogate_is_named(server: Running, cut: str) -> None:
    got = server.ask("POST", "/tokenize", f'{{"prompt": "{cut}"}}'.encode())
    assert got.status == 400 and "invalid UTF-16 surrogate" in got.json["error"]["message"]
    whole = server.ask("POST", "/tokenize", b'{"prompt": "\\ud83d\\ude00"}')
    assert whole.status == 200
    broken = server.ask("POST", "/tokenize", f'{{"prompt": "{cut}"'.encode())
    assert broken.status == 400 and "valid JSON" in broken.json["error"]["message"]
