"""`flyweight bench serve` as it is typed, against a stand-in and against our own server."""

import json
from pathlib import Path
from typing import Any

import pytest
from sse_server import DONE, Fake, Step, page, serving, stream, text, words

from flyweight.cli.bench.loads import parse_ratios
from flyweight.cli.bench.refusals import OPTIONS, find_refusal
from flyweight.cli.main import find_command, main, normalize_words
from flyweight.errors import ConfigError
from http_server import started

SMALL = ("--num-prompts", "6", "--random-input-len", "12", "--random-output-len", "5")


def run(fake: Fake, *words: str) -> int:
    return main(["bench", "serve", "--base-url", fake.url, *SMALL, *words])


def labels(text: str) -> dict[str, str]:
    lines = [line.split(":", 1) for line in text.splitlines() if ":" in line]
    return {name.strip(): value.strip() for name, value in lines}


def test_a_load_is_shown_as_vllm_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as fake:
        assert run(fake, "--max-concurrency", "2", "--seed", "4", "--ignore-eos") == 0
    reported = capsys.readouterr()
    got = labels(reported.out)
    assert reported.out.startswith("============ Serving Benchmark Result ============\n")
    assert (got["Successful requests"], got["Failed requests"]) == ("6", "0")
    assert (got["Total input tokens"], got["Total generated tokens"]) == ("72", "30")
    assert got["Maximum request concurrency"] == "2" and "Mean E2EL (ms)" not in got
    assert fake.most <= 2 and all(len(body["prompt"]) == 12 for body in fake.bodies)
    assert reported.err == "the vocabulary's size is not known; prompts are of ids below 1000\n"
    body = {k: v for k, v in fake.bodies[0].items() if k != "prompt"}
    assert body == {
        "model": "fake", "max_tokens": 5, "stream": True, "temperature": 0.0,
        "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip


def test_options_reach_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k1")
    with serving() as fake:
        code = run(
            fake, "--header", "X-A=1", "x-b=2=3", "--model", "m", "--top_p", "0.5", "--logprobs",
            "2", "--extra-body", '{"min_tokens": 1}', "--request-id-prefix", "mine-",
            "--lora-modules", "a", "b", "--lora-assignment", "round-robin", "--endpoint", "/other",
            "--num-warmups", "2", "--random-range-ratio", '{"input": 0.5}', "--max-concurrency=1",
        )  # fmt: skip
    posts = [(path, headers, body) for path, headers, body in fake.requested if body]
    assert code == 0 and len(posts) == 8 and {path for path, _, _ in posts} == {"/other"}
    headers = posts[0][1]
    assert (headers["x-a"], headers["x-b"], headers["authorization"]) == ("1", "2=3", "bearer k1")
    assert [h["x-request-id"] for _, h, _ in posts][1:4] == ["mine-warm-1", "mine-0", "mine-1"]
    assert [body["model"] for _, _, body in posts][2:5] == ["a", "b", "a"]
    body = posts[2][2]
    assert (body["top_p"], body["logprobs"], body["min_tokens"]) == (0.5, 2, 1)
    assert len({len(body["prompt"]) for _, _, body in posts}) > 1


def test_lengths_of_any_data_set() -> None:
    with serving() as fake:
        assert run(fake, "--input-len", "7", "--output-len", "3") == 0
    assert {(len(body["prompt"]), body["max_tokens"]) for body in fake.bodies} == {(7, 3)}


def test_figures_go_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--result-dir", str(tmp_path / "new"), "--metadata", "host=a", "note=b c")
    with serving() as fake:
        assert run(fake, "--save-result", *options, "--label", "x", "--goodput", "ttft:1e9",
                   "tpot:1e9", "--percentile-metrics", "e2el", "--metric-percentiles",
                   "50,99.9") == 0  # fmt: skip
        (file,) = (tmp_path / "new").iterdir()
        assert run(fake, "--append-result", *options, "--result-filename", "all.json",
                   "--save-detailed") == 0  # fmt: skip
        assert run(fake, "--append-result", *options, "--result-filename", "all.json") == 0
    assert file.name.startswith("x-infqps-fake-")
    got = json.loads(file.read_text())
    assert (got["host"], got["note"], got["label"]) == ("a", "b c", "x")
    assert got["request_goodput"] == got["request_throughput"] > 0
    assert "p99.9_e2el_ms" in got and "mean_ttft_ms" not in got and "itls" not in got
    assert "Request goodput (req/s)" in labels(capsys.readouterr().out)
    first, second = (tmp_path / "new" / "all.json").read_text().splitlines()
    assert json.loads(first)["output_lens"] == [5] * 6 and "itls" not in json.loads(second)


def test_failures_are_counted_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    def half(body: dict[str, Any]) -> list[Step]:
        full = page({"error": {"message": "the queue is full"}}, "429 Too Many Requests")
        return [*full] if body["prompt"][0] % 2 else [*words(body)]

    with serving(half) as fake:
        assert run(fake, "--num-prompts", "40") == 0
    reported = capsys.readouterr()
    failed = int(labels(reported.out)["Failed requests"])
    assert 0 < failed < 40
    assert f"{failed} failed: HTTP 429: the queue is full\n" in reported.err
    with serving(lambda body: page(b"no", "500 Oops")) as fake:
        assert run(fake, "--json") == 1
    reported = capsys.readouterr()
    assert json.loads(reported.out)["failures"] == {"HTTP 500: no": 6}


def test_a_second_server_gets_the_same_load(capsys: pytest.CaptureFixture[str]) -> None:
    def slow(body: dict[str, Any]) -> list[Step]:
        return [0.4, *words(body)]

    with serving() as fake, serving(slow) as other:
        assert run(fake, "--vs", other.url) == 0
        assert run(fake, "--vs", other.url, "--max-concurrency", "2", "--json") == 0
    assert sorted(map(str, fake.bodies)) == sorted(map(str, other.bodies))
    text, last = capsys.readouterr().out.rsplit("\n{", 1)
    assert text.count("Serving Benchmark Result") == 2
    assert f" Compared with {other.url} " in text
    got = json.loads("{" + last)
    assert got["vs"]["completed"] == got["completed"] == 6
    better = got["better"]
    assert better["Median TTFT (ms)"] > 1 and better["Output token throughput (tok/s)"] > 1
    ratio = got["output_throughput"] / got["vs"]["output_throughput"]
    assert better["Output token throughput (tok/s)"] == pytest.approx(ratio)


def test_a_saved_result_is_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "result.json"
    with serving() as fake:
        assert run(fake, "--save-result", "--result-filename", str(saved)) == 0
        assert run(fake, "--compare", str(saved)) == 0
        assert f" Compared with {saved} " in capsys.readouterr().out
        earlier = json.loads(saved.read_text())
        saved.write_text(json.dumps(earlier | {"completed": 5, "failed": 1}))
        assert run(fake, "--compare", str(saved)) == 2
        assert "6 requests completed here and 5 there" in capsys.readouterr().err
        saved.write_text(json.dumps(earlier | {"num_prompts": 7}))
        assert run(fake, "--compare", str(saved)) == 2
        assert "num_prompts is 7 there and 6 here" in capsys.readouterr().err
        saved.write_text("[]")
        assert run(fake, "--compare", str(saved)) == 2
        assert "is not a result of bench serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, said",
    [
        (("--backend", "vlm"), "backend = 'vlm'; allowed: openai"),
        (("--dataset-name", "sonet"), "did you mean 'sonnet'"),
        (("--dataset-name", "custom"), "dataset_path is needed"),
        (("--dataset-name", "custom", "--dataset-path", "no.jsonl"), "'no.jsonl' is not a file"),
        (("--num-prompts", "0"), "num_prompts = 0 is out of range"),
        (("--input-len", "0"), "input_len = 0 is out of range"),
        (("--max-concurrency", "0"), "max_concurrency = 0 is out of range"),
        (("--random-input-len", "0"), "random_input_len = 0 is out of range"),
        (("--request-rate", "0"), "request_rate = 0 is out of range"),
        (("--goodput", "ttft:1", "tpt:2"), "goodput = 'tpt:2'"),
        (("--header", "x"), "header = 'x': write KEY=VALUE"),
        (("--header", "x=a\r\nb: c"), "write KEY=VALUE"),
        (("--extra-body", "[1]"), "a JSON object is needed"),
        (("--extra-body", "{"), "extra_body is not valid JSON"),
        (("--random-range-ratio", "1"), "random_range_ratio = '1'"),
        (("--prompt-form", "txt"), "did you mean 'text'"),
        (("--prompt-form", "text"), "give --tokenizer PATH"),
        (("--backend", "openai-chat"), "give --tokenizer PATH"),
        (("--backend", "openai-chat", "--prompt-form", "ids"), "chat takes text"),
        (("--vs", "http://127.0.0.1:1"), "no server at http://127.0.0.1:1: connection refused"),
        (("--save-result", "--result-filename", "no/x"), "result_filename = "),
        (("--nonsense",), "unknown option --nonsense"),
        (("--lora-assignment", "rnd"), "lora_assignment = 'rnd'; allowed: random, round-robin"),
        (("--port", "0", "--base-url", "http://127.0.0.1:0"), "http://127.0.0.1:0' is not a"),
        (("--base-url", "http://a..b"), "'a..b' cannot be the name of a host"),
        (("--ready-check-timeout-sec", "nan"), "ready_check_timeout_sec = nan is out of range"),
        (("--extra-body", r'{"user": "\ud800"}'), "extra_body is not valid JSON"),
        (("--vs-model", "m"), "vs_model has no effect here: it is of the second server"),
        (("--vs-backend", "openai"), "vs_backend has no effect here"),
        (("--vs", "http://127.0.0.1:1", "--vs-model", "m", "--lora-modules", "a"), "vs_model has"),
        (("--backend", "llama.cpp", "--lora-modules", "a"), "lora_modules has no effect here"),
        (("--speed", "2"), "speed has no effect here: it is of --dataset-name trace, not random"),
        (("--dataset-name", "prefix-repetition", "--input-len", "9"), "input_len has no effect"),
        (("--dataset-name", "trace", "--output-len", "9"), "output_len has no effect here"),
        (("--request-timeout", "0"), "request_timeout = 0 is out of range; allowed: above 0"),
        (("--profile",), "--profile is not supported: no profile is taken; /debug/steps"),
        (("--tokenizer_mode", "hf"), "--tokenizer-mode is not supported: the tokenizer's files"),
        (("--random-mm-base-items-per-request", "2"), "is not supported: prompts are text"),
        (("--dataset-name", "random-mm"), "dataset_name = 'random_mm' is not supported"),
    ],
)
def test_wrong_words_are_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as fake:
        assert run(fake, *words) == 2
    reported = capsys.readouterr()
    assert said in reported.err and "Traceback" not in reported.err and reported.out == ""
    assert [line for line in reported.err.splitlines() if line.startswith("error: ")] == [
        reported.err.splitlines()[-1]
    ]
    assert fake.bodies == []


