"""The files in deploy/ for replicas on several machines: kuberay.yaml, compose.hosts.yaml."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

import flyweight
from deploy_files import (
    CLUSTER,
    CLUSTER_SERVICE,
    DEPLOY,
    DOCKERFILE,
    HEAD,
    HEAD_GROUP,
    HOSTS,
    KEYS,
    PAGE,
    ROOT,
    VARIABLE,
    WORKER,
    WORKER_GROUP,
    find_instruction,
    list_host_words,
    list_start_options,
    parse,
    seconds,
)
from flyweight.server.apis.routes import ROUTES
from flyweight.server.engine_process import LEAVING
from flyweight.server.lifecycle.hosts import plan_replicas
from flyweight.server.lifecycle.lifecycle import LAST_WORDS
from flyweight.server.settings import ServerSettings

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
NAME = CLUSTER["metadata"]["name"]
HOST_SERVICES: dict[str, Any] = HOSTS["services"]
SERVES = {
    "kuberay.yaml": HEAD["args"], "compose.hosts.yaml": list_host_words("head", "command")
}  # fmt: skip


def find_section(title: str) -> str:
    """A part of the page."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## )", PAGE, re.M | re.S)
    assert found, title
    return found[1]


# --- command lines ---


def run_commands(words: list[str], folder: Path, **environment: str) -> list[list[str]]:
    """The words of `ray` and of `flyweight` that the command line of a container runs."""
    tool = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@" ""\n'
    for name in ("ray", "flyweight"):
        (folder / name).write_text(tool)
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        words, env={"PATH": path, **environment}, stdout=subprocess.PIPE, text=True, check=True
    )
    return [one.splitlines() for one in found.stdout.strip().split("\n\n")]


def test_the_head_starts_ray_and_then_the_server(tmp_path: Path) -> None:
    generated = "ray start --head  --block  --dashboard-host=0.0.0.0  --num-cpus=0 "
    ray, server = run_commands(
        HEAD["command"] + HEAD["args"], tmp_path, KUBERAY_GEN_RAY_START_CMD=generated
    )
    assert ray == ["ray", "start", "--head", "--dashboard-host=0.0.0.0", "--num-cpus=0"]
    assert server == ["flyweight", "serve", *HEAD["args"]]
    command = list_host_words("head", "command")
    ray, server = run_commands([*list_host_words("head", "entrypoint"), *command], tmp_path)
    assert ray[:4] == ["ray", "start", "--head", "--node-ip-address=10.0.0.1"]
    assert "--port=6379" in ray and "--block" not in ray
    assert server == ["flyweight", "serve", *command]


def test_workers_start_ray_and_wait(tmp_path: Path) -> None:
    generated = "ray start  --address=head:6379  --block "
    (ray,) = run_commands(WORKER["command"], tmp_path, KUBERAY_GEN_RAY_START_CMD=generated)
    assert ray == ["ray", "start", "--address=head:6379", "--block"] and "args" not in WORKER
    words = list_host_words("worker", "entrypoint") + list_host_words("worker", "command")
    (ray,) = run_commands(words, tmp_path)
    assert ray[:4] == ["ray", "start", "--block", "--address=10.0.0.1:6379"]
    assert CLUSTER["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}


def test_each_machine_has_one_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWEIGHT_API_KEY", "secret")
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    for where, words in SERVES.items():
        choice = parse(["flyweight", "serve", *words], keys)
        plan = plan_replicas(choice.settings, choice.server)
        assert plan.least == plan.most == 2, where
        assert plan.address in {"auto", "10.0.0.1:6379"} and plan.cores == 0, where
    assert {WORKER_GROUP[n] for n in ("replicas", "minReplicas", "maxReplicas")} == {2}
    assert HEAD_GROUP["rayStartParams"]["num-cpus"] == "0"
    assert WORKER_GROUP["rayStartParams"]["num-cpus"] == "1"
    for service in ("head", "worker"):
        words = list_host_words(service, "entrypoint") + list_host_words(service, "command")
        assert "--num-cpus=1" in " ".join(words).split()


def test_the_object_store_fits_in_shared_memory() -> None:
    (kube,) = {
        group["rayStartParams"]["object-store-memory"] for group in (HEAD_GROUP, WORKER_GROUP)
    }
    assert int(kube) < 256 << 20
    for service in HOST_SERVICES.values():
        assert f"--object-store-memory={kube}" in str(service) and service["shm_size"] == "256m"
    for group in (HEAD_GROUP, WORKER_GROUP):
        volumes = {one["name"]: one for one in group["template"]["spec"]["volumes"]}
        assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "256Mi"}


