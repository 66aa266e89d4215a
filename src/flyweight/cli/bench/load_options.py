"""The options of `flyweight bench serve`, with their help.  What they mean is `loads`'."""

from typing import Annotated

import typer

# The server, and how it is spoken to.
Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        "--endpoint-type",
        metavar="NAME",
        help="API to use: openai (completions), vllm (the same), openai-chat, llama.cpp.",
    ),
]
BaseUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="URL of the server, instead of --host and --port.")
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Address of the server.")]
Port = Annotated[int, typer.Option(metavar="PORT", help="Port of the server.")]
Endpoint = Annotated[
    str, typer.Option(metavar="PATH", help="Path to send requests to.  [default: the backend's]")
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Header to send with every request; OPENAI_API_KEY is sent by itself.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Accept any certificate of an https server.")
]
SkipTemplate = Annotated[
    bool, typer.Option("--skip-chat-template", help="So it is anyway.", hidden=True)
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Model to request; its tokenizer counts texts.  [default: the first]"
    ),
]
ServedName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name of the model at the server, where it differs."),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="Model that counts texts: a .gguf file, a folder, a file, org/name."
    ),
]
PromptForm = Annotated[
    str,
    typer.Option(
        metavar="auto|text|ids", help="Form of the prompts; auto is text where it can be counted."
    ),
]
ReadyCheck = Annotated[
    float,
    typer.Option(
        "--ready-check-timeout-sec",
        metavar="SECONDS",
        help="Time to wait for the server to be ready.",
    ),
]
VsServer = Annotated[
    str | None,
    typer.Option(
        "--vs", metavar="URL", help="Another server, to send the same load to afterwards."
    ),
]
VsBackend = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="API of the other server.  [default: --backend's]"),
]
VsModel = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Model to request of the other server.  [default: its first]"
    ),
]

# What is asked.
DatasetName = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Data set: random, prefix_repetition, sonnet, sharegpt, custom, trace."
    ),
]
DatasetPath = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="File of the data set, here or below FLYWEIGHT_DATA."),
]
NumPrompts = Annotated[int, typer.Option(metavar="N", help="Number of requests.")]
NoOversample = Annotated[
    bool,
    typer.Option("--no-oversample", help="Do not repeat the prompts of a file that has too few."),
]
DisableShuffle = Annotated[
    bool, typer.Option("--disable-shuffle", help="Keep the order of a custom file's prompts.")
]
InputLen = Annotated[
    int | None, typer.Option(metavar="TOKENS", help="Length of a random or sonnet prompt.")
]
OutputLen = Annotated[
    int | None,
    typer.Option(metavar="TOKENS", help="Length of an answer, for any data set but trace."),
]
RandomInput = Annotated[int, typer.Option(metavar="TOKENS", help="Length of a random prompt.")]
RandomOutput = Annotated[int, typer.Option(metavar="TOKENS", help="Length of its answer.")]
RandomRange = Annotated[
    str,
    typer.Option(
        metavar="RATIO", help='Share by which lengths vary: 0.5, or {"input": 0.6, "output": 0.3}.'
    ),
]
RandomPrefix = Annotated[
    int, typer.Option(metavar="TOKENS", help="Length of a prefix that all random prompts share.")
]
RepeatedPrefix = Annotated[int, typer.Option(metavar="TOKENS", help="Length of a shared prefix.")]
RepeatedSuffix = Annotated[int, typer.Option(metavar="TOKENS", help="Length of the text after it.")]
RepeatedCount = Annotated[int, typer.Option(metavar="N", help="Number of shared prefixes.")]
RepeatedOutput = Annotated[int, typer.Option(metavar="TOKENS", help="Length of an answer.")]
SonnetInput = Annotated[int, typer.Option(metavar="TOKENS", help="Length of a sonnet prompt.")]
SonnetOutput = Annotated[int, typer.Option(metavar="TOKENS", help="Length of its answer.")]
SonnetPrefix = Annotated[
    int, typer.Option(metavar="TOKENS", help="Length of the lines that all sonnet prompts share.")
]
ShareOutput = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS", help="Length of a sharegpt answer.  [default: the answer's in the file]"
    ),
]
CustomOutput = Annotated[
    int,
    typer.Option(
        metavar="TOKENS", help="Length of a custom answer; -1: output_tokens of each line."
    ),
]
Speed = Annotated[float, typer.Option(metavar="TIMES", help="Speed of a trace's clock.")]
TraceMost = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        help="Longest request of a trace to send.  [default: what the server takes]",
    ),
]

