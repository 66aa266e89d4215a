"""A prefill server, a decode server, and the example proxy in front of them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from peer_servers import find_address, serving

from http_server import Running, started

PROXY = Path(__file__).parents[2] / "examples" / "prefill_decode_proxy.py"
SECRET = b"s" * 32
GIVEN_UP = "the prefill server was given up"


@contextmanager
def splitting(folder: Path) -> Iterator[tuple[Running, Running, Running]]:
    """The servers for prefill and decode, and the proxy, whose first limit is generous."""
    listen = ("--prefix-cache-listen", "127.0.0.1:0")
    with serving(folder, "prefill", SECRET, *listen) as prefill:
        peers = ("--prefix-cache-peers", find_address(prefill))
        with serving(folder, "decode", SECRET, *peers) as decode:
            where = (
                "--prefill",
                f"127.0.0.1:{prefill.port}",
                "--decode",
                f"127.0.0.1:{decode.port}",
            )
            words = (*where, "--port", "0", "--threshold", "100", "--rate", "1")
            with started(command=(str(PROXY), *words)) as proxy:
                yield prefill, decode, proxy


def make_body(text: str, **rest: Any) -> dict[str, Any]:
    return {"prompt": text, "max_tokens": 12, "temperature": 0, **rest}


def read_text(running: Running, body: dict[str, Any]) -> str:
    reply = running.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    if not body.get("stream"):
        return str(reply.json["choices"][0]["text"])
    return "".join(event["choices"][0]["text"] for event in reply.events)


@pytest.mark.long
def test_long_prompts_go_through_the_prefill_server(tmp_path: Path) -> None:
    with splitting(tmp_path) as (prefill, decode, proxy):
        first = make_body("One day, " * 60)
        tokens = prefill.post("/tokenize", {"prompt": first["prompt"]}).json["count"]
        reply = proxy.post("/v1/completions", first).json
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (tokens - 1) // 32 * 32, "all whole blocks, although nothing waited"
        assert reply["choices"][0]["text"] == read_text(prefill, first)
        streamed = make_body("The cat sat. " * 30, stream=True)
        assert read_text(proxy, streamed) == read_text(prefill, {**streamed, "stream": False})
        chat = {"messages": [{"role": "user", "content": "A ball! " * 50}], "max_tokens": 3}
        assert proxy.post("/v1/chat/completions", chat).status == 200
        assert proxy.post("/v1/completions", b"{" + b" " * 200).status == 400
        assert proxy.get("/v1/models").json["data"]
        assert GIVEN_UP not in "".join(proxy.said)
        hung = make_body("Two birds flew. " * 30)
        os.kill(prefill.process.pid, signal.SIGSTOP)
        try:
            found = read_text(proxy, hung)
            assert "".join(proxy.said).count(f"{GIVEN_UP}: no answer in") == 1
        finally:
            os.kill(prefill.process.pid, signal.SIGCONT)
        assert found == read_text(prefill, hung)
        prefill.stop(signal.SIGKILL)
        assert read_text(proxy, make_body("A red ball fell. " * 30))
        decode.stop(signal.SIGKILL)
        assert proxy.post("/v1/completions", first).status == 502
