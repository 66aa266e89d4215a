"""Clients that are slow, too many, too large or not HTTP: refused, while others are answered."""

import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest

from http_server import Running, served

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
TOKENIZE = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
GOOD = json.dumps({"prompt": "Once", "max_tokens": 2}).encode()
SHORT = {"header_timeout": 1.0, "body_timeout": 1.0, "send_timeout": 1.0, "max_connections": 64}
QUICK = 0.1  # seconds in which health is answered at once
ASKED = 9  # times, at least


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """A server of little patience, for small bodies."""
    with served(server={**SHORT, "max_body_bytes": 10_000}) as running:
        yield running


def status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert found, answer[:100]
    return int(found[1])


def healthy(server: Running, calm: Running, busy: Callable[[], bool] | None = None) -> None:
    """Health is always answered, and in the median within eight times what it takes a server in
    turn that nobody attacks; below a tenth of a second it is quick anyway.  Asks while it is
    `busy`, which is long enough for the median to mean something, or a few times.
    """
    took: list[float] = []
    quiet: list[float] = []
    while len(took) < ASKED or (busy is not None and busy()):
        for one, found in ((server, took), (calm, quiet)):
            start = time.monotonic()
            assert one.get("/health").status == 200
            found.append(time.monotonic() - start)
    assert median(took) <= max(QUICK, 8 * median(quiet)), (median(took), median(quiet), took)


def line(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 60)


def closed(one: socket.socket) -> bool:
    """Reads until the server closes."""
    try:
        while one.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "begun", [b"", b"GET /hea", HEAD, HEAD + b"X: ", POST + b"Content-Length: 9\r\n\r\n{"]
)
def test_a_client_that_does_not_finish_is_disconnected(
    hasty: Running, server: Running, begun: bytes
) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(line(hasty)) for _ in range(40)]
        for one in slow:
            one.sendall(begun)
        healthy(hasty, server)
        assert all(closed(one) for one in slow)


def test_dripping_does_not_help(hasty: Running) -> None:
    """A byte now and then buys no time, neither in the head nor after an answer."""
    with line(hasty) as one:
        one.sendall(HEAD + b"\r\n")
        assert one.recv(1 << 16)
        with pytest.raises(ConnectionError):
            while True:
                one.sendall(b"\r\n")
                time.sleep(0.05)


def test_too_many_connections_let_new_ones_in(hasty: Running, server: Running) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(line(hasty)) for _ in range(SHORT["max_connections"] + 40)]
        healthy(hasty, server)
        assert all(closed(one) for one in crowd)


def test_a_client_that_reads_nothing_is_disconnected(hasty: Running, server: Running) -> None:
    """More than the system's buffers hold, to somebody who never reads."""
    body = {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "logprobs": 20, "n": 8}
    raw = json.dumps({**body, "stream": True}).encode()
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with one:
        one.connect(("127.0.0.1", hasty.port))
        one.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        hasty.until(lambda: not hasty.empty())
        healthy(hasty, server)
        hasty.until(hasty.empty)
        hasty.until(lambda: connections(hasty) <= 1)


LARGE = json.dumps({"content": "a" * (256 << 10), "with_pieces": True}).encode()


def asks_for_much(server: Running) -> socket.socket:
    """Somebody who is answered with more than he can be sent before he reads."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", server.port))
    one.sendall(TOKENIZE + b"Content-Length: %d\r\n\r\n" % len(LARGE) + LARGE)
    return one


def test_unread_answers_are_bounded_together() -> None:
    """Who has read nothing for longest gives way; one alone may hold any size."""
    limits = {"max_send_buffer_bytes": 1 << 20, "send_timeout": 1e6}
    with served(server=limits) as own, ExitStack() as held:
        for _ in range(6):
            held.enter_context(asks_for_much(own))
        start = time.monotonic()
        own.until(lambda: connections(own) <= 3)  # of these six
        took = time.monotonic() - start
        assert own.ask("POST", "/tokenize", LARGE).json["count"] > 1000
        (alone,) = [held.enter_context(asks_for_much(own))]
        time.sleep(2 * took + 0.5)
        alone.settimeout(60)
        assert len(whole(alone)) > 500_000


def whole(one: socket.socket, rest: float = 0.0) -> bytes:
    """A reply, read with pauses."""
    found = one.recv(16 << 10)
    size = int(re.search(rb"content-length: (\d+)", found)[1])  # type: ignore[index]
    while len(found.partition(b"\r\n\r\n")[2]) < size and (more := one.recv(16 << 10)):
        found += more
        time.sleep(rest)
    return found.partition(b"\r\n\r\n")[2]


def test_a_slow_client_gets_the_whole_answer() -> None:
    """However long that takes, as long as he reads."""
    with served(server={"send_timeout": 1.5}) as own, asks_for_much(own) as one:
        start = time.monotonic()
        found = whole(one, rest=0.005)
        assert time.monotonic() - start > 4, "he was not slow"
        assert json.loads(found)["count"] > 1000


def connections(server: Running) -> int:
    """Established ones of the server, from the system's table."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(1 for row in rows if row[1].endswith(f":{server.port:04X}") and row[3] == "01")


