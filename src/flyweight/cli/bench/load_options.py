"""The options of `flyweight bench serve`, with their help.  What they mean is `loads`'."""

import math
from dataclasses import dataclass
from typing import Annotated

import typer

from flyweight.cli.amounts import amount


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The server, and how requests are sent to it."""

    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            "--endpoint-type",
            metavar="NAME",
            help="API to use: openai (completions), vllm (the same), openai-chat, llama.cpp.",
        ),
    ] = "openai"
    base_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="URL of the server, instead of --host and --port."),
    ] = None
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address of the server.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(metavar="PORT", help="Port of the server.")] = 8000
    endpoint: Annotated[
        str,
        typer.Option(metavar="PATH", help="Path to send requests to.  [default: the backend's]"),
    ] = ""
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Header to send with every request; OPENAI_API_KEY is sent automatically.",
        ),
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept any certificate of an https server.")
    ] = False
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Model to request; its tokenizer counts texts.  [default: the first]",
        ),
    ] = None
    served_model_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the model at the server, where it differs."),
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model that counts texts: a .gguf file, a folder, a file, org/name.",
        ),
    ] = None
    prompt_form: Annotated[
        str,
        typer.Option(
            metavar="auto|text|ids",
            help="Form of the prompts; auto is text where it can be counted.",
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """The prompts and their lengths."""

    dataset_name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Data set: random, prefix_repetition, sonnet, sharegpt, custom, trace.",
        ),
    ] = "random"
    dataset_path: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File of the data set, here or below FLYWEIGHT_DATA."),
    ] = None
    num_prompts: Annotated[int, typer.Option(metavar="N", help="Number of requests.")] = 1000
    no_oversample: Annotated[
        bool,
        typer.Option(
            "--no-oversample", help="Do not repeat the prompts of a file that has too few."
        ),
    ] = False
    disable_shuffle: Annotated[
        bool, typer.Option("--disable-shuffle", help="Keep the order of a custom file's prompts.")
    ] = False
    skip_chat_template: Annotated[
        bool, typer.Option("--skip-chat-template", help="So it is anyway.", hidden=True)
    ] = False
    input_len: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Length of a random or sonnet prompt.")
    ] = None
    output_len: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Length of an answer, for any data set but trace."),
    ] = None
    random_input_len: Annotated[
        int, typer.Option(metavar="TOKENS", help="Length of a random prompt.")
    ] = 1024
    random_output_len: Annotated[
        int, typer.Option(metavar="TOKENS", help="Length of an answer.")
    ] = 128
    random_range_ratio: Annotated[
        str,
        typer.Option(
            metavar="RATIO",
            help='Share by which lengths vary: 0.5, or {"input": 0.6, "output": 0.3}.',
        ),
    ] = "0"
    random_prefix_len: Annotated[
        int,
        typer.Option(metavar="TOKENS", help="Length of a prefix that all random prompts share."),
    ] = 0
    prefix_repetition_prefix_len: Annotated[
        int, typer.Option(metavar="TOKENS", help="Length of a shared prefix.")
    ] = 512
    prefix_repetition_suffix_len: Annotated[
        int, typer.Option(metavar="TOKENS", help="Length of the text after it.")
    ] = 128
    prefix_repetition_num_prefixes: Annotated[
        int, typer.Option(metavar="N", help="Number of shared prefixes.")
    ] = 5
    prefix_repetition_output_len: Annotated[
        int, typer.Option(metavar="TOKENS", help="Length of an answer.")
    ] = 128
    sonnet_input_len: Annotated[
        int, typer.Option(metavar="TOKENS", help="Length of a sonnet prompt.")
    ] = 550
    sonnet_output_len: Annotated[
        int, typer.Option(metavar="TOKENS", help="Length of an answer.")
    ] = 150
    sonnet_prefix_len: Annotated[
        int,
        typer.Option(metavar="TOKENS", help="Length of the lines that all sonnet prompts share."),
    ] = 200
    sharegpt_output_len: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Length of a sharegpt answer.  [default: the answer's in the file]",
        ),
    ] = None
    custom_output_len: Annotated[
        int,
        typer.Option(
            metavar="TOKENS", help="Length of a custom answer; -1: output_tokens of each line."
        ),
    ] = 256
    speed: Annotated[
        float, typer.Option(metavar="TIMES", help="Factor by which a trace is sent faster.")
    ] = 1.0
    trace_max_len: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Longest request of a trace to send.  [default: the server's limit]",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class PaceOptions:
    """When requests are sent."""

    request_timeout: Annotated[
        float,
        typer.Option(
            "--request-timeout", metavar="SECONDS", help="Max time (s) until an answer is complete."
        ),
    ] = 21600.0
    request_rate: Annotated[
        float, typer.Option(metavar="RPS", help="Requests per second; inf: all at once.")
    ] = math.inf
    burstiness: Annotated[
        float,
        typer.Option(
            metavar="SHAPE", help="Shape of the gamma distribution of the gaps; 1 is Poisson's."
        ),
    ] = 1.0
    max_concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Max requests at once.  [default: no limit]")
    ] = None
    ramp_up_strategy: Annotated[
        str | None,
        typer.Option(
            metavar="linear|exponential",
            help="How the request rate grows.  [default: it is constant]",
        ),
    ] = None
    ramp_up_start_rps: Annotated[
        float | None, typer.Option(metavar="RPS", help="Request rate at the start of the ramp.")
    ] = None
    ramp_up_end_rps: Annotated[
        float | None, typer.Option(metavar="RPS", help="Request rate at the end of the ramp.")
    ] = None
    num_warmups: Annotated[
        int, typer.Option(metavar="N", help="Requests before the measurement.")
    ] = 0


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What requests hold besides prompts and sampling options."""

    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Let answers continue to their full length.")
    ] = False
    logprobs: Annotated[
        int | None, typer.Option(metavar="N", help="Log-probabilities to request for each token.")
    ] = None
    lora_modules: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="LoRA adapter to request instead of the model; may be repeated."
        ),
    ] = None
    lora_assignment: Annotated[
        str,
        typer.Option(
            "--lora-assignment",
            metavar="random|round-robin",
            help="How requests are spread over the adapters.",
        ),
    ] = "random"
    extra_body: Annotated[
        str | None, typer.Option(metavar="JSON", help="More fields of the request body.")
    ] = None
    request_id_prefix: Annotated[
        str | None,
        typer.Option(
            "--request-id-prefix", metavar="TEXT", help="Prefix of x-request-id.  [default: random]"
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What is measured, shown and saved."""

    percentile_metrics: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="Metrics to print: ttft, tpot, itl, e2el.")
    ] = "ttft,tpot,itl"
    metric_percentiles: Annotated[
        str, typer.Option(metavar="P,P", help="Percentiles to print of each metric.")
    ] = "99"
    goodput: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:MS", help="Count requests within ttft:MS tpot:MS e2el:MS."),
    ] = None
    gpu_hourly: Annotated[
        float | None,
        amount(
            "gpu_hourly",
            2.0,
            metavar="DOLLARS",
            help="Price of the server's machine for an hour; prints the cost of tokens.",
        ),
    ] = None
    label: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Prefix of the result's file name.")
    ] = None
    save_result: Annotated[
        bool, typer.Option("--save-result", help="Write the figures to a file.")
    ] = False
    save_detailed: Annotated[
        bool,
        typer.Option("--save-detailed", help="Write the figures of every request to the file too."),
    ] = False
    append_result: Annotated[
        bool,
        typer.Option("--append-result", help="Append a line to the file instead of replacing it."),
    ] = False
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Entry to write to the file; may be repeated."),
    ] = None
    result_dir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder of the file.  [default: this one]")
    ] = None
    result_filename: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Name of the file.  [default: made of date, rate and model]"
        ),
    ] = None
    ready_check_timeout_sec: Annotated[
        float,
        typer.Option(
            "--ready-check-timeout-sec",
            metavar="SECONDS",
            help="Time to wait for the server to be ready.",
        ),
    ] = 0
    disable_tqdm: Annotated[bool, typer.Option("--disable-tqdm", help="Show no progress bar.")] = (
        False
    )
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the prompts and the gaps.")] = 0


@dataclass(frozen=True, slots=True)
class SecondOptions:
    """The second server."""

    vs: Annotated[
        str | None,
        typer.Option(
            "--vs", metavar="URL", help="Another server, to send the same load to afterwards."
        ),
    ] = None
    vs_backend: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="API of the other server.  [default: --backend's]"),
    ] = None
    vs_model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Model to request of the other server.  [default: its first]"
        ),
    ] = None
    compare: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Result of an earlier run, to compare with."),
    ] = None
