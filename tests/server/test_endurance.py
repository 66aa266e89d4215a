"""What is left behind: memory, files, threads, processes, work while nothing is to be done, and
words in the log.
"""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from json import dumps
from pathlib import Path
from random import Random

import pytest

import chat_model
from flyweight.server.apis.routes import ROUTES
from flyweight.server.lifecycle.running import list_family
from http_server import Running, served

SOAK = float(os.environ.get("FLYWEIGHT_SOAK_SECONDS", "0"))
FEW, LONG = 60, 240.0  # requests of a client, and with --long seconds of soaking
IDLE = 2.0
CANARY, KEY = "xyzzyplugh", "sk-quuxfrobnicate"
FOLDER = "frobozzmagic"  # where the model lies
PIPES = 3  # files for a process that tries schemas: its two pipes, and one to learn of its end


def processes(server: Running) -> list[int]:
    return [server.process.pid, server.worker]


def others(server: Running) -> list[int]:
    """Processes that try schemas."""
    own = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(pid) for pid in own.split() if int(pid) != server.worker]


def awake(pid: int) -> tuple[int, int]:
    """How often the threads of a process have waited for something, and nanoseconds they ran."""
    waits = ran = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        rows = (task / "status").read_text().splitlines()
        waits += sum(int(row.split()[1]) for row in rows if row.startswith("voluntary"))
        ran += int((task / "schedstat").read_text().split()[0])
    return waits, ran


def resident(pid: int) -> int:
    """KiB."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    (row,) = [row for row in rows if row.startswith("VmRSS")]
    return int(row.split()[1])


def held(pid: int) -> tuple[int, int]:
    """Open files and threads."""
    root = Path(f"/proc/{pid}")
    return len(list((root / "fd").iterdir())), len(list((root / "task").iterdir()))


def test_nothing_to_do_costs_nothing(server: Running) -> None:
    server.post("/v1/completions", {"prompt": "Once", "max_tokens": 4})
    server.until(server.empty)
    found: list[list[tuple[int, int]]] = []
    for _ in range(10):  # what is done after a first request comes to its end
        before = [awake(pid) for pid in processes(server)]
        time.sleep(IDLE)
        found.append([awake(pid) for pid in processes(server)])
        if found[-1] == before and found[-2:-1] == [before]:
            return  # twice: nobody woke up, be it for a moment
    raise AssertionError(f"waits and nanoseconds of both, every {IDLE} s: {found}")


def fresh(draw: Random) -> dict[str, object]:
    """A new schema: its name and values are in no cache."""
    name, values = f"p{draw.getrandbits(64)}", [str(draw.getrandbits(64)) for _ in range(3)]
    one: dict[str, object] = {"enum": values} if draw.random() < 0.5 else {"type": "integer"}
    return {"type": "object", "properties": {name: one}, "required": [name]}


def everything(server: Running, draw: Random) -> None:
    """One request of a mixed load: good, bad, streamed, left, some with a schema of its own."""
    words = draw.choices(["cat", "dog", "sun", "big", "house"], k=draw.randint(1, 80))
    body = {
        "prompt": " ".join(words),
        "max_tokens": draw.randint(1, 40), "n": draw.choice([1, 1, 2]), "logprobs": 2,
        "stream": draw.random() < 0.5, "cache_salt": str(draw.random()),
    }  # fmt: skip
    kind = draw.random()
    if kind < 0.2:
        body["temperature"] = -1
    elif kind < 0.4:
        body["structured_outputs"] = {"json": fresh(draw)}
    if kind > 0.8:
        line = server.connection()
        line.request("POST", "/v1/completions", dumps({**body, "max_tokens": 300}))
        time.sleep(draw.random() / 50)
        line.close()
        return
    assert server.post("/v1/completions", body).status == (400 if kind < 0.2 else 200)


def fill(server: Running, draw: Random, schemas: int) -> None:
    """More schemas than there are verdicts kept, which is 64 for each process that gives them."""
    for _ in range(schemas):
        body = {"prompt": "Once", "max_tokens": 1, "structured_outputs": {"json": fresh(draw)}}
        assert server.post("/v1/completions", body).status == 200


def soak(server: Running, seconds: float, seed: int) -> float:
    """The seconds in which 99 of 100 requests were through; a few requests where none are given."""
    end = time.monotonic() + seconds

    def client(number: int) -> list[float]:
        draw = Random(seed + number)
        took: list[float] = []
        while time.monotonic() < end if seconds else len(took) < FEW:
            start = time.monotonic()
            everything(server, draw)
            took.append(time.monotonic() - start)
        return took

    with ThreadPoolExecutor(6) as pool:
        took = sorted(one for some in pool.map(client, range(6)) for one in some)
    server.until(server.empty)
    return took[len(took) * 99 // 100]


def test_a_soak_leaves_nothing_behind(at_length: bool) -> None:
    """FLYWEIGHT_SOAK_SECONDS=3600 soaks for two hours, of which the second is measured."""
    seconds = SOAK or (LONG if at_length else 0.0)
    good = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "logprobs": 3}
    with served({"blocks": 128}) as server:  # few: memory of blocks is the system's until used
        expected = server.post("/v1/completions", good).json["choices"]
        fill(
            server, Random(3), 300 if at_length else 150
        )  # until every cache is as full as it gets
        first = soak(server, seconds, 1)
        memory = [resident(pid) for pid in processes(server)]
        # A second process starts when a schema is slow, and one that takes too long is ended.
        server.until(lambda: others(server) != [])
        trying = max(map(resident, others(server)))
        files, before = [held(pid) for pid in processes(server)], len(others(server))
        last = soak(server, seconds, 2)
        assert last < 1.1 * first or not SOAK, "answers got slower"
        grown = [resident(p) - old for p, old in zip(processes(server), memory, strict=True)]
        allowed = max(4 << 10, 5 * 1024 * seconds / 3600)
        assert max(grown) < allowed, f"KiB: {grown}"
        server.until(lambda: others(server) != [])
        assert len(others(server)) <= 2, "for quick and for slow schemas"
        more = max(map(resident, others(server))) - trying
        assert more < allowed, f"KiB of one that tries schemas: {more}"

        def count_allowed() -> list[tuple[int, int]]:
            """A second process that tries schemas has pipes, which the server holds too."""
            (most, threads), engine = files
            return [(most + PIPES * max(0, len(others(server)) - before), threads), engine]

        server.until(lambda: [held(pid) for pid in processes(server)] <= count_allowed())
        assert server.post("/v1/completions", good).json["choices"] == expected


def unasked_port() -> int:
    """A free one that the system gives to nobody who asks for any, such as another test."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in range(first - 1 - os.getpid() % 2000, 1024, -1):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


