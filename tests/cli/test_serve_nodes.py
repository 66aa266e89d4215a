"""`flyweight serve` on several hosts: what each of them may be started with."""

import pytest

from flyweight.cli.serve.choices import choose
from flyweight.cli.serve.words import read
from flyweight.errors import ConfigError

PAIR = ["-tp", "2", "--nnodes", "2"]
SECOND = [*PAIR, "--headless", "--node-rank", "1"]


def test_both_hosts_of_a_pair() -> None:
    first, second = choose(read([*PAIR, "--port", "0"])), choose(read(["-n", "2", *SECOND[:2],
                                                                       *SECOND[4:]]))  # fmt: skip
    assert not first.headless and first.settings.node_rank == 0
    assert second.headless and second.settings.node_rank == 1
    assert first.settings.nnodes == second.settings.nnodes == 2


@pytest.mark.parametrize(
    "words, said",
    [
        (["--headless"], "--node-rank = 0 with --headless: host 0 serves HTTP, and the others do "
         "not; give --node-rank 1 or more"),
        ([*PAIR, "--node-rank", "1"], "--node-rank = 1 without --headless: host 0 serves HTTP, and "
         "the others do not; give --headless"),
        ([*SECOND, "--port", "1"], "--port has no effect with --headless: host 0 serves HTTP; "
         "leave it out"),
        ([*SECOND, "--detach"], "--detach has no effect with --headless"),
        (["a.gguf", "b.gguf", *PAIR], "--nnodes = 2 serves one model; leave 2 models out"),
        ([*PAIR, "--allow-pull"], "--nnodes = 2 serves one model; leave --allow-pull out"),
        (["--nnodes", "2"], "--nnodes = 2 nodes cannot have as many of the 1 ranks each"),
        ([*PAIR, "--master-addr", "10.0.0.1"], "--master-addr = '10.0.0.1' is not loopback, and "
         "needs a secret that the nodes share"),
    ],
)  # fmt: skip
def test_refusals(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose(read(words))
    assert said in str(refused.value)