def test_the_time_to_stop_is_longer_than_the_drain() -> None:
    drain = ServerSettings().shutdown_timeout
    ending = LAST_WORDS + LEAVING
    assert all(f"--shutdown-timeout={drain:g}" in words for words in SERVES.values())
    assert seconds(HOST_SERVICES["head"]["stop_grace_period"]) > drain + ending
    before, rest = (
        int(one["lifecycle"]["preStop"]["exec"]["command"][1]) for one in (HEAD, WORKER)
    )
    head, worker = (
        group["template"]["spec"]["terminationGracePeriodSeconds"]
        for group in (HEAD_GROUP, WORKER_GROUP)
    )
    assert head > before + drain + ending
    assert worker > rest >= before + drain


# --- images ---


def test_the_images_have_the_extra() -> None:
    name = f"flyweight:{flyweight.__version__}-distributed"
    images = [HEAD["image"], WORKER["image"], *(one["image"] for one in HOST_SERVICES.values())]
    assert set(images) == {name}
    texts = [(DEPLOY / "Dockerfile").read_text("utf-8"), PAGE]
    for text in texts:
        assert f"--build-arg EXTRAS=distributed -t {name} ." in text
    for service in HOST_SERVICES.values():
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
        assert build["args"] == {"EXTRAS": "distributed", "TORCH_INDEX": None}
    arguments = [rest for word, rest in DOCKERFILE if word == "ARG"]
    assert arguments == ['EXTRAS="" TORCH_INDEX=""', 'EXTRAS=""'], "each stage"


