"""Where a server listens: with TLS, behind a proxy's prefix, on a Unix socket."""

import gzip
import http.client
import json
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from flyweight.errors import ConfigError
from flyweight.server.lifecycle.start import listen_on_path
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.http_server import make_tls_context
from http_server import WAIT, Running, started

TLS = Path(__file__).parents[1] / "data" / "tls"
PREFIX = "/llm"


@pytest.fixture(scope="module")
def secure() -> Iterator[Running]:
    """HTTPS, with a key, behind a prefix."""
    words = ["--ssl-certfile", str(TLS / "cert.pem"), "--ssl-keyfile", str(TLS / "key.pem")]
    with started(*words, "--root-path", PREFIX, "--api-key", "k") as running:
        yield running


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A Unix socket, in the place of one that was left behind."""
    path = tmp_path_factory.mktemp("uds") / "server.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    with started("--uds", str(path)) as running:
        yield running, path


def requested(
    line: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    raw = None if body is None else json.dumps(body)
    line.request(method, path, raw, {"content-type": "application/json", **headers})
    got = line.getresponse()
    return got, got.read()


def over_tls(server: Running) -> http.client.HTTPSConnection:
    """A connection that believes this certificate alone."""
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=WAIT, context=context)


def over_socket(path: Path) -> http.client.HTTPConnection:
    line = http.client.HTTPConnection("localhost", timeout=WAIT)
    line.sock = socket.socket(socket.AF_UNIX)
    line.sock.connect(str(path))
    return line


KEY = {"authorization": "Bearer k"}


def test_a_server_with_a_certificate_serves_https(secure: Running) -> None:
    assert f"https://127.0.0.1:{secure.port}" in secure.said[-1]
    body = {"prompt": "Once", "max_tokens": 3, "stream": True}
    got, raw = requested(over_tls(secure), "POST", "/v1/completions", body, **KEY)
    assert got.status == 200 and raw.endswith(b"data: [DONE]\n\n")
    with pytest.raises((http.client.HTTPException, OSError)):
        secure.get("/health")


def test_paths_are_those_behind_the_prefix(secure: Running) -> None:
    """Which a proxy takes off; what is open, and how errors are written, goes by the rest."""
    line = over_tls(secure)
    assert requested(line, "GET", "/health")[0].status == 200
    assert requested(line, "GET", "/v1/models")[0].status == 401
    got, raw = requested(line, "POST", "/api/chat", {})
    assert got.status == 401 and list(json.loads(raw)) == ["error"]
    got, raw = requested(line, "GET", "/v1/messages", **KEY)
    assert got.status == 405 and "'/v1/messages' does not take GET" in raw.decode()
    got, raw = requested(line, "GET", "/openapi.json", **KEY)
    assert json.loads(raw)["servers"] == [{"url": PREFIX}]
    page = requested(line, "GET", "/docs")[1].decode()
    assert 'src="docs/page.js"' in page and 'fetch("openapi.json"' in (
        requested(line, "GET", "/docs/page.js")[1].decode()
    )


def test_replies_name_no_folder_of_the_files(secure: Running) -> None:
    raw = requested(over_tls(secure), "GET", "/v1/engine/effective", **KEY)[1].decode()
    assert "key.pem" in raw and str(TLS) not in raw


def test_a_unix_socket_is_served(local: tuple[Running, Path]) -> None:
    server, path = local
    assert server.said[-1].endswith(f" on unix:{path}\n")
    body = {"prompt": "Once", "max_tokens": 3}
    got, raw = requested(over_socket(path), "POST", "/v1/completions", body)
    assert got.status == 200 and json.loads(raw)["usage"]["completion_tokens"] == 3
    got, _ = requested(over_socket(path), "GET", "/health", host="elsewhere.example")
    assert got.status == 403
    assert stat.S_ISSOCK(path.stat().st_mode)
    with pytest.raises(ConfigError, match="exists"):
        listen_on_path(str(path))


def test_a_socket_is_removed_at_the_end(tmp_path: Path, local: tuple[Running, Path]) -> None:
    server, path = local
    assert server.stop() == 0 and not path.exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        listen_on_path(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(ConfigError, match="uds = "):
        listen_on_path(str(tmp_path / "nowhere" / "x"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"root_path": "llm"}, "nearest valid: /llm"),
        ({"root_path": "/llm/"}, "nearest valid: /llm"),
        ({"ssl_keyfile": "k.pem"}, "--ssl-certfile"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServerSettings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cert", "key", "why"),
    [
        ("none.pem", "key.pem", "No such file"), ("cert.pem", "", "--ssl-keyfile names a key"),
        ("key.pem", "cert.pem", "a certificate and its key are needed, both PEM$"),
    ],
)  # fmt: skip
def test_a_certificate_that_cannot_be_used_is_refused(cert: str, key: str, why: str) -> None:
    given = {"ssl_certfile": str(TLS / cert), "ssl_keyfile": str(TLS / key) if key else ""}
    with pytest.raises(ConfigError, match=f"{cert}.* cannot be used: .*{why}"):
        make_tls_context(ServerSettings(**given))  # type: ignore[arg-type]


def test_a_socket_needs_no_key() -> None:
    assert ServerSettings(host="0.0.0.0", uds="/run/x").local


def test_metrics_are_compressed_on_request(server: Running) -> None:
    plain = server.get("/metrics")
    assert "content-encoding" not in plain.headers
    packed = server.get("/metrics", **{"accept-encoding": "deflate, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body).startswith(plain.body[:200])
    assert len(packed.body) < len(plain.body) / 3


def test_metrics_are_open_metrics_where_requested(server: Running) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
    got = server.get("/metrics", accept=accept)
    assert got.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {one.name: one for one in text_string_to_metric_families(got.body.decode())}
    assert got.body.endswith(b"# EOF\n") and families["vllm:prompt_tokens"].type == "counter"
    plain = server.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {line.split()[2] for line in plain.body.decode().splitlines() if line[:6] == "# TYPE"}
    assert {name.removesuffix("_total") for name in names} == {
        name.removesuffix("_total") for name in families
    }


def test_the_document_has_a_tag_for_each_api(server: Running) -> None:
    found = server.get("/openapi.json").json
    tags = [tag["name"] for tag in found["tags"]]
    assert tags == ["OpenAI", "Anthropic", "llama.cpp", "Ollama", "flyweight"]
    operations = {(path, method): one for path, methods in found["paths"].items()
                  for method, one in methods.items()}  # fmt: skip
    assert {len(one["tags"]) for one in operations.values()} == {1}
    assert operations["/api/chat", "post"]["tags"] == ["Ollama"]
    assert operations["/v1/messages", "post"]["tags"] == ["Anthropic"]
