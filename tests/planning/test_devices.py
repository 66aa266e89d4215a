"""The table of devices: each names its source, and what is wrong in a user's own is refused."""

import json
from pathlib import Path

import pytest

from flyweight.errors import ConfigError
from flyweight.planning.devices import find_device, read_devices
from flyweight.planning.predict import describe_device

GOOD = {
    "name": "own", "title": "My own", "kind": "cpu", "memory_gib": 4, "bandwidth_gbs": 20,
    "source": "measured",
}  # fmt: skip


def test_every_device_has_a_name_of_its_own_and_a_source() -> None:
    devices = read_devices()
    assert len({one.name for one in devices}) == len(devices) >= 12
    assert all(len(one.source) > 10 for one in devices)
    assert {"laptop-8", "laptop-16", "laptop-32"} <= {one.name for one in devices}


def test_figures_of_one_device() -> None:
    found = find_device("H100-80", read_devices())
    assert (found.memory, found.bandwidth_gbs, found.watts) == (80 << 30, 3350, 700)


def test_a_doubtful_figure_is_shown_with_the_source(tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    file.write_text(json.dumps([GOOD, {**GOOD, "unconfirmed": "peaks"}]), encoding="utf-8")
    sure, doubtful = read_devices(file)
    assert describe_device(sure) == "My own: published limits (measured)."
    assert describe_device(doubtful) == "My own: published limits (measured; not confirmed: peaks)."


def test_an_unknown_device_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rtx-4090'"):
        find_device("rtx4090", read_devices())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"memory_gib": 0}, r"devices\[0\].memory_gib = 0"),
        ({"kind": "tpu"}, "allowed: cpu, gpu"),
        ({"wats": 3}, "did you mean 'watts'"),
        ({"source": None}, "allowed: text"),
    ],
)
def test_a_table_that_is_wrong(change: dict[str, object], said: str, tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    file.write_text(json.dumps([{**GOOD, **change}]), encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        read_devices(file)


@pytest.mark.parametrize("text", ["{}", "[1]", "nonsense"])
def test_a_file_that_is_no_table(text: str, tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="JSON"):
        read_devices(file)