@pytest.mark.parametrize("count", [2])
def test_a_storm_of_restarts_leaves_nothing(at_length: bool, count: int) -> None:
    """On one port, ended in every way there is."""
    port = unasked_port()
    for i in range(10 * count if at_length else count):
        with served(server={"port": port}) as server:
            members = list_family(server.process.pid)
            assert len(members) == 2
            assert server.get("/health").status == 200
            if i % 2:
                server.stop()
            else:
                server.process.kill()
                server.process.wait()
        server.until(lambda members=members: not any(one.alive for one in members))


def test_log_and_answers_hold_no_prompt_and_no_path(
    tmp_path: Path,
) -> None:
    """Not even where a step fails."""
    (tmp_path / FOLDER).mkdir()
    model = str(chat_model.write(tmp_path / FOLDER / "talker.gguf"))
    fault = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "raise:step=2,request=0"}
    with served({"model": model}, {"keys": [KEY]}, **fault) as server:
        known = {"Authorization": f"Bearer {KEY}"}
        bodies: list[dict[str, object]] = [
            {"prompt": CANARY, "max_tokens": 9, "ignore_eos": True},
            {"prompt": CANARY, "max_tokens": 9, "ignore_eos": True, "stream": True},
            {"prompt": [CANARY], "max_tokens": "x", "user": CANARY},
            {"prompt": CANARY * 2000},
        ]
        for body in bodies:
            got = server.post(f"/v1/completions?q={CANARY}", body, **known)
            assert (CANARY in got.body.decode()) <= (got.status == 200), got.body
            assert FOLDER not in got.body.decode()
        for entry in ROUTES:
            if entry.method == "GET" and "{" not in entry.path:
                assert FOLDER.encode() not in server.get(entry.path, **known).body, entry.path
        for model_requested in ("talker", "other"):
            got = server.post("/v1/completions", {"model": model_requested, "prompt": "x"}, **known)
            assert got.status == 404 and "served: talker.gguf" in got.json["error"]["message"]
        for path in ("/v1/models/x", "/api/show", "/api/chat", "/v1/messages"):
            got = server.ask("GET" if "models" in path else "POST", path, {"model": "x"}, known)
            assert got.status >= 400 and FOLDER not in got.body.decode()
        own = {"prompt": "One", "max_tokens": 1}
        assert server.post("/v1/completions", own, **known).json["model"] == "talker.gguf"
        assert server.post("/v1/completions", {**own, "model": model}, **known).status == 200
        card = server.get(f"/v1/models/{model}", **known).json
        assert card["id"] == card["root"] == "talker.gguf"
        server.post("/v1/completions", bodies[0], Authorization=f"Bearer {CANARY}")
        server.get("/v1/models", **{"X-Request-Id": CANARY + " x", **known})
        server.raw(f"{CANARY} nonsense\r\n\r\n".encode())
        server.get("/health", Host=CANARY, **known)
        server.stop()
        said = "".join(server.said)
        assert CANARY not in said and KEY not in said
        lines = [text for text in server.said if f"path=/v1/models/{tmp_path}" not in text]
        assert FOLDER not in "".join(lines)
        assert "StepFault" in said, "nothing failed"


def anonymous(server: Running) -> int:
    """Bytes of memory that the server's processes share with no file."""
    members = [server.process.pid, *(one.pid for one in list_family(server.process.pid))]
    status = [Path(f"/proc/{pid}/status").read_text() for pid in set(members)]
    return sum(1024 * int(text.split("RssAnon:")[1].split()[0]) for text in status)


def test_all_processes_stay_within_the_memory_plan(at_length: bool) -> None:
    requests = 20_000 if at_length else 300

    def client(number: int) -> None:
        draw = Random(number)
        for _ in range(requests // 6):
            everything(server, draw)

    with served({"max_num_seqs": 16}) as server:
        facts = {one["feature"]: one for one in server.get("/v1/engine/effective").json["features"]}
        planned = float(facts["memory"]["effective"].split(" MiB")[0]) * (1 << 20)
        fill(server, Random(3), 150)
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(client, range(6)))
        assert anonymous(server) <= planned