# What vLLM's `bench serve` takes, as its own documents list it.
VLLM = """
--trust-remote-code --seed --num-prompts --dataset-name --no-stream --dataset-path --no-oversample
--skip-chat-template --enable-multimodal-chat --disable-shuffle --label --backend --base-url --host
--port --endpoint --header --max-concurrency --model --input-len --output-len --tokenizer
--tokenizer-mode --use-beam-search --logprobs --request-rate --burstiness --probe-request-rate
--disable-tqdm --num-warmups --profile --save-result --save-detailed --append-result --metadata
--result-dir --result-filename --ignore-eos --self-timed --no-self-timed --percentile-metrics
--metric-percentiles --goodput --request-id-prefix --top-p --top-k --min-p --temperature
--frequency-penalty --presence-penalty --repetition-penalty --served-model-name --lora-modules
--lora-assignment --ramp-up-strategy --ramp-up-start-rps --ramp-up-end-rps --ready-check-timeout-sec
--chat-template-kwargs --extra-body --skip-tokenizer-init --insecure --plot-timeline
--timeline-itl-thresholds --plot-dataset-stats --custom-output-len --spec-bench-output-len
--spec-bench-category --sonnet-input-len --sonnet-output-len --sonnet-prefix-len
--sharegpt-output-len --blazedit-min-distance --blazedit-max-distance --asr-max-audio-len-sec
--asr-min-audio-len-sec --random-input-len --random-output-len --random-range-ratio
--random-prefix-len --random-batch-size --no-reranker --random-mm-base-items-per-request
--random-mm-bucket-config --hf-subset --hf-split --hf-name --hf-output-len
--prefix-repetition-prefix-len --prefix-repetition-suffix-len --prefix-repetition-num-prefixes
--prefix-repetition-output-len
"""