@pytest.mark.parametrize(
    "head",
    [
        b"X: " + b"a" * (1 << 17),
        b"".join(b"X%d: %s\r\n" % (i, b"a" * 1000) for i in range(100)),
        b"".join(b"X: a\r\n" for _ in range(30_000)),
    ],
    ids=["one", "hundred", "thirty thousand"],
)
@pytest.mark.parametrize("whole", [True, False])
def test_a_large_head_is_refused(server: Running, head: bytes, whole: bool) -> None:
    raw = HEAD + head + (b"\r\n\r\n" if whole else b"")
    got = server.raw(raw)
    assert got == b"" or status(got) == 431  # a sender may lose what it is reported
    got = server.raw(b"GET /" + b"a" * (1 << 17) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert got == b"" or status(got) == 431


def test_trailers_are_bounded(server: Running) -> None:
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    with line(server) as one, pytest.raises(ConnectionError):
        one.sendall(chunked)
        for _ in range(10_000):
            one.sendall(b"X: " + b"a" * 10_000 + b"\r\n")


def test_a_large_body_is_refused_with_the_reason(hasty: Running) -> None:
    for size in (10_001, 3_000_000):
        got = hasty.post("/v1/completions", {"prompt": "a" * size})
        assert got.status == 413 and got.json["error"]["message"]
    length = b"Content-Length: 99999999999999999999\r\n\r\n"
    assert status(hasty.raw(POST + length)) in (400, 413)
    chunk = b"%x\r\n%s\r\n" % (5000, b" " * 5000)
    got = hasty.raw(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 4)
    assert status(got) == 413


def test_a_chunked_body_is_read(server: Running) -> None:
    parts = b"".join(b"1\r\n%c\r\n" % byte for byte in GOOD) + b"0\r\n\r\n"
    got = server.raw(POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + parts)
    assert status(got) == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS says hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: x\r\n\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        POST + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Bad Header: x\r\n\r\n",
        HEAD + b" folded: x\r\n\r\n",
        b"CONNECT example.com:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[::bad HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_400(server: Running, hasty: Running, raw: bytes) -> None:
    with line(server) as one:
        one.settimeout(60)
        one.sendall(raw)
        one.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while part := one.recv(1 << 16):
                found += part
        except ConnectionError:
            pass
    assert found == b"" or status(found) in (400, 404, 405)
    healthy(server, hasty)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD", "BREW"])
def test_other_methods_are_refused(server: Running, method: str) -> None:
    raw = f"{method} /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert status(server.raw(raw.encode())) in (400, 405)


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
def test_upgrades_are_not_made(server: Running, hasty: Running, upgrade: bytes) -> None:
    requested = (
        HEAD + b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n" + b"\x81\x05hello"
    )
    assert status(server.raw(requested)) == 200
    healthy(server, hasty)


def test_old_http_is_answered(server: Running) -> None:
    assert status(server.raw(b"GET /health HTTP/1.0\r\n\r\n")) == 200
    raw = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD
    assert status(server.raw(raw)) == 200


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    version = b"GET /version HTTP/1.1\r\nHost: localhost\r\n"
    got = server.raw(HEAD + b"\r\n" + version + b"\r\n" + HEAD + b"Connection: close\r\n\r\n")
    assert [b'"status"' in part for part in got.split(b"HTTP/1.1 200 OK")[1:]] == [
        True,
        False,
        True,
    ]


def test_a_flood_of_pipelined_requests_ends(server: Running) -> None:
    raw = json.dumps({"prompt": "Once", "max_tokens": 200, "ignore_eos": True}).encode()
    one = POST + b"Content-Length: %d\r\n\r\n" % len(raw) + raw
    server.raw(one + (HEAD + b"\r\n") * 1000)
    server.until(server.empty)


def test_a_pipelining_client_that_leaves_frees_its_blocks(server: Running) -> None:
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
    raw = json.dumps(body).encode()
    with line(server) as one:
        one.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(raw) + raw + HEAD + b"\r\n")
        server.until(lambda: not server.empty())
    server.until(server.empty)
    steps = server.get("/debug/steps").json["steps"]
    assert steps[-1]["chunks"]


def test_continue_is_sent_only_to_allowed_clients(server: Running) -> None:
    expect = b"Expect: 100-continue\r\nConnection: close\r\n"
    good = POST + b"Content-Length: %d\r\n" % len(GOOD) + expect + b"\r\n"
    assert server.raw(good + GOOD).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")
    large = POST + b"Content-Length: 999999999\r\n" + expect + b"\r\n"
    assert status(server.raw(large)) == 413


def test_health_is_quick_while_prompts_are_read_and_computed(
    server: Running, hasty: Running
) -> None:
    words = "The cat sat on the mat. " * 40_000  # far too long: refused, but not at once
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}

    def long() -> int:
        return server.post("/v1/completions", {"prompt": words}).status

    with ThreadPoolExecutor(6) as pool:
        refused = [pool.submit(long) for _ in range(3)]
        served_ = [pool.submit(server.post, "/v1/completions", body) for _ in range(3)]
        healthy(server, hasty, lambda: not all(job.done() for job in served_))
        assert [job.result() for job in refused] == [400] * 3
        assert [job.result().status for job in served_] == [200] * 3


def test_a_connection_serves_request_after_request(hasty: Running) -> None:
    """Limits of one request are not those of the next."""
    kept = http.client.HTTPConnection("127.0.0.1", hasty.port, timeout=60)
    for _ in range(40):
        kept.request("POST", "/v1/completions", GOOD, {"X-Filler": "a" * 8000})
        got = kept.getresponse()
        assert got.status == 200 and got.read()
    kept.close()
