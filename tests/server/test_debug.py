"""/debug/steps and /debug/kv: what they say adds up."""

from http_server import Running, started


def test_steps_list_their_requests_and_times() -> None:
    with started("--disable-log-requests") as server:
        body = {"prompt": "Once upon a time there was a dog", "max_tokens": 6, "ignore_eos": True}
        used = server.post("/v1/completions", body).json["usage"]
        reported = server.get("/debug/steps").json
        assert reported["chunk"] == ["request", "choice", "start", "count"]
        steps = reported["steps"]
        assert [step["step"] for step in steps] == list(range(len(steps)))
        assert sum(step["prompt_tokens"] for step in steps) == used["prompt_tokens"]
        assert sum(step["decode_tokens"] for step in steps) == used["completion_tokens"] - 1
        for step in steps:
            computed = step["prompt_tokens"] + step["decode_tokens"]
            assert sum(count for *_, count in step["chunks"]) == computed <= step["budget"]
            assert step["running"] == 1 and step["waiting"] == 0
            assert step["seconds"] > 0 and step["at"] > 1e9
        assert len({id for step in steps for id, *_ in step["chunks"]}) == 1
        assert not any(" request method=" in line for line in server.said)


def test_kv_lists_the_blocks_of_each_request(server: Running) -> None:
    line = server.connection()
    raw = b'{"prompt": "One day", "n": 32, "max_tokens": 400, "ignore_eos": true, "stream": true}'
    line.request("POST", "/v1/completions", raw, {"content-type": "application/json"})
    line.getresponse().read(100)
    reported = server.get("/debug/kv").json
    line.close()
    assert 1 <= len(reported["sequences"]) <= 32
    held = set()
    for one in reported["sequences"]:
        assert one["computed"] <= one["tokens"]
        assert len(one["blocks"]) == -(-one["computed"] // reported["block_size"])
        assert one["state"] == ("running" if one["blocks"] else "waiting")
        held.update(one["blocks"])
    assert reported["held_blocks"] == len(held)
    assert 0 <= reported["unused_slots"] < reported["block_size"] * len(reported["sequences"])
    assert reported["free_blocks"] + len(held) == reported["blocks"] >= reported["cached_blocks"]
    cached = {first + i for first, count in reported["cached_runs"] for i in range(count)}
    assert len(cached) == reported["cached_blocks"] and not cached & held
