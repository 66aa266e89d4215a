"""What of vLLM's `bench serve` is not supported: options and data sets, by name, with the reason
and what to use instead.

Invariant: nothing of vLLM's is left out in silence.  Standard library only.
"""

HUB = "data sets are files here"
MEDIA = "prompts are text"
PLOTS = "nothing is drawn; --save-detailed has every request's times"
OPTIONS = {
    "--trust-remote-code": "no code out of a checkpoint is ever run; leave it out",
    "--tokenizer-mode": "the tokenizer's files define its kind; leave it out",
    "--skip-tokenizer-init": "use --prompt-form ids: they need no tokenizer",
    "--chat-template-kwargs": "the server renders chats; put it into --extra-body",
    "--enable-multimodal-chat": MEDIA,
    "--use-beam-search": "beams cannot be streamed",
    "--probe-request-rate": "run a second bench serve meanwhile: --request-rate R --output-len 1",
    "--self-timed": "--dataset-name trace has the times of its file",
    "--no-self-timed": "other data sets take --request-rate",
    "--profile": "no profile is taken; /debug/steps lists the server's last steps",
    "--plot-timeline": PLOTS,
    "--timeline-itl-thresholds": PLOTS,
    "--plot-dataset-stats": PLOTS,
    "--no-stream": HUB,
    "--hf-subset": HUB,
    "--hf-split": HUB,
    "--hf-name": HUB,
    "--hf-output-len": HUB,
    "--random-batch-size": "a request has one prompt",
    "--no-reranker": "nothing is ranked here",
}
FAMILIES = {
    "--random-mm-": MEDIA,
    "--asr-": MEDIA,
    "--spec-bench-": "--dataset-name custom takes its questions as lines of JSON",
    "--speed-bench-": "--dataset-name custom takes its questions as lines of JSON",
    "--blazedit-": HUB,
    "--limit-mm-": MEDIA,
}
DATASETS = {
    "burstgpt": "make its rows a trace's: TIMESTAMP, ContextTokens, GeneratedTokens",
    "timed_trace": "that is --dataset-name trace here, of Azure's CSV or Mooncake's lines of JSON",
    "hf": f"{HUB}: save it as lines of JSON, for --dataset-name custom",
    "spec_bench": "its questions are lines of JSON: --dataset-name custom",
    "speed_bench": "its questions are lines of JSON: --dataset-name custom",
    "random_mm": MEDIA,
    "random_rerank": "nothing is ranked here",
    "custom_audio": MEDIA,
    "custom_image": MEDIA,
    "custom_mm": MEDIA,
}


def find_refusal(command: str, option: str) -> str:
    """Why an option of vLLM's is not taken by a command of ours; empty where it is none."""
    if not command.endswith("bench serve"):
        return ""
    option = option.replace("_", "-")
    families = (why for begin, why in FAMILIES.items() if option.startswith(begin))
    why = OPTIONS.get(option) or next(families, "")
    return f"{option} is not supported: {why}" if why else ""