def test_the_image_without_extras_is_the_package_alone(tmp_path: Path) -> None:
    """What the shell makes of the two lines that use the argument."""
    (wheel,) = [rest for word, rest in DOCKERFILE if rest.startswith("pip wheel")]
    (install,) = [rest for word, rest in DOCKERFILE if "pip install" in rest]
    found = {}
    for extras, index in (("", ""), ("distributed", "INDEX")):
        for line in (wheel, install[install.index("pip install") :]):
            shown = subprocess.run(
                ["sh", "-c", line.replace("pip", 'printf "%s "', 1)],
                env={"EXTRAS": extras, "TORCH_INDEX": index},
                cwd=tmp_path, capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            found[extras, line is wheel] = shown.split()
    assert found["", True][-1] == "." and found["", False][-1] == "flyweight"
    assert "--extra-index-url" not in found["", True]
    assert found["distributed", True][-1] == ".[distributed]"
    assert found["distributed", True][-3:-1] == ["--extra-index-url", "INDEX"]
    assert found["distributed", False][-1] == "flyweight[distributed]"


def test_the_version_of_ray_is_the_extras() -> None:
    (ray,) = [one for one in EXTRAS["distributed"] if one.startswith("ray")]
    assert CLUSTER["spec"]["rayVersion"] == f"{ray.partition('>=')[2].partition(',')[0]}.0"


# --- names and secrets ---


def test_the_service_finds_the_server() -> None:
    selected = CLUSTER_SERVICE["spec"]["selector"]
    assert selected == {"ray.io/cluster": NAME, "ray.io/node-type": "head"}
    (exposed,) = CLUSTER_SERVICE["spec"]["ports"]
    ports = {one["name"]: one["containerPort"] for one in HEAD["ports"]}
    assert ports[exposed["targetPort"]] == 8000 and ports["gcs-server"] == 6379
    (spread,) = WORKER_GROUP["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == {**selected, "ray.io/node-type": "worker"}
    note = HEAD_GROUP["template"]["metadata"]["annotations"]
    assert note["prometheus.io/port"] == str(ports["http"]) and "--open-metrics" in HEAD["args"]
    head = HEAD_GROUP["headService"]["spec"]
    assert head["publishNotReadyAddresses"], "workers find a head that waits for them"
    assert f"kubectl port-forward service/{CLUSTER_SERVICE['metadata']['name']} 8000" in PAGE


def test_all_pods_have_the_token_and_the_head_the_keys() -> None:
    text = find_section("Kubernetes with KubeRay")
    for container in (HEAD, WORKER):
        mode, token = container["env"]
        assert mode == {"name": "RAY_AUTH_MODE", "value": "token"}
        assert token["name"] == "RAY_AUTH_TOKEN"
        secret = token["valueFrom"]["secretKeyRef"]
        made = f"kubectl create secret generic {secret['name']} --from-literal={secret['key']}="
        assert made in text and made in (DEPLOY / "kuberay.yaml").read_text("utf-8")
    volumes = {one["name"]: one for one in HEAD_GROUP["template"]["spec"]["volumes"]}
    name = volumes["keys"]["secret"]["secretName"]
    assert f"kubectl create secret generic {name} --from-file=keys" in text
    mounts = {one["name"]: one["mountPath"] for one in HEAD["volumeMounts"]}
    assert mounts["keys"] == str(Path(KEYS).parent) and f"--api-key-file={KEYS}" in HEAD["args"]


def test_pods_are_confined_and_write_to_volumes_alone() -> None:
    (volume,) = re.findall(r'"([^"]+)"', find_instruction("VOLUME"))
    for group in (HEAD_GROUP, WORKER_GROUP):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        user = pod["securityContext"]
        assert find_instruction("USER") == f"{user['runAsUser']}:{user['runAsGroup']}"
        assert user["runAsNonRoot"] and user["fsGroup"] == user["runAsGroup"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert mounts.keys() == {one["name"] for one in pod["volumes"]}
        assert {mounts[one] for one in ("cache", "tmp", "shm")} == {volume, "/tmp", "/dev/shm"}
    for service in HOST_SERVICES.values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["volumes"] == [f"cache:{volume}", "/tmp"]
        assert service["network_mode"] == "host" and "ports" not in service


def test_the_probes() -> None:
    opened = {entry.path for entry in ROUTES if entry.method == "GET" and entry.open}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert HEAD[name]["httpGet"]["port"] == "http"
        assert HEAD[name]["httpGet"]["path"] in opened & {"/health", "/ready"}
        assert WORKER[name]["httpGet"] == {"path": "/api/healthz", "port": "agent"}
    (port,) = {one["containerPort"] for one in WORKER["ports"]}
    assert WORKER_GROUP["rayStartParams"]["dashboard-agent-listen-port"] == str(port)
    test = HOST_SERVICES["worker"]["healthcheck"]["test"][-1]
    assert f"http://127.0.0.1:{port}/api/healthz" in test
    assert f"--dashboard-agent-listen-port={port}" in list_host_words("worker", "command")
    alive = HEAD["livenessProbe"]
    assert alive["periodSeconds"] * alive["failureThreshold"] > 2 * ServerSettings().engine_timeout


# --- Compose ---


def test_each_profile_is_a_service_and_each_variable_is_explained() -> None:
    text = (DEPLOY / "compose.hosts.yaml").read_text("utf-8")
    section = find_section("Docker on several hosts")
    for name, service in HOST_SERVICES.items():
        assert service["profiles"] == [name]
        command = (
            f"docker compose -f deploy/compose.hosts.yaml --profile {name} up --build --detach"
        )
        assert command in section and command in text
        environment = service["environment"]
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?")
    assert "FLYWEIGHT_API_KEY" not in HOST_SERVICES["worker"]["environment"]
    assert HOST_SERVICES["head"]["environment"]["FLYWEIGHT_API_KEY"] is None, "passed on"
    body = re.sub(r"^#.*\n", "", text, flags=re.M)
    named = {found[1] for found in VARIABLE.finditer(body) if found[1]}
    assert named == {"HEAD_ADDRESS", "RAY_AUTH_TOKEN", "REPLICAS"}
    for name in named | {"FLYWEIGHT_API_KEY", "HF_TOKEN"}:
        assert f"`{name}`" in section, name
    for name in ("HEAD_ADDRESS", "RAY_AUTH_TOKEN"):
        assert f"${{{name}:?" in body, "Compose refuses to start without it"


def test_params_are_written_as_options() -> None:
    assert list_start_options({"num-cpus": "0", "block": "true"}) == ["--num-cpus=0", "--block"]
