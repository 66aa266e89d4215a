"""`flyweight bench serve`: a load on a server, with vLLM's options and words."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from flyweight.cli import options as opt
from flyweight.cli.bench import load_options as by
from flyweight.cli.bench import loads
from flyweight.cli.bench.options import using, writable
from flyweight.config import whole
from flyweight.validation.untrusted import one_line

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.serving.load import RequestSchedule, Tell
    from flyweight.bench.serving.report import ReportHeader
    from flyweight.bench.serving.session import LoadPlan, LoadSession, RequestBody, TargetServer
    from flyweight.bench.serving.summary import LoadSummary


ENDLESS = ("random", "trace")  # lengths are the data's own: an end would only cut them
BAR_EVERY = 0.5  # seconds: what draws shares a core with what is measured


@dataclass(frozen=True, slots=True)
class ResultView:
    """How a result is shown: metrics, their percentiles, goals, what it says of itself."""

    metrics: Sequence[str]
    percents: Sequence[float]
    goals: Mapping[str, float]
    label: str | None
    metadata: Mapping[str, str]
    detailed: bool
    as_json: bool
    bar: bool


@dataclass(frozen=True, slots=True)
class ResultFile:
    """Where a result is written, if it is: a file of its own, or a line at the end of one."""

    save: bool
    append: bool
    folder: str | None
    name: str | None

    def path(self, own: str) -> Path | None:
        """Raises `ConfigError` where it cannot be written."""
        if not (self.save or self.append):
            return None
        folder = Path(self.folder or ".").expanduser()
        with using("result_dir", folder):
            folder.mkdir(parents=True, exist_ok=True)
        return writable("result_filename", str(folder / (self.name or own)))

    def write(self, path: Path, document: Mapping[str, Any]) -> None:
        line = json.dumps(document) + "\n"
        with using("result_filename", path), path.open("a" if self.append else "w") as file:
            file.write(line)


def serve(
    backend: by.Backend = "openai",
    base_url: by.BaseUrl = None,
    host: by.Host = "127.0.0.1",
    port: by.Port = 8000,
    endpoint: by.Endpoint = "",
    header: by.Headers = None,
    insecure: by.Insecure = False,
    model: by.Model = None,
    served_model_name: by.ServedName = None,
    tokenizer: by.Tokenizer = None,
    prompt_form: by.PromptForm = "auto",
    dataset_name: by.DatasetName = "random",
    dataset_path: by.DatasetPath = None,
    num_prompts: by.NumPrompts = 1000,
    no_oversample: by.NoOversample = False,
    disable_shuffle: by.DisableShuffle = False,
    skip_chat_template: by.SkipTemplate = False,
    input_len: by.InputLen = None,
    output_len: by.OutputLen = None,
    random_input_len: by.RandomInput = 1024,
    random_output_len: by.RandomOutput = 128,
    random_range_ratio: by.RandomRange = "0",
    random_prefix_len: by.RandomPrefix = 0,
    prefix_repetition_prefix_len: by.RepeatedPrefix = 512,
    prefix_repetition_suffix_len: by.RepeatedSuffix = 128,
    prefix_repetition_num_prefixes: by.RepeatedCount = 5,
    prefix_repetition_output_len: by.RepeatedOutput = 128,
    sonnet_input_len: by.SonnetInput = 550,
    sonnet_output_len: by.SonnetOutput = 150,
    sonnet_prefix_len: by.SonnetPrefix = 200,
    sharegpt_output_len: by.ShareOutput = None,
    custom_output_len: by.CustomOutput = 256,
    speed: by.Speed = 1.0,
    trace_max_len: by.TraceMost = None,
    request_timeout: by.RequestTimeout = 21600.0,
    request_rate: by.Rate = math.inf,
    burstiness: by.Burstiness = 1.0,
    max_concurrency: by.MaxConcurrency = None,
    ramp_up_strategy: by.Ramp = None,
    ramp_up_start_rps: by.RampStart = None,
    ramp_up_end_rps: by.RampEnd = None,
    num_warmups: by.Warmups = 0,
    ignore_eos: by.IgnoreEos = False,
    temperature: by.Temperature = 0.0,
    top_p: by.TopP = None,
    top_k: by.TopK = None,
    min_p: by.MinP = None,
    frequency_penalty: by.FrequencyPenalty = None,
    presence_penalty: by.PresencePenalty = None,
    repetition_penalty: by.RepetitionPenalty = None,
    logprobs: by.Logprobs = None,
    lora_modules: by.LoraModules = None,
    lora_assignment: by.Assignment = "random",
    extra_body: by.ExtraBody = None,
    request_id_prefix: by.IdPrefix = None,
    percentile_metrics: by.Metrics = "ttft,tpot,itl",
    metric_percentiles: by.Percentiles = "99",
    goodput: by.Goodput = None,
    label: by.Label = None,
    save_result: by.SaveResult = False,
    save_detailed: by.SaveDetailed = False,
    append_result: by.AppendResult = False,
    metadata: by.Metadata = None,
    result_dir: by.ResultDir = None,
    result_filename: by.ResultFile = None,
    ready_check_timeout_sec: by.ReadyCheck = 0,
    disable_tqdm: by.NoBar = False,
    seed: by.Seed = 0,
    vs: by.VsServer = None,
    vs_backend: by.VsBackend = None,
    vs_model: by.VsModel = None,
    as_json: opt.AsJson = False,
) -> int:
    """Load a server with requests; print throughput and latencies.

    Options, printed labels and JSON keys are vLLM's; --vs runs the same load on a second server.
    """
    from flyweight.bench.serving.arrivals import ArrivalRate
    from flyweight.bench.serving.session import LoadPlan, RequestBody, TargetServer
    from flyweight.bench.serving.summary import parse_goals, parse_metrics, parse_percents

    whole("num_warmups", num_warmups, 0, 1 << 20)
    loads.counts({"num_prompts": num_prompts, "max_concurrency": max_concurrency,
               "input_len": input_len, "output_len": output_len})  # fmt: skip
    loads.heard(backend, dataset_name, {
        "vs": vs, "vs_backend": vs_backend, "vs_model": vs_model, "lora_modules": lora_modules,
        "speed": None if speed == 1 else speed, "trace_max_len": trace_max_len,
        "input_len": input_len, "output_len": output_len,
    })  # fmt: skip
    custom = None if custom_output_len == -1 else custom_output_len
    lengths = {
        "random": (input_len or random_input_len, output_len or random_output_len,
                   loads.ratios(random_range_ratio), random_prefix_len),
        "prefix_repetition": (prefix_repetition_num_prefixes, prefix_repetition_prefix_len,
                              prefix_repetition_suffix_len,
                              output_len or prefix_repetition_output_len),
        "sonnet": (input_len or sonnet_input_len, output_len or sonnet_output_len,
                   sonnet_prefix_len),
        "sharegpt": (output_len or sharegpt_output_len, not no_oversample),
        "custom": (output_len or custom, not no_oversample, not disable_shuffle),
        "trace": (speed, trace_max_len),
    }  # fmt: skip
    sampling = {
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p,
        "frequency_penalty": frequency_penalty, "presence_penalty": presence_penalty,
        "repetition_penalty": repetition_penalty,
    }  # fmt: skip
    ramp = ramp_up_strategy, ramp_up_start_rps, ramp_up_end_rps
    pace = ArrivalRate(request_rate, burstiness, *ramp)
    wanted = LoadPlan(
        loads.dataset(dataset_name, dataset_path, lengths), num_prompts, pace, max_concurrency,
        num_warmups, seed, prompt_form, tokenizer or (model if served_model_name else None) or "",
        f"bench-{uuid4().hex[:8]}-" if request_id_prefix is None else request_id_prefix,
        lora_assignment, loads.seconds("request_timeout", request_timeout),
    )  # fmt: skip
    body = RequestBody(
        {name: value for name, value in sampling.items() if value is not None},
        ignore_eos or dataset_name in ENDLESS,
        logprobs, loads.fields(extra_body), tuple(lora_modules or ()), loads.headers(header),
    )  # fmt: skip
    ours, *others = (
        loads.place(url, host, port, verified=not insecure)
        for url in ([base_url] if vs is None else [base_url, vs])
    )
    servers = [TargetServer(ours, backend, served_model_name or model or "", endpoint)]
    servers += [TargetServer(one, vs_backend or backend, vs_model or "") for one in others]
    telling = ResultView(
        parse_metrics(percentile_metrics), parse_percents(metric_percentiles),
        parse_goals(goodput or ()), label, loads.pairs("metadata", metadata),
        save_detailed, as_json, not disable_tqdm,
    )  # fmt: skip
    file = ResultFile(save_result, append_result, result_dir, result_filename)
    return measure(wanted, body, servers, loads.waiting(ready_check_timeout_sec), telling, file)


def measure(
    wanted: LoadPlan,
    body: RequestBody,
    servers: Sequence[TargetServer],
    seconds: float,
    telling: ResultView,
    file: ResultFile,
) -> int:
    """All servers in turn; 1 where one answered nothing."""
    from flyweight.bench.serving.report import compare, make_file_name, write_comparison
    from flyweight.bench.serving.session import LoadSession

    with LoadSession(wanted, body, note) as session:
        for server in servers:
            session.look(server, seconds)
        load = session.load()
        headers = [header(session, i, len(load.asks), telling.label) for i in range(len(servers))]
        path = file.path(make_file_name(headers[0]))
        runs = [one(session, i, load, headers[i], telling) for i in range(len(servers))]
    result, found = runs[0][1], [summary for summary, _ in runs]
    if len(runs) > 1:
        better = {label: ratio for label, (_, _, ratio) in compare(found[0], found[1]).items()}
        result |= {"vs": runs[1][1], "better": better}
    if path:
        file.write(path, result)
    if telling.as_json:
        print(json.dumps(result))
    elif len(runs) > 1:
        print(*write_comparison(found[0], found[1], str(servers[1].place)), sep="\n")
    return 0 if all(summary.completed for summary in found) else 1


def header(session: LoadSession, at: int, count: int, label: str | None) -> ReportHeader:
    from flyweight.bench.serving.report import ReportHeader

    wanted, found = session.wanted, session.servers[at]
    backend, name = found.server.backend, session.tokenizer_name
    return ReportHeader(backend, found.model, name, count, wanted.pace, wanted.most, label)


def one(
    session: LoadSession, at: int, load: RequestSchedule, header: ReportHeader, telling: ResultView
) -> tuple[LoadSummary, dict[str, Any]]:
    """A server's turn: its figures, shown and as JSON."""
    from flyweight.bench.serving.report import (
        find_miscounts,
        list_reasons,
        make_document,
        write_block,
    )
    from flyweight.bench.serving.summary import summarize

    with bar(telling.bar) as tell:
        played = session.play(session.servers[at], load, tell)
    summary = summarize(played, telling.percents, telling.goals)
    if not telling.as_json:
        print(*write_block(summary, header, telling.metrics, played.drafts), sep="\n", flush=True)
    for line in list_reasons(summary):
        note(line)
    for line in () if header.backend == "openai-chat" else find_miscounts(played):
        note(line)
    found = make_document(summary, header, telling.metrics, played, detailed=telling.detailed)
    return summary, {**found, **telling.metadata}


def note(message: str) -> None:
    print(one_line(message, len(message)), file=sys.stderr, flush=True)


@contextmanager
def bar(wanted: bool) -> Iterator[Tell]:
    """A bar of answered requests at a terminal, drawn now and then."""
    from flyweight.cli.bench.progress import measuring

    drawn = 0.0
    with measuring() as shown:

        def tell(done: int, total: int) -> None:
            nonlocal drawn
            now = time.monotonic()
            if wanted and (now - drawn > BAR_EVERY or done == total):
                drawn = now
                shown.round("requests", done, total)

        yield tell
