"""A server with replicas on Ray: the answers of one process, and no request lost in silence."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra [distributed] is not installed")

from flyweight.describe import ASSETS
from http_server import Running, started
from tiny_model import tiny_adapter, tiny_folder

pytestmark = pytest.mark.long

BODY = {"model": "stories", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
LONG = {**BODY, "max_tokens": 300, "ignore_eos": True}
LIMITS = ("--memory-limit", "2GiB", "--max-model-len", "512", "--no-coalesce-requests")


def list_processes(word: bytes) -> list[int]:
    """Processes of this machine with a word in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if word in (folder / "cmdline").read_bytes().replace(b"\0", b" "):
                    found.append(int(folder.name))
            except OSError:  # it has ended
                pass
    return found


def list_engines(server: Running) -> list[int]:
    """The engine processes of a server's replicas."""
    return [pid for pid in list_processes(b"flyweight.server.worker") if descends(pid, server)]


def descends(pid: int, server: Running) -> bool:
    """Whether a process was started by a server, or by what that has started."""
    while pid > 1:
        if pid == server.process.pid:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


def read_metric(server: Running, name: str) -> float:
    lines = server.get("/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that a test may replace, under the name of the model inside."""
    return Path(shutil.copy(ASSETS / "stories.gguf", tmp_path_factory.mktemp("model") / "stories"))


@pytest.fixture(scope="module")
def pair(model: Path) -> Iterator[Running]:
    with started(str(model), "--replicas", "2", *LIMITS) as server:
        yield server


def ask(server: Running, body: dict[str, Any] = BODY) -> str:
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    return str(reply.json["choices"][0]["text"])


def test_answers_are_those_of_one_process(pair: Running) -> None:
    with started("stories", *LIMITS) as alone:
        assert ask(pair) == ask(alone)
        streamed = pair.post("/v1/completions", {**BODY, "stream": True}).events
        assert "".join(one["choices"][0]["text"] for one in streamed) == ask(alone)
    assert read_metric(pair, "flyweight:replica_up") == 2
    said = [line for line in pair.said if not line.startswith("--replicas")]  # a setting's words
    assert not [line for line in said if "ray" in line.lower()], "Ray's log is its own"


def test_a_conversation_stays_where_its_cache_is(pair: Running) -> None:
    before = read_metric(pair, "flyweight:replica_expected_cached_tokens_total")
    text = "The cat sat on the mat and looked at the moon. " * 8
    for more in ("", "Then it slept. ", "Then it woke. "):
        text += more
        ask(pair, {**BODY, "prompt": text, "max_tokens": 1})
    assert read_metric(pair, "flyweight:replica_expected_cached_tokens_total") > before


def test_a_killed_engine_loses_nothing_that_is_not_reported(pair: Running) -> None:
    """Every request under way is answered in full, or ends with an error that says why."""
    expected = ask(pair, LONG)
    replies: list[bytes] = []

    def stream() -> None:
        line = pair.connection()
        line.request("POST", "/v1/completions", json.dumps({**LONG, "stream": True}))
        replies.append(line.getresponse().read())
        line.close()

    threads = [threading.Thread(target=stream) for _ in range(12)]
    for one in threads:
        one.start()
    pair.until(lambda: read_metric(pair, "vllm:num_requests_running") > 2)
    os.kill(list_engines(pair)[0], signal.SIGKILL)
    for one in threads:
        one.join()
    ended = [reply for reply in replies if b"engine_down" in reply]
    texts = [
        "".join(
            json.loads(line[6:])["choices"][0]["text"]
            for line in reply.split(b"\n")
            if line.startswith(b"data: {")
        )
        for reply in replies
        if b"engine_down" not in reply
    ]
    assert len(replies) == 12 and all(text == expected for text in texts)
    assert read_metric(pair, "flyweight:replica_failed_requests_total") == len(ended)
    assert read_metric(pair, "flyweight:replica_lost_total") == 1
    pair.until(lambda: read_metric(pair, "flyweight:replica_up") == 2)
    assert ask(pair) == ask(pair)


def test_replicas_have_adapters(tmp_path: Path) -> None:
    model, adapter = tiny_folder(tmp_path / "tiny"), tiny_adapter(tmp_path / "lora")
    words = (str(model), *LIMITS, "--enable-lora", "--lora-modules", f"other={adapter}")
    body = {**BODY, "prompt": [5, 6, 7]}
    with started(*words, "--replicas", "2") as pair, started(*words) as alone:
        found = [
            ask(one, {**body, "model": name}) for one in (pair, alone) for name in ("tiny", "other")
        ]
    assert found[:2] == found[2:] and found[0] != found[1]


def test_a_reload_replaces_replicas_and_loses_no_request(pair: Running, model: Path) -> None:
    """Once the file is another one; a signal for the keys alone replaces nothing."""
    expected, before = ask(pair), set(list_engines(pair))
    assert pair.post("/v1/models/reload", {}).json["changed"] == []
    assert set(list_engines(pair)) == before
    shutil.copy(model, model.with_suffix(".new")).replace(model)
    pair.process.send_signal(signal.SIGHUP)
    seen: list[str] = []

    def is_replaced() -> bool:
        seen.append(ask(pair))
        return len(list_engines(pair)) == 2 and not before & set(list_engines(pair))

    pair.until(is_replaced)
    assert set(seen) == {expected}


def test_no_process_outlives_the_server(pair: Running) -> None:
    engines = list_engines(pair)
    assert pair.stop() == 0
    pair.left = True
    for pid in engines:
        pair.until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
