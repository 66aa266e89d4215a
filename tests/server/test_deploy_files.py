"""The files in deploy/ and the page that explains them: syntax, command lines, paths."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import flyweight
from deploy_files import (
    DEPLOY,
    DOCKERFILE,
    ENTRY,
    HEAD,
    KEYS,
    PAGE,
    ROOT,
    find_instruction,
    list_host_words,
    load_yaml,
    parse,
    seconds,
)
from flyweight.cli.main import app
from flyweight.errors import FlyweightError
from flyweight.server.apis.routes import ROUTES
from flyweight.server.engine_process import LEAVING
from flyweight.server.lifecycle.lifecycle import LAST_WORDS
from flyweight.server.settings import ServerSettings
from http_server import Running

INSTRUCTIONS = {
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
    "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
}  # fmt: skip


def load_unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, comment_prefixes=("#", ";"))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "flyweight.service").read_text("utf-8"))
    return unit


UNIT, COMPOSE = load_unit(), load_yaml("compose.yaml")
SERVER: dict[str, Any] = COMPOSE["services"]["flyweight"]
CLAIM, DEPLOYMENT, SERVICE = load_yaml("kubernetes.yaml")
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]
UNIT_COMMAND = shlex.split(UNIT["Service"]["ExecStart"])


# --- command lines ---


def list_commands() -> Iterator[tuple[str, list[str]]]:
    """Command lines of the files and of the page, with where they stand."""
    yield "Dockerfile", ENTRY
    yield "compose.yaml", [*ENTRY, *SERVER["command"]]
    yield "kubernetes.yaml", [*ENTRY, *CONTAINER["args"]]
    yield "kuberay.yaml", ["flyweight", "serve", *HEAD["args"]]
    yield "compose.hosts.yaml", ["flyweight", "serve", *list_host_words("head", "command")]
    yield "flyweight.service", ["flyweight", *UNIT_COMMAND[1:]]
    text = re.sub(r" \\\n\s*", " ", "\n".join(re.findall(r"^```\n(.*?)^```", PAGE, re.M | re.S)))
    for line in text.splitlines():
        if "flyweight:0.1.0 " in line:
            yield "docker run", [*ENTRY, *shlex.split(line.partition("flyweight:0.1.0 ")[2])]
        elif line.startswith("ExecStart=/"):
            yield "drop-in", ["flyweight", *shlex.split(line)[1:]]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("secret\n")
    return path


def test_every_command_line_is_accepted(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWEIGHT_API_KEY", "secret")
    found = {where: parse(words, keys) for where, words in list_commands()}
    assert len(found) == 8
    for where, choice in found.items():
        assert choice.server.needs_key, where
        assert choice.server.port == 8000
        assert choice.server.host == "0.0.0.0" or where in {"flyweight.service", "drop-in"}


def test_without_a_key_the_image_does_not_start(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FLYWEIGHT_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    hosts = ["flyweight", "serve", *list_host_words("head", "command")]
    for words in (ENTRY, [*ENTRY, *SERVER["command"]], hosts):
        with pytest.raises(FlyweightError, match="without a key"):
            parse(words, keys)
    assert "FLYWEIGHT_API_KEY" in SERVER["environment"]
    assert parse([*ENTRY, *CONTAINER["args"]], keys).server.key_files == (str(keys),)


def test_other_commands_of_the_page_exist() -> None:
    import typer

    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    named = re.findall(r"--entrypoint flyweight flyweight:0\.1\.0 (\S+)", PAGE)
    assert named and set(named) <= known


def test_the_time_to_stop_is_longer_than_the_drain() -> None:
    drain = ServerSettings().shutdown_timeout
    ending = LAST_WORDS + LEAVING
    assert seconds(SERVER["stop_grace_period"]) > drain + ending
    assert seconds(UNIT["Service"]["TimeoutStopSec"]) > drain + ending
    assert f"--shutdown-timeout={drain:g}" in CONTAINER["args"]
    before = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > before + drain + ending
    assert all(int(n) > drain + ending for n in re.findall(r"--stop-timeout (\d+)", PAGE))


# --- Dockerfile ---


def test_instructions_and_stages_of_the_dockerfile() -> None:
    assert {word for word, _ in DOCKERFILE} <= INSTRUCTIONS
    assert DOCKERFILE[0][0] == "FROM"
    bases = [rest for word, rest in DOCKERFILE if word == "FROM"]
    images = {base.split()[0] for base in bases}
    assert images == {"python:3.12-slim"}
    stages = {base.split(" AS ")[1] for base in bases if " AS " in base}
    used = {
        stage for _, rest in DOCKERFILE for stage in re.findall(r"(?:--|,)from=([\w.-]+)", rest)
    }
    assert used == stages == {"build"}
    assert find_instruction("USER") == f"{POD['securityContext']['runAsUser']}:" + str(
        POD["securityContext"]["runAsGroup"]
    )


def test_the_build_gets_what_it_reads() -> None:
    """All that a wheel is made from is in the repository, is copied, and is not ignored."""
    copied = [source for word, rest in DOCKERFILE if word == "COPY" for source in rest.split()[:-1]]
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == set(copied)
    assert all((ROOT / source).exists() for source in copied)
    ignored = [rule.removeprefix("**/") for rule in rules[1:] if not rule.startswith("!")]
    tracked = subprocess.run(
        ["git", "ls-files", "CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "native",
         "src"], cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for file in tracked:
        assert file.partition("/")[0] in copied, file
        assert not any(fnmatch(part, rule) for part in file.split("/") for rule in ignored), file


def test_the_health_check_follows_the_server(server: Running) -> None:
    words = json.loads(find_instruction("HEALTHCHECK").partition(" CMD ")[2])
    assert words[0] == "python" and ":8000/" in words[-1]

    def check(port: int) -> int:
        code = words[-1].replace(":8000/", f":{port}/")
        found = subprocess.run([sys.executable, *words[1:-1], code], stderr=subprocess.DEVNULL)
        return found.returncode

    assert check(server.port) == 0
    assert check(1) != 0


def test_the_cache_is_where_the_volumes_are() -> None:
    (volume,) = json.loads(find_instruction("VOLUME"))
    places = dict(pair.split("=", 1) for pair in find_instruction("ENV").split())
    assert places.keys() == {"HF_HOME", "FLYWEIGHT_CACHE"}
    assert all(place.startswith(f"{volume}/") for place in places.values())
    assert [one["mountPath"] for one in CONTAINER["volumeMounts"] if one["name"] == "cache"] == [
        volume
    ]
    assert f"cache:{volume}" in SERVER["volumes"]


# --- Compose, Prometheus, Grafana ---


def test_the_compose_file_refers_to_what_exists() -> None:
    build = SERVER["build"]
    context = (DEPLOY / build["context"]).resolve()
    assert context == ROOT and (context / build["dockerfile"]).is_file()
    named = set(COMPOSE["volumes"])
    used = set()
    for service in COMPOSE["services"].values():
        for source, _, _ in (one.partition(":") for one in service["volumes"]):
            if source.startswith("."):
                assert (DEPLOY / source).is_file(), source
            else:
                used.add(source)
    assert used == named
    images = [one["image"].rpartition(":") for one in COMPOSE["services"].values()]
    assert {name for name, _, _ in images} == {"flyweight", "prom/prometheus", "grafana/grafana"}
    assert all(tag and tag != "latest" for _, _, tag in images)


def test_the_images_have_the_packages_version() -> None:
    texts = [(DEPLOY / "Dockerfile").read_text("utf-8"), PAGE, SERVER["image"], CONTAINER["image"]]
    found = {tag for text in texts for tag in re.findall(r"\bflyweight:(\d[\w.]*\w)", text)}
    assert found == {flyweight.__version__}


def test_prometheus_and_grafana_find_each_other() -> None:
    (job,) = load_yaml("prometheus.yml")["scrape_configs"]
    (config,) = job["static_configs"]
    for target in config["targets"]:
        host, _, port = target.partition(":")
        assert host in COMPOSE["services"] and f"{port}:{port}" in SERVER["ports"]
    assert "--open-metrics" in SERVER["command"] or "authorization" in job
    (source,) = load_yaml("grafana/datasource.yaml")["datasources"]
    assert source["type"] == "prometheus" and source["url"] == "http://prometheus:9090"
    (provider,) = load_yaml("grafana/dashboards.yaml")["providers"]
    mounts = dict(one.split(":")[:2] for one in COMPOSE["services"]["grafana"]["volumes"])
    assert Path(mounts["./grafana-dashboard.json"]).parent == Path(provider["options"]["path"])
    assert Path(mounts["./grafana/dashboards.yaml"]).parent.name == "dashboards"
    assert Path(mounts["./grafana/datasource.yaml"]).parent.name == "datasources"


# --- systemd ---


def test_the_unit() -> None:
    assert set(UNIT.sections()) == {"Unit", "Service", "Install"}
    service = UNIT["Service"]
    assert service["Type"] == "notify" and service["ExecReload"].endswith("-HUP $MAINPID")
    group = service["SupplementaryGroups"]
    assert f"groupadd --system {group}" in PAGE and f"chgrp {group} {KEYS}" in PAGE
    assert UNIT_COMMAND[0] in PAGE and service["EnvironmentFile"].lstrip("-") in PAGE
    explained = PAGE.partition("## systemd")[2].partition("\n## ")[0]
    for name in ("WatchdogSec", "MemoryMax", "OOMPolicy", "KillMode", "CacheDirectory"):
        assert name in service and f"`{name}`" in explained, name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """The command is not installed where tests run; another takes its place."""
    text = (DEPLOY / "flyweight.service").read_text("utf-8")
    path = tmp_path / "flyweight.service"

    def verify(text: str) -> str:
        path.write_text(text.replace(UNIT_COMMAND[0], sys.executable))
        words = ["systemd-analyze", "verify", "--man=no", str(path)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr

    assert "flyweight.service" not in verify(text)
    assert "flyweight.service" in verify(text.replace("WatchdogSec=60s", "WatchdogSec=soon"))


# --- Kubernetes ---


def test_the_manifest_refers_to_what_it_has() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels == SERVICE["spec"]["selector"]
    (port,) = CONTAINER["ports"]
    (exposed,) = SERVICE["spec"]["ports"]
    assert exposed["targetPort"] == port["name"] and port["containerPort"] == 8000
    note = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert note["prometheus.io/port"] == str(port["containerPort"])
    volumes = {one["name"]: one for one in POD["volumes"]}
    assert {one["name"] for one in CONTAINER["volumeMounts"]} == volumes.keys()
    assert volumes["cache"]["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
    secret = volumes["keys"]["secret"]["secretName"]
    assert f"kubectl create secret generic {secret} --from-file=keys" in PAGE
    assert [one["mountPath"] for one in CONTAINER["volumeMounts"] if one["name"] == "keys"] == [
        str(Path(KEYS).parent)
    ]


def test_the_probes_need_no_key_and_outlast_an_engine_restart() -> None:
    opened = {entry.path for entry in ROUTES if entry.method == "GET"}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = CONTAINER[name]["httpGet"]
        assert probe["path"] in opened & {"/health", "/ready"} and probe["port"] == "http"
    alive = CONTAINER["livenessProbe"]
    assert alive["periodSeconds"] * alive["failureThreshold"] > 2 * ServerSettings().engine_timeout