# When.
RequestTimeout = Annotated[
    float,
    typer.Option(
        "--request-timeout", metavar="SECONDS", help="Time until an answer must be complete."
    ),
]
Rate = Annotated[float, typer.Option(metavar="RPS", help="Requests per second; inf: all at once.")]
Burstiness = Annotated[
    float,
    typer.Option(
        metavar="SHAPE", help="Shape of the gamma distribution of the gaps; 1 is Poisson's."
    ),
]
MaxConcurrency = Annotated[
    int | None, typer.Option(metavar="N", help="Most requests at once.  [default: no limit]")
]
Ramp = Annotated[
    str | None,
    typer.Option(
        metavar="linear|exponential", help="How the request rate grows.  [default: it is constant]"
    ),
]
RampStart = Annotated[
    float | None, typer.Option(metavar="RPS", help="Request rate at the start of the ramp.")
]
RampEnd = Annotated[float | None, typer.Option(metavar="RPS", help="Request rate at its end.")]
Warmups = Annotated[int, typer.Option(metavar="N", help="Requests before the measurement.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the prompts and the gaps.")]

# Fields of the body.
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Let answers continue to their full length.")
]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="Randomness of the choice; 0 is greedy.")
]
TopP = Annotated[
    float | None, typer.Option(metavar="P", help="Total probability of the tokens to keep.")
]
TopK = Annotated[int | None, typer.Option(metavar="K", help="Number of tokens to keep.")]
MinP = Annotated[
    float | None, typer.Option(metavar="P", help="Least share of the best token's probability.")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(metavar="X", help="Penalty for each time a token was written.")
]
PresencePenalty = Annotated[
    float | None, typer.Option(metavar="X", help="Penalty for a token that was written.")
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(metavar="X", help="Penalty for repeats; above 1 discourages them.")
]
Logprobs = Annotated[
    int | None, typer.Option(metavar="N", help="Log-probabilities to request for each token.")
]
LoraModules = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="LoRA adapter to request instead of the model; may be repeated."
    ),
]
Assignment = Annotated[
    str,
    typer.Option(
        "--lora-assignment",
        metavar="random|round-robin",
        help="How requests are spread over the adapters.",
    ),
]
ExtraBody = Annotated[
    str | None, typer.Option(metavar="JSON", help="More fields of the request body.")
]
IdPrefix = Annotated[
    str | None,
    typer.Option(
        "--request-id-prefix", metavar="TEXT", help="Prefix of x-request-id.  [default: random]"
    ),
]

# What is told.
Metrics = Annotated[
    str, typer.Option(metavar="NAME,NAME", help="Metrics to print: ttft, tpot, itl, e2el.")
]
Percentiles = Annotated[
    str, typer.Option(metavar="P,P", help="Percentiles to print of each metric.")
]
Goodput = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME:MS", help="Count requests within ttft:MS tpot:MS e2el:MS."),
]
Label = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Prefix of the result's file name.")
]
SaveResult = Annotated[bool, typer.Option("--save-result", help="Write the figures to a file.")]
SaveDetailed = Annotated[
    bool,
    typer.Option("--save-detailed", help="Write the figures of every request to the file too."),
]
AppendResult = Annotated[
    bool, typer.Option("--append-result", help="Append a line to the file instead of replacing it.")
]
Metadata = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Entry to write to the file; may be repeated."),
]
ResultDir = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Folder of the file.  [default: this one]")
]
ResultFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Name of the file.  [default: made of date, rate and model]"),
]
NoBar = Annotated[bool, typer.Option("--disable-tqdm", help="Show no progress bar.")]
