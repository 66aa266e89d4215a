"""Settings of peers of the prefix cache: addresses, and what they need besides."""

from typing import Any

import pytest

from flyweight.config import Settings
from flyweight.errors import ConfigError
from flyweight.validation.peers import MOST_PEERS, PeerAddress, parse_listen, parse_peers

DIR: dict[str, Any] = {"prefix_cache_dir": "blocks"}
SHARED = {**DIR, "prefix_cache_secret_file": "secret"}


def test_addresses_are_read() -> None:
    assert parse_peers("") == () and parse_listen("") is None
    assert parse_peers("a:1, B.example:65535,[::1]:8100 ,10.0.0.1:80") == (
        PeerAddress("a", 1),
        PeerAddress("b.example", 65535),
        PeerAddress("::1", 8100),
        PeerAddress("10.0.0.1", 80),
    )
    assert parse_listen("localhost:0") == PeerAddress("localhost", 0)
    for text in ("a:1", "[::1]:8100"):
        assert str(parse_peers(text)[0]) == text


FORM = "allowed: HOST:PORT, HOST:PORT, ..., ports from 1 to 65535"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prefix_cache_peers": "host"},
     f"prefix_cache_peers = 'host' is not valid; {FORM}; nearest valid: host:8100"),
    ({"prefix_cache_peers": "a:1,b:0"},
     f"prefix_cache_peers = 'b:0' is not valid; {FORM}; nearest valid: b:8100"),
    ({"prefix_cache_peers": "a:1,"}, f"prefix_cache_peers = '' is not valid; {FORM}"),
    ({"prefix_cache_peers": "http://a:1"},
     f"prefix_cache_peers = 'http://a:1' is not valid; {FORM}"),
    ({"prefix_cache_peers": "::1:8100"}, f"prefix_cache_peers = '::1:8100' is not valid; {FORM}"),
    ({"prefix_cache_peers": ["a:1"]},
     "prefix_cache_peers = ['a:1'] is not valid; allowed: HOST:PORT"),
    ({"prefix_cache_peers": "a:1,A:1"},
     "prefix_cache_peers = 'a:1' is given twice; allowed: each once"),
    ({"prefix_cache_peers": ",".join(f"a:{i + 1}" for i in range(MOST_PEERS + 1))},
     "prefix_cache_peers has 65 addresses; allowed: up to 64"),
    ({"prefix_cache_listen": "a:65536"},
     "prefix_cache_listen = 'a:65536' is not valid; allowed: HOST:PORT, ports from 0 to 65535"),
    ({"prefix_cache_listen": "a:1,b:2"},
     "prefix_cache_listen = 'a:1,b:2' is not valid; allowed: HOST:PORT; nearest valid: a:1"),
    ({"prefix_cache_peers": "a:1"},
     "prefix_cache_peers = 'a:1' has no effect without a directory; give prefix_cache_dir too"),
    ({"prefix_cache_secret_file": "x"},
     "prefix_cache_secret_file = 'x' has no effect without a directory; give prefix_cache_dir too"),
    ({**DIR, "prefix_cache_peers": "a:1"},
     "prefix_cache_peers = 'a:1' needs a secret that the peers share; give "
     "prefix_cache_secret_file too"),
    ({**DIR, "prefix_cache_listen": "127.0.0.1:0"},
     "prefix_cache_listen = '127.0.0.1:0' needs a secret that the peers share; give "
     "prefix_cache_secret_file too"),
    ({**DIR, "prefix_cache_secret_file": ""},
     "prefix_cache_secret_file = '' is not valid; allowed: a file, or none"),
    ({**SHARED, "prefix_cache_peer_rate": 9},
     "prefix_cache_peer_rate = 9 has no effect where no peer is served; give "
     "prefix_cache_listen too"),
    ({"prefix_cache_peer_rate": -1},
     "prefix_cache_peer_rate = -1 is out of range; allowed: a whole number, 0 to 1099511627776; "
     "nearest valid: 0"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "line"), REFUSED)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings(**given)
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)


def test_all_together_are_accepted() -> None:
    Settings(**SHARED)
    Settings(**SHARED, prefix_cache_peers="a:1, b:2", prefix_cache_listen="0.0.0.0:8100",
             prefix_cache_peer_rate=10**8)  # fmt: skip