def test_every_option_of_vllm_is_taken_or_refused_by_name() -> None:
    import typer

    from flyweight.cli.main import app

    group: Any = typer.main.get_command(app)
    taken = {
        name for param in find_command(["bench", "serve"], group).params for name in param.opts
    }
    refused = {name for name in VLLM.split() if find_refusal("flyweight bench serve", name)}
    assert taken & refused == set() and {*VLLM.split()} - taken == refused
    assert {*OPTIONS} <= refused, "refused, and no option of vLLM's"
    assert find_refusal("flyweight bench kernels", "--profile") == ""


def test_an_answer_that_takes_too_long_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def halting(body: dict[str, Any]) -> list[Step]:
        return stream(text(" w"), 30.0, DONE) if body["prompt"][0] % 2 else [*words(body)]

    with serving(halting) as fake:
        assert run(fake, "--num-prompts", "10", "--request-timeout", "3", "--json") == 0
    got = json.loads(capsys.readouterr().out)
    why = "no whole answer within 3 s; --request-timeout sets that"
    assert got["failures"] == {why: got["failed"]} and 0 < got["failed"] < 10


def test_adapters_by_chance_and_lengths_that_are_kept() -> None:
    requested = []
    with serving() as fake:
        for _ in range(2):
            assert run(fake, "--lora-modules", "a", "b", "--num-prompts", "20",
                       "--max-concurrency", "1") == 0  # fmt: skip
            requested.append([body["model"] for body in fake.bodies])
            assert all(body["ignore_eos"] for body in fake.bodies)
            fake.requested.clear()
    assert requested[0] == requested[1] and {*requested[0]} == {"a", "b"} != requested[0][:2] * 10


