"""The clients that `.ci/clients` runs, and the server that they ask.

Invariant: every client has a script in `tests/clients`, a row in `docs/clients/README.md` and a
section in `libraries.md` next to it.  A script is run as `script URL MODEL KEY`, asserts, and exits
with 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import chat_model
from http_server import Running, started

SCRIPTS = Path(__file__).parent / "clients"
KEY = "a-key-of-the-tests"
MODEL = "talker"
CONTEXT = 4096  # some clients write long prompts
TOOLED = "{% for t in tools or [] %}<tool> {{ t | tojson }}\n{% endfor %}" + chat_model.TEMPLATE
WORDS = (
    "--api-key", KEY, "--served-model-name", MODEL, "--enable-auto-tool-choice",
    "--tool-call-parser", "hermes", "--max-num-seqs", "4", "--max-queued-requests", "4",
    "--ping-interval", "0.01",  # no client may be put off by a ping, wherever it comes
)  # fmt: skip
SLOW = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=2"}  # a full queue lasts


@dataclass(frozen=True)
class Client:
    """A client: its packages, of which the first is the one that is meant, and its script."""

    name: str
    script: str
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """The name of its first package."""
        first, *_ = self.pip or self.npm
        for sign in "[=<>~":
            first = first.split(sign)[0]
        return first.rstrip("@")


CLIENTS = (
    Client("openai (Python)", "openai_client.py", ("openai~=3.54",)),
    Client("openai (Python, 1.x)", "openai_client.py", ("openai>=1.60,<2",)),
    Client("openai (npm)", "openai_client.mjs", npm=("openai@>=6",)),
    Client("anthropic", "anthropic_client.py", ("anthropic~=2.12",)),
    Client("ollama (Python)", "ollama_client.py", ("ollama~=0.6.3",)),
    Client("ollama (npm)", "ollama_client.mjs", npm=("ollama@~0.6",)),
    # litellm 1.106 imports mcp wherever there are tools, and does not require it
    Client("litellm", "litellm_client.py", ("litellm~=1.106", "mcp")),
    Client("langchain-openai", "langchain_openai_client.py", ("langchain-openai~=1.7",)),
    Client("langchain-ollama", "langchain_ollama_client.py", ("langchain-ollama~=1.1",)),
    Client(
        "llama-index",
        "llama_index_client.py",
        ("llama-index-llms-openai-like~=0.8.1", "llama-index-llms-ollama~=0.11.0"),
    ),
    Client("instructor", "instructor_client.py", ("instructor~=1.17",)),
    Client("pydantic-ai", "pydantic_ai_client.py", ("pydantic-ai-slim[openai]~=2.68",)),
    Client("openai-agents", "openai_agents_client.py", ("openai-agents~=0.24.0",)),
    Client("dspy", "dspy_client.py", ("dspy~=3.4", "numpy")),
    Client("llm", "llm_client.py", ("llm~=0.36",)),
    Client("lm-eval", "lm_eval_client.py", ("lm-eval[api]~=0.4.13",)),
    # the release of torch that .ci/fixtures has too; guidellm's own choice is larger
    Client("guidellm", "guidellm_client.py", ("guidellm~=0.8.1", "torch==2.13.0")),
    Client("Vercel ai", "vercel_ai_client.mjs", npm=("ai@>=6", "@ai-sdk/openai-compatible@>=2")),
)


@contextmanager
def served(folder: Path) -> Iterator[tuple[Running, Path]]:
    """A server that wants a key, takes tools and has little room; and its model's file."""
    path = chat_model.write(folder / f"{MODEL}.gguf", TOOLED, CONTEXT)
    with started(str(path), *WORDS, **SLOW) as running:
        yield running, path
