"""What a node says of its files each time it joins: they may have been replaced since."""

import shutil
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from flyweight import node
from flyweight.config import Settings
from flyweight.describe import ASSETS, SilentListener
from flyweight.kv.peers.channel import TransferError
from flyweight.parallel.nodes.messages import NodeHello, ServerEnded


def test_files_that_were_replaced_are_described_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(ASSETS / "stories.gguf", model)
    said: list[NodeHello] = []
    read: list[Path] = []
    describe_node = node.describe_node

    def receive(link: Any, hello: NodeHello) -> Sequence[Any]:
        said.append(hello)
        return []

    def run(*_: Any) -> ServerEnded:
        """Node 0 is lost twice; meanwhile the file is replaced once."""
        if len(said) == 2:
            new = tmp_path / "new"
            data = bytearray(model.read_bytes())
            data[-1] ^= 1  # of the last tensor
            new.write_bytes(data)
            new.rename(model)
        if len(said) < 3:
            raise TransferError("lost", "the connection was closed")
        return ServerEnded()

    def describe(settings: Settings, path: Path, tell: Any) -> NodeHello:
        read.append(path)
        return describe_node(settings, path, tell)

    monkeypatch.setattr(node, "join", lambda *_: StringIO())
    monkeypatch.setattr(node, "receive_start", receive)
    monkeypatch.setattr(node, "run_ranks", run)
    monkeypatch.setattr(node, "describe_node", describe)
    settings = Settings(model=str(model), max_model_len=64, threads=1)
    assert node.run_node(settings, model, SilentListener()) == 0
    first, second, third = (hello.weights for hello in said)
    assert first == second != third
    assert len(read) == 2, "unchanged files are not read again"