def test_a_result_is_the_models_where_adapters_are_requested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving() as fake:
        assert run(fake, "--lora-modules", "a", "b", "--json") == 0
    assert json.loads(capsys.readouterr().out)["model_id"] == "fake"


def test_a_server_need_not_know_our_pages() -> None:
    with serving(mute="/server_info") as fake:
        assert run(fake) == 0
    assert len(fake.bodies) == 6


def test_a_server_without_models_needs_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(models={}, status="404 Not Found") as fake:
        assert run(fake) == 2
        assert run(fake, "--model", "m") == 0
    assert "lists no models; give --model NAME" in capsys.readouterr().err


def test_a_trace_has_times_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"timestamp": 100 * i, "input_length": n, "output_length": 2}
            for i, n in enumerate((30, 5000, 20))]  # fmt: skip
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setenv("FLYWEIGHT_DATA", str(tmp_path))
    trace = ("--dataset-name", "trace", "--dataset-path", "t.jsonl")
    with serving() as fake:
        assert run(fake, *trace, "--speed", "2") == 0
        assert run(fake, *trace, "--request-rate", "3") == 2
    assert [len(body["prompt"]) for body in fake.bodies] == [30, 20]  # it takes 4,096
    reported = capsys.readouterr()
    assert float(labels(reported.out)["Benchmark duration (s)"]) >= 0.1
    assert "a trace sets the times" in reported.err


def test_a_list_goes_on_until_the_next_option() -> None:
    import typer

    from flyweight.cli.main import app

    group: Any = typer.main.get_command(app)
    words = ["bench", "serve", "--goodput", "a:1", "b:2", "--metadata=x=y", "z=w", "--seed", "1"]
    assert normalize_words(words, group) == [
        "bench", "serve", "--goodput", "a:1", "--goodput", "b:2", "--metadata=x=y", "--metadata",
        "z=w", "--seed", "1",
    ]  # fmt: skip
    kernels = ["bench", "kernels", "--vs", "openvino", "model.gguf"]  # the model is no peer
    assert normalize_words(kernels, group) == kernels
    assert find_command(words, group).name == "serve"


def test_range_ratios() -> None:
    assert parse_ratios("0.5") == (0.5, 0.5) and parse_ratios('{"output": 0.3}') == (0.0, 0.3)
    for odd in ("x", "1.0", "-0.1", '{"input": "a"}', '{"in": 0.1}', "[1]"):
        with pytest.raises(ConfigError, match="random_range_ratio"):
            parse_ratios(odd)


def test_our_own_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts of exact lengths as the server counts them, as text and as ids; a trace of steps."""
    with started() as server:
        for form in ("text", "ids"):
            words = [
                "bench", "serve", "--port", str(server.port), *SMALL, "--max-concurrency", "3",
                "--ignore-eos", "--prompt-form", form, "--percentile-metrics",
                "ttft,tpot,itl,e2el", "--random-prefix-len", "40",
            ]  # fmt: skip
            assert main(words) == 0
            reported = capsys.readouterr()
            got = labels(reported.out)
            assert reported.err == "", "the server counted a prompt differently"
            assert (got["Successful requests"], got["Failed requests"]) == ("6", "0")
            assert got["Total input tokens"] == str(6 * 52)
            assert got["Total generated tokens"] == str(6 * 5)
            assert float(got["Median TTFT (ms)"]) <= float(got["Median E2EL (ms)"])
