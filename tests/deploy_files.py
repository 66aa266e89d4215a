"""Reads the files in deploy/ for tests: YAML, the Dockerfile, and command lines of the server."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from flyweight.cli.serve.choices import ServeChoice, choose
from flyweight.cli.serve.words import read

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "deployment.md").read_text("utf-8")
KEYS = "/etc/flyweight/keys"
VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")  # of a Compose file


def load_yaml(name: str) -> Any:
    documents = list(yaml.safe_load_all((DEPLOY / name).read_text("utf-8")))
    return documents[0] if len(documents) == 1 else documents


def load_dockerfile() -> list[tuple[str, str]]:
    """Instructions and their words."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text("utf-8"), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


DOCKERFILE = load_dockerfile()


def find_instruction(name: str) -> str:
    """The last one of this name, which is the one that counts."""
    return [rest for word, rest in DOCKERFILE if word == name][-1]


ENTRY: list[str] = json.loads(find_instruction("ENTRYPOINT"))

CLUSTER, CLUSTER_SERVICE = load_yaml("kuberay.yaml")
HEAD_GROUP: dict[str, Any] = CLUSTER["spec"]["headGroupSpec"]
(WORKER_GROUP,) = CLUSTER["spec"]["workerGroupSpecs"]
HEAD: dict[str, Any] = HEAD_GROUP["template"]["spec"]["containers"][0]
WORKER: dict[str, Any] = WORKER_GROUP["template"]["spec"]["containers"][0]
HOSTS = load_yaml("compose.hosts.yaml")
GIVEN = {"HEAD_ADDRESS": "10.0.0.1", "RAY_AUTH_TOKEN": "a token"}  # variables of the hosts


def fill(text: str, given: dict[str, str]) -> str:
    """A word of a Compose file with its variables."""

    def replace(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return given[found[1]] if found[2] is None else given.get(found[1], found[2])

    return VARIABLE.sub(replace, text)


def list_host_words(service: str, part: str) -> list[str]:
    """The words of a part of a service of the hosts, as its container gets them."""
    return [fill(word, GIVEN) for word in HOSTS["services"][service][part]]


def list_start_options(params: dict[str, str]) -> list[str]:
    """`rayStartParams` as KubeRay writes them: a switch has no value."""
    return [
        f"--{name}" if given == "true" else f"--{name}={given}" for name, given in params.items()
    ]


def seconds(text: str) -> int:
    """A time of a unit or of a Compose file."""
    number, unit = re.fullmatch(r"(\d+)(s|min)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "min": 60}[unit]


def parse(words: list[str], keys: Path) -> ServeChoice:
    """A command line as the command reads it; the key file is one of the test's."""
    assert words[:2] == ["flyweight", "serve"]
    return choose(read([word.replace(KEYS, str(keys)) for word in words[2:]]))
