"""What clients ask of a model before they use it: /props, /tokenizer_info, /api/show, /api/ps."""

from datetime import datetime
from typing import Any

from http_server import Running


def test_props_are_those_of_completion(server: Running) -> None:
    """The defaults that editors read are the settings a bare /completion runs with."""
    reported = server.get("/props").json
    settings = reported["default_generation_settings"]
    ran = server.post("/completion", {"prompt": "a", "n_predict": 1}).json["generation_settings"]
    own = {"seed", "n_predict"}
    assert {k: v for k, v in settings["params"].items() if k not in own} == {
        k: v for k, v in ran.items() if k not in own
    }
    (card,) = server.get("/v1/models").json["data"]
    assert settings["n_ctx"] == card["max_model_len"]
    assert reported["total_slots"] == server.get("/server_info").json["engine"]["max_num_seqs"]
    assert reported["model_path"] == reported["model_alias"] == card["id"]
    assert reported["modalities"] == {"vision": False, "audio": False}
    assert reported["is_sleeping"] is False


def test_the_template_is_reported(talker: Running) -> None:
    template = talker.get("/props").json["chat_template"]
    assert "message" in template
    assert talker.get("/tokenizer_info").json["chat_template"] == template


def test_a_vocabulary_as_lm_eval_reads_it(server: Running) -> None:
    """Its tokens' texts are encoded to one id each, without BOS."""
    reported = server.get("/tokenizer_info").json
    for name in ("bos_token", "eos_token"):
        body = {"prompt": reported[name], "add_special_tokens": False}
        (token,) = server.post("/tokenize", body).json["tokens"]
        assert server.post("/detokenize", {"tokens": [token]}).json["prompt"] == reported[name]
    assert reported["vocab_size"] == server.get("/server_info").json["engine"]["vocab"]
    assert reported["pad_token"] is None and reported["model_max_length"] > 0


def test_what_ollamas_client_reads(server: Running) -> None:
    """Its types: dates, whole numbers, details of one shape, and keys by the architecture."""
    (running,) = server.get("/api/ps").json["models"]
    assert {"name", "model", "digest", "size", "size_vram", "context_length"} <= running.keys()
    datetime.fromisoformat(running["expires_at"].replace("Z", "+00:00"))
    shown = server.post("/api/show", {"model": running["model"]}).json
    datetime.fromisoformat(shown["modified_at"].replace("Z", "+00:00"))
    assert shown["details"] == running["details"]
    kinds: dict[str, Any] = {"format": str, "family": str, "families": list, "parent_model": str,
                             "parameter_size": str, "quantization_level": str}  # fmt: skip
    assert {name: type(value) for name, value in shown["details"].items()} == kinds
    info = shown["model_info"]
    architecture = info["general.architecture"]
    assert info[f"{architecture}.context_length"] == running["context_length"]
    width = len(server.post("/api/embed", {"model": running["model"], "input": "a"}).json[
        "embeddings"][0])  # fmt: skip
    assert info[f"{architecture}.embedding_length"] == width
    assert "completion" in shown["capabilities"]
