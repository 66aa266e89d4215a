"""Pages of other origins: which may send requests, and the headers of the replies."""

from collections.abc import Iterator

import pytest

from flyweight.cli.serve.choices import choose
from flyweight.cli.serve.words import read
from flyweight.errors import ConfigError
from flyweight.server.settings import ServerSettings
from http_server import Reply, Running, started

PAGE, OTHER = "https://page.example", "http://127.0.0.1:5173"
KEY = {"Authorization": "Bearer sk-first"}
WANTS = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type, X-Stainless-Lang",
}


@pytest.fixture(scope="module")
def named() -> Iterator[Running]:
    """A server for two pages, one given in vLLM's spelling."""
    origins = ("--allowed-origins", f'["{PAGE}/"]', OTHER)
    with started("--api-key", "sk-first", *origins) as running:
        yield running


def preflight(server: Running, path: str, **headers: str) -> Reply:
    return server.ask("OPTIONS", path, headers={**WANTS, **headers})


def cors(got: Reply) -> dict[str, str]:
    start = "access-control-"
    return {k.removeprefix(start): v for k, v in got.headers.items() if k.startswith(start)}


@pytest.mark.parametrize("origin", [PAGE, OTHER, PAGE.upper()])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/nowhere"])
def test_a_named_page_may_ask_before_it_has_a_key(named: Running, origin: str, path: str) -> None:
    got = preflight(named, path, Origin=origin)
    assert got.status == 204 and got.body == b""
    reported = cors(got)
    assert reported["allow-origin"] == origin and reported["allow-methods"] == "POST"
    allowed = {name.strip().lower() for name in reported["allow-headers"].split(",")}
    assert allowed == {"authorization", "content-type", "x-stainless-lang"}
    assert "allow-credentials" not in reported and "allow-private-network" not in reported
    assert got.headers["vary"] == "Origin"


def test_and_is_answered_with_one(named: Running) -> None:
    body = {"prompt": "Once", "max_tokens": 2}
    for more in ({}, {"stream": True}):
        got = named.post("/v1/completions", {**body, **more}, Origin=PAGE, **KEY)
        assert got.status == 200 and cors(got)["allow-origin"] == PAGE
        assert "Origin" in got.headers["vary"]
        assert "retry-after" in cors(got)["expose-headers"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/v1/models", {}, 401), ("/nothing", KEY, 404), ("/v1/completions", KEY, 400)],
)
def test_refusals_can_be_read_by_a_named_page(
    named: Running, path: str, headers: dict[str, str], status: int
) -> None:
    method, body = ("POST", b"{}") if status == 400 else ("GET", None)
    got = named.ask(method, path, body, {"Origin": PAGE, **headers})
    assert got.status == status and cors(got)["allow-origin"] == PAGE


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "https://page.example.evil.example", "http://page.example", "null",
     "https://page.example:8443", "https://xpage.example", "https://page.example@evil.example",
     "https://page.example/x", ""],
)  # fmt: skip
def test_other_pages_get_no_cors_headers(named: Running, origin: str) -> None:
    for got in (
        preflight(named, "/v1/chat/completions", Origin=origin),
        named.get("/v1/models", Origin=origin, **KEY),
    ):
        assert got.status == 403 and not cors(got)


def test_two_origins_are_none(named: Running) -> None:
    head = f"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: {PAGE}\r\nOrigin: {OTHER}\r\n"
    assert b" 400 " in named.raw(f"{head}Connection: close\r\n\r\n".encode()).splitlines()[0]


def test_caches_keep_answers_to_pages_apart(named: Running) -> None:
    got = named.get("/health")
    assert not cors(got) and got.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    ("method", "names", "status"),
    [("DELETE", "x", 403), ("post", "x", 403), ("GET", "a b", 400), ("GET", "x" * 101, 400),
     ("GET", ",".join(["x"] * 65), 400), ("GET", "", 204)],
)  # fmt: skip
def test_what_a_page_may_not_do(named: Running, method: str, names: str, status: int) -> None:
    got = preflight(
        named, "/v1/models", Origin=PAGE,
        **{"Access-Control-Request-Method": method, "Access-Control-Request-Headers": names},
    )  # fmt: skip
    assert got.status == status


def test_options_that_ask_nothing_need_a_key(named: Running) -> None:
    assert named.ask("OPTIONS", "/v1/models", headers={"Origin": PAGE}).status == 401
    assert named.ask("OPTIONS", "/v1/models", headers=WANTS).status == 401


def test_by_default_no_page_gets_cors_headers(server: Running) -> None:
    assert preflight(server, "/v1/models", Origin=PAGE).status == 403
    got = server.get("/v1/models")
    assert got.status == 200 and not cors(got) and "vary" not in got.headers
    own = f"http://127.0.0.1:{server.port}"
    assert server.get("/v1/models", Origin=own).status == 200
    assert preflight(server, "/v1/models", Origin=own).status == 405


def test_credentials_methods_and_headers_where_they_are_requested() -> None:
    words = f"--allowed-origins {PAGE} --allow-credentials --allowed-methods GET"
    with started(*words.split(), "--allowed-headers", '["Authorization"]') as requested:
        asks = {"Origin": PAGE, "Access-Control-Request-Private-Network": "true"}
        reads = {**asks, "Access-Control-Request-Method": "GET"}
        only = {"Access-Control-Request-Headers": "authorization"}
        reported = cors(preflight(requested, "/v1/models", **reads, **only))
        assert reported["allow-credentials"] == reported["allow-private-network"] == "true"
        assert preflight(requested, "/v1/models", **reads).status == 403
        assert preflight(requested, "/v1/models", **asks, **only).status == 403
        assert cors(requested.get("/v1/models", Origin=PAGE))["allow-credentials"] == "true"


def test_all_pages_where_a_key_is_needed() -> None:
    with started("--api-key", "sk-first", "--allowed-origins", "*") as every:
        for origin in (PAGE, "null"):
            got = every.get("/v1/models", Origin=origin, **KEY)
            assert got.status == 200 and cors(got)["allow-origin"] == "*"
            assert preflight(every, "/v1/models", Origin=origin).status == 204
        assert every.get("/v1/models", Origin=PAGE).status == 401


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("page.example", "nearest valid: https://page.example"),
        ("https://page.example/x?y", "nearest valid: https://page.example"),
        ("https://a,https://b", "is not valid"),
        ("* --allow-credentials --api-key k", "exclude each other"),
        ("*", "any web page in a local browser"),
    ],
)
def test_origins_that_are_none_are_refused(words: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose(read(["--allowed-origins", *words.split()]))
    assert says in str(refused.value) and "--allowed-origins" in str(refused.value)


@pytest.mark.parametrize("origin", ["http://localhost:5173", "HTTPS://desk.example", "tauri://a"])
def test_origins_have_any_letters(origin: str) -> None:
    """s and k are in no class of letters beyond ASCII, whatever these look like in small."""
    assert ServerSettings(allowed_origins=(origin,)).allowed_origins == (origin,)


def test_a_list_is_read_as_vllm_has_it() -> None:
    for words in (f'["{PAGE}", "{OTHER}"]',), (PAGE, OTHER):
        server = choose(read(["--allowed-origins", *words])).server
        assert server.allowed_origins == (PAGE, OTHER)
    assert ServerSettings(allowed_hosts=("[::1]",)).allowed_origins == ()
    assert choose(read(["--allowed-hosts", "[::1]"])).server.allowed_hosts == ("[::1]",)
