"""Who may ask: keys, Host, Origin, and paths that try to get around them."""

from collections.abc import Iterator

import pytest

from flyweight.server.apis.routes import ROUTES
from flyweight.server.transport.guard import OPEN
from http_server import Running, served

KEY, OTHER = "sk-first", "schlüssel-🔑"
STATIC = ("/docs", "/page/")  # pages that hold nothing


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    """A server with two keys, for one Host and one Origin more."""
    given = {"keys": [KEY, OTHER], "allowed_hosts": ["models.example"]}
    with served(server={**given, "allowed_origins": ["https://page.example"]}) as running:
        yield running


def requested(server: Running, target: str, *lines: str, host: str = "localhost") -> int:
    """The status of a request whose first line and headers are exactly these."""
    head = [f"GET {target} HTTP/1.1", f"Host: {host}", *lines, "Connection: close", "", ""]
    found = server.raw("\r\n".join(head).encode())
    return int(found.split(b" ", 2)[1])


def test_every_route_but_the_open_ones_needs_a_key(locked: Running) -> None:
    walked = 0
    for entry in ROUTES:
        path = entry.path.replace("{model:path}", "x").replace("{path:path}", "x")
        if path == "/" or path in OPEN or path.startswith(STATIC):
            continue
        got = locked.ask(entry.method, path, b"{}" if entry.method == "POST" else None)
        assert got.status == 401, path
        assert "API key" in got.body.decode(), path  # in the dialect's own shape
        assert got.headers["www-authenticate"] == "Bearer"
        walked += 1
    assert walked > 5
    for path in OPEN:
        assert locked.get(path).status == 200
    assert locked.get("/nothing").status == 401
    assert locked.get("/metrics").status == 401


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_each_key_opens(locked: Running, key: str) -> None:
    sent = key.encode().decode("latin-1")
    for name, value in (("Authorization", f"Bearer {sent}"), ("X-Api-Key", sent)):
        assert locked.get("/v1/models", **{name: value}).status == 200
    assert locked.get("/v1/models", Authorization=f"bearer   {sent} ").status == 200
    assert locked.get("/metrics", Authorization=f"Bearer {sent}").status == 200


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer sk-firs", "Bearer sk-first2", "Basic sk-first", "sk-first",
     "Bearer sk-first, sk-first", "Bearer SK-FIRST", "Bearer \x80\xff", "Bearer sk-first\xa0"],
)  # fmt: skip
def test_other_keys_do_not(locked: Running, given: str) -> None:
    assert locked.get("/v1/models", Authorization=given).status == 401


@pytest.mark.parametrize(
    "target",
    ["//v1/models", "/v1/../health", "/health/../v1/models", "/health/%2e%2e/v1/models",
     "/health%2f..%2fv1/models", "/health/", "/health;/v1/models", "/v1/models?/health",
     "/%76%31/models", "http://localhost/v1/models", "http://x/health/../v1/models",
     "/./v1/models", "/V1/models", "/health%00", "/health%0d%0a/v1/models", "/debug/steps#/health",
     "/v1/models/health", "*"],
)  # fmt: skip
def test_no_path_gets_around_the_key(locked: Running, target: str) -> None:
    assert requested(locked, target) in (400, 401)
    assert requested(locked, target, f"Authorization: Bearer {KEY}") != 401


def test_open_paths_stay_open_however_they_are_written(locked: Running) -> None:
    for target in ("/health", "/health?x=/v1/models", "/%68ealth", "http://elsewhere/health"):
        assert requested(locked, target) == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 401), ("127.0.0.1", 401), ("[::1]:80", 401), ("models.example", 401),
        ("x/?", 400), ("localhost/health?", 400), ("localhost#", 400), ("user@localhost", 400),
        ("", 400), ("a b", 400), ("localhost:x", 400), ("[::1", 400), ("localhost:80:80", 400),
        ("evil.example", 403), ("localhost.evil.example", 403), ("127.0.0.1.nip.example", 403),
        ("0.0.0.0", 403), ("localhost.", 403),
    ],
)  # fmt: skip
def test_hosts(locked: Running, host: str, status: int) -> None:
    assert requested(locked, "/v1/models", host=host) == status
    if status != 401:
        assert requested(locked, "/health", host=host) == status


def test_two_hosts_or_none_are_refused(locked: Running) -> None:
    assert requested(locked, "/health", "Host: localhost") == 400
    assert locked.raw(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n").split()[1] == b"400"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://page.example", 200), ("http://localhost", 200), ("HTTP://LOCALHOST", 200),
        ("https://evil.example", 403), ("null", 403), ("http://localhost.evil.example", 403),
        ("https://page.example.evil", 403), ("http://localhost:9", 403), ("file://", 403),
    ],
)  # fmt: skip
def test_origins(locked: Running, origin: str, status: int) -> None:
    assert requested(locked, "/health", f"Origin: {origin}") == status


@pytest.mark.parametrize("given", ["abc-1.2:3_4", "a" * 64])
def test_a_plain_request_id_comes_back(locked: Running, given: str) -> None:
    assert locked.get("/health", **{"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "a" * 65, "<script>", "é", "x;y", "../../etc"])
def test_any_other_is_replaced(locked: Running, given: str) -> None:
    made = locked.get("/health", **{"X-Request-Id": given}).headers["x-request-id"]
    assert made != given and len(made) == 32


def test_one_id_for_two_requests_mixes_nothing(server: Running) -> None:
    """It is shown, and used for nothing."""
    body = {"max_tokens": 12, "temperature": 0}
    prompts = ["One day a cat", "The sun was"]
    alone = [server.post("/v1/completions", {**body, "prompt": p}).json for p in prompts]
    from concurrent.futures import ThreadPoolExecutor

    def ask(prompt: str) -> object:
        given = {"X-Request-Id": "request-0"}
        return server.post("/v1/completions", {**body, "prompt": prompt}, **given).json["choices"]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, prompts)) == [one["choices"] for one in alone]


def test_a_public_address_needs_a_key() -> None:
    from flyweight.errors import ConfigError
    from flyweight.server.settings import ServerSettings

    for host in ("127.0.0.2", "127.255.0.1", "::1", "localhost"):
        assert ServerSettings(host=host).local  # none but this machine reaches them
    for host in ("0.0.0.0", "::", "192.168.0.1", "models.example", "128.0.0.1"):
        with pytest.raises(ConfigError, match="api-key"):
            ServerSettings(host=host)
        ServerSettings(host=host, keys=("x",))
        ServerSettings(host=host, insecure=True)
