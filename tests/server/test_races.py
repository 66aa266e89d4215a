"""What changes for all while some are answered: caches emptied, adapters, schemas, leavers."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from http_server import Running, started
from tiny_model import tiny_adapter, tiny_folder

PROMPTS = [f"hello there the cat {'sat on the mat ' * (8 + i)}" for i in range(4)]
ROUNDS = 6


def bodies(model: str) -> list[dict[str, Any]]:
    """Of one prefix, for the model and its adapters in turn."""
    wanted = {"max_tokens": 24, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    models = (model, "poet", "bard")
    return [{"model": name, "prompt": prompt, **wanted} for prompt in PROMPTS for name in models]


def meddlers(server: Running, model: str) -> list[Callable[[int], None]]:
    """What is done over and over meanwhile; each is given a number of its own."""

    def reset(_: int) -> None:
        assert server.post("/reset_prefix_cache", {}).status == 200

    def look(_: int) -> None:
        for path in ("/v1/models", "/metrics", "/debug/kv", "/debug/steps", "/v1/engine/effective"):
            assert server.get(path).status == 200

    def constrain(number: int) -> None:
        """With a new schema."""
        schema = {"type": "object", "properties": {f"p{number}": {"const": number}},
                  "required": [f"p{number}"], "additionalProperties": False}  # fmt: skip
        body = {"model": model, "prompt": "hello", "max_tokens": 8,
                "structured_outputs": {"json": schema}}  # fmt: skip
        assert server.post("/v1/completions", body).status == 200

    def leave(number: int) -> None:
        line = server.connection()
        line.connect()
        body = b'{"model": "poet", "prompt": "hello", "max_tokens": 90, "stream": true}'
        line.request("POST", "/v1/completions", body)
        if number % 2:
            line.sock.recv(1)
        line.close()

    return [reset, look, constrain, leave]


def test_answers_stay_what_they_are_whatever_is_done_meanwhile(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    made = [f"{name}={tiny_adapter(tmp_path / name, i)}" for i, name in enumerate(("poet", "bard"))]
    words = str(folder), "--enable-lora", "--lora-modules", *made, "--served-model-name", "tiny"
    with started(*words) as server, ThreadPoolExecutor(8) as pool:
        requested = bodies("tiny")
        alone = [server.post("/v1/completions", body).json["choices"] for body in requested]
        texts = [choices[0]["text"] for choices in alone]
        assert len(set(texts[:3])) == 3, "the adapters change nothing"
        worker, over = server.worker, threading.Event()
        wrong: list[Exception] = []

        def meddle(work: Callable[[int], None]) -> None:
            for number in count():
                if over.is_set() or wrong:
                    return
                try:
                    work(number)
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=meddle, args=(w,)) for w in meddlers(server, "tiny")]
        for thread in threads:
            thread.start()
        try:
            for _ in range(ROUNDS):
                got = pool.map(lambda body: server.post("/v1/completions", body), requested)
                assert [reply.json["choices"] for reply in got] == alone
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert wrong == []
        server.until(server.empty)
        assert server.worker == worker and server.get("/health").status == 200
