"""`flyweight bench serve`: a load on a server, with vLLM's options and words."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from flyweight.cli import options as opt
from flyweight.cli.bench import loads
from flyweight.cli.bench.load_options import (
    DatasetOptions,
    PaceOptions,
    ReportOptions,
    RequestOptions,
    SecondOptions,
    TargetOptions,
)
from flyweight.cli.bench.options import find_writable, name_errors
from flyweight.cli.parameters import Values, expand
from flyweight.cli.samplers import select_sampling
from flyweight.config import whole
from flyweight.errors import ConfigError
from flyweight.validation.untrusted import one_line

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.bench.serving.comparing import Result
    from flyweight.bench.serving.load import ProgressCallback, RequestSchedule
    from flyweight.bench.serving.report import ReportHeader
    from flyweight.bench.serving.session import LoadPlan, LoadSession, RequestBody, TargetServer
    from flyweight.bench.serving.summary import LoadSummary


ENDLESS = ("random", "trace")  # lengths are the data's own: an end would only cut them
LOAD_SAMPLING = select_sampling(
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty", temperature=0.0,
)  # fmt: skip
BAR_EVERY = 0.5  # seconds: what draws shares a core with what is measured


@dataclass(frozen=True, slots=True)
class ResultView:
    """How a result is shown: metrics, their percentiles, goals, what it says of itself."""

    metrics: Sequence[str]
    percents: Sequence[float]
    goals: Mapping[str, float]
    label: str | None
    hourly: float | None
    metadata: Mapping[str, str]
    detailed: bool
    as_json: bool
    bar: bool
    compared: str = ""
    earlier: Mapping[str, Any] | None = None  # the result in the file `compared`


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
        with name_errors("result_dir", folder):
            folder.mkdir(parents=True, exist_ok=True)
        return find_writable("result_filename", str(folder / (self.name or own)))

    def write(self, path: Path, document: Mapping[str, Any]) -> None:
        line = json.dumps(document) + "\n"
        with name_errors("result_filename", path), path.open("a" if self.append else "w") as file:
            file.write(line)


@expand
def serve(
    *,
    target: TargetOptions,
    data: DatasetOptions,
    pace: PaceOptions,
    sampling: Annotated[Values, LOAD_SAMPLING],
    request: RequestOptions,
    report: ReportOptions,
    second: SecondOptions,
    as_json: opt.AsJson = False,
) -> int:
    """Load a server; print throughput and latencies.

    Options, printed labels and JSON keys are vLLM's; --vs runs the same load on a second server.
    """
    from flyweight.bench.serving.comparing import read_result
    from flyweight.bench.serving.session import RequestBody
    from flyweight.bench.serving.summary import parse_goals, parse_metrics, parse_percents

    check_options(target, data, pace, request, second)
    wanted = plan_load(target, data, pace, request, report)
    body = RequestBody(
        {name: value for name, value in sampling.items() if value is not None},
        request.ignore_eos or data.dataset_name in ENDLESS,
        request.logprobs, loads.parse_fields(request.extra_body),
        tuple(request.lora_modules or ()), loads.make_headers(target.header),
    )  # fmt: skip
    servers = list_servers(target, second)
    telling = ResultView(
        parse_metrics(report.percentile_metrics), parse_percents(report.metric_percentiles),
        parse_goals(report.goodput or ()), report.label, report.gpu_hourly,
        loads.parse_pairs("metadata", report.metadata), report.save_detailed, as_json,
        not report.disable_tqdm, second.compare or "",
        read_result(Path(second.compare).expanduser()) if second.compare else None,
    )  # fmt: skip
    file = ResultFile(
        report.save_result, report.append_result, report.result_dir, report.result_filename
    )
    ready = loads.check_waiting(report.ready_check_timeout_sec)
    return measure(wanted, body, servers, ready, telling, file)


def check_options(
    target: TargetOptions,
    data: DatasetOptions,
    pace: PaceOptions,
    request: RequestOptions,
    second: SecondOptions,
) -> None:
    """Raises `ConfigError` for counts out of range and options without effect."""
    whole("num_warmups", pace.num_warmups, 0, 1 << 20)
    loads.check_counts({
        "num_prompts": data.num_prompts, "max_concurrency": pace.max_concurrency,
        "input_len": data.input_len, "output_len": data.output_len,
    })  # fmt: skip
    loads.check_effects(target.backend, data.dataset_name, {
        "vs": second.vs, "vs_backend": second.vs_backend, "vs_model": second.vs_model,
        "lora_modules": request.lora_modules, "speed": None if data.speed == 1 else data.speed,
        "trace_max_len": data.trace_max_len, "input_len": data.input_len,
        "output_len": data.output_len,
    })  # fmt: skip
    if second.compare and second.vs:
        raise ConfigError("compare and vs exclude each other; give one")


def plan_load(
    target: TargetOptions,
    data: DatasetOptions,
    pace: PaceOptions,
    request: RequestOptions,
    report: ReportOptions,
) -> LoadPlan:
    """The requests and when they are sent.  Raises `ConfigError`."""
    from flyweight.bench.serving.arrivals import ArrivalRate
    from flyweight.bench.serving.session import LoadPlan

    ramp = pace.ramp_up_strategy, pace.ramp_up_start_rps, pace.ramp_up_end_rps
    prefix = request.request_id_prefix
    return LoadPlan(
        loads.open_dataset(data.dataset_name, data.dataset_path, list_lengths(data)),
        data.num_prompts,
        ArrivalRate(pace.request_rate, pace.burstiness, *ramp),
        pace.max_concurrency,
        pace.num_warmups,
        report.seed,
        target.prompt_form,
        target.tokenizer or (target.model if target.served_model_name else None) or "",
        f"bench-{uuid4().hex[:8]}-" if prefix is None else prefix,
        request.lora_assignment,
        loads.check_seconds("request_timeout", pace.request_timeout),
    )


def list_lengths(data: DatasetOptions) -> dict[str, tuple[Any, ...]]:
    """The options of each data set, in the order of its fields."""
    ours, theirs, whole_set = data.input_len, data.output_len, not data.no_oversample
    custom = None if data.custom_output_len == -1 else data.custom_output_len
    return {
        "random": (ours or data.random_input_len, theirs or data.random_output_len,
                   loads.parse_ratios(data.random_range_ratio), data.random_prefix_len),
        "prefix_repetition": (data.prefix_repetition_num_prefixes,
                              data.prefix_repetition_prefix_len,
                              data.prefix_repetition_suffix_len,
                              theirs or data.prefix_repetition_output_len),
        "sonnet": (ours or data.sonnet_input_len, theirs or data.sonnet_output_len,
                   data.sonnet_prefix_len),
        "sharegpt": (theirs or data.sharegpt_output_len, whole_set),
        "custom": (theirs or custom, whole_set, not data.disable_shuffle),
        "trace": (data.speed, data.trace_max_len),
    }  # fmt: skip


def list_servers(target: TargetOptions, second: SecondOptions) -> list[TargetServer]:
    """The server, and the one that it is compared with."""
    from flyweight.bench.serving.session import TargetServer

    ours, *others = (
        loads.find_address(url, target.host, target.port, verified=not target.insecure)
        for url in ([target.base_url] if second.vs is None else [target.base_url, second.vs])
    )
    name = target.served_model_name or target.model or ""
    backend = second.vs_backend or target.backend
    servers = [TargetServer(ours, target.backend, name, target.endpoint)]
    return servers + [TargetServer(one, backend, second.vs_model or "") for one in others]


def measure(
    wanted: LoadPlan,
    body: RequestBody,
    servers: Sequence[TargetServer],
    seconds: float,
    telling: ResultView,
    file: ResultFile,
) -> int:
    """All servers in turn; 1 where one answered nothing.  Raises `ConfigError` where runs of
    unequal work would be compared.
    """
    from flyweight.bench.serving.comparing import check_load, compare, find_inequality
    from flyweight.bench.serving.report import describe_load, make_file_name
    from flyweight.bench.serving.session import LoadSession

    with LoadSession(wanted, body, print_note) as session:
        for server in servers:
            session.look(server, seconds)
        load = session.load()
        headers = [
            make_header(session, i, len(load.requests), telling) for i in range(len(servers))
        ]
        path = file.path(make_file_name(headers[0]))
        if telling.earlier is not None:
            check_load(describe_load(headers[0]), telling.earlier, telling.compared)
        runs = [measure_server(session, i, load, headers[i], telling) for i in range(len(servers))]
    name, other = telling.compared, telling.earlier
    result = runs[0][1]
    if len(runs) > 1:
        name, other = str(servers[1].place), runs[1][1]
        result |= {"vs": other}
    if other is not None and not find_inequality(result, other):
        result |= {"better": {label: row[2] for label, row in compare(result, other).items()}}
    if path:
        file.write(path, result)
    if telling.as_json:
        print(json.dumps(result))
    if not all(summary.completed for summary, _ in runs):
        return 1
    if other is not None:
        show_comparison(result, other, name, not telling.as_json)
    return 0


def show_comparison(ours: Result, other: Result, name: str, printed: bool) -> None:
    """Raises `ConfigError` for runs of unequal work."""
    from flyweight.bench.serving.comparing import find_inequality, write_comparison

    why = find_inequality(ours, other)
    if why:
        raise ConfigError(f"not compared with {name}: {why}")
    if printed:
        print(*write_comparison(ours, other, name), sep="\n")


def make_header(session: LoadSession, at: int, count: int, view: ResultView) -> ReportHeader:
    from flyweight.bench.serving.report import ReportHeader

    wanted, found = session.wanted, session.servers[at]
    backend, name = found.server.backend, session.tokenizer_name
    pace, most = wanted.pace, wanted.most
    return ReportHeader(
        backend, found.model, name, count, pace, most, view.label, view.hourly
    )  # fmt: skip


def measure_server(
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

    with show_bar(telling.bar) as report_progress:
        played = session.play(session.servers[at], load, report_progress)
    summary = summarize(played, telling.percents, telling.goals)
    if not telling.as_json:
        print(*write_block(summary, header, telling.metrics, played.drafts), sep="\n", flush=True)
    for line in list_reasons(summary):
        print_note(line)
    for line in () if header.backend == "openai-chat" else find_miscounts(played):
        print_note(line)
    found = make_document(summary, header, telling.metrics, played, detailed=telling.detailed)
    return summary, {**found, **telling.metadata}


def print_note(message: str) -> None:
    print(one_line(message, len(message)), file=sys.stderr, flush=True)


@contextmanager
def show_bar(wanted: bool) -> Iterator[ProgressCallback]:
    """A bar of answered requests at a terminal, drawn now and then."""
    from flyweight.cli.bench.progress import show_measuring

    drawn = 0.0
    with show_measuring() as shown:

        def report_progress(done: int, total: int) -> None:
            nonlocal drawn
            now = time.monotonic()
            if wanted and (now - drawn > BAR_EVERY or done == total):
                drawn = now
                shown.round("requests", done, total)

        yield report_progress
