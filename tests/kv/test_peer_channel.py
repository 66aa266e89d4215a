"""The handshake and the frames between peers: nothing but what a peer with the secret has sent is
taken.
"""

import socket
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peer_cases import KEY, LATER, MemoryStream

from flyweight.kv.peers import channel as channels
from flyweight.kv.peers.channel import (
    CODE,
    HEAD,
    MAGIC,
    NONCE,
    PROOF,
    PeerChannel,
    PeerStream,
    SocketStream,
    TransferError,
    accept_channel,
    open_channel,
)

ONE, TWO = bytes(32), bytes([1] * 32)
FRAMES = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40)), min_size=1, max_size=5)


def write(frames: list[tuple[int, bytes]]) -> list[bytes]:
    """The bytes of each frame."""
    found, stream = [], MemoryStream()
    sender = PeerChannel(stream, ONE, TWO)
    for kind, body in frames:
        sender.send(kind, body[:3], body[3:], end=LATER)
        found.append(bytes(stream.written))
        stream.written.clear()
    return found


def read(raw: bytes, count: int, most: int = 40) -> list[tuple[int, bytes]]:
    """The frames of bytes, until one is refused."""
    receiver, found = PeerChannel(MemoryStream(raw), TWO, ONE), []
    for _ in range(count):
        try:
            kind, body = receiver.receive(most, LATER)
        except TransferError:
            break
        found.append((kind, bytes(body)))
    return found


@given(frames=FRAMES)
def test_frames_arrive_as_they_were_sent(frames: list[tuple[int, bytes]]) -> None:
    assert read(b"".join(write(frames)), len(frames) + 1) == frames


@given(frames=FRAMES, data=st.data())
def test_a_changed_byte_ends_the_connection(
    frames: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    sent = write(frames)
    raw = bytearray(b"".join(sent))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    whole = sum(1 for i in range(len(sent)) if len(b"".join(sent[: i + 1])) <= place)
    assert read(bytes(raw), len(frames) + 1) == frames[:whole]


@given(frames=FRAMES, data=st.data())
def test_a_frame_that_is_repeated_left_out_or_cut_is_refused(
    frames: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    sent = write(frames)
    place = data.draw(st.integers(0, len(sent) - 1))
    assert read(b"".join([*sent, sent[place]]), len(sent) + 1) == frames
    assert read(b"".join(sent[:place] + sent[place + 1 :]), len(sent)) == frames[:place]
    cut = data.draw(st.integers(1, HEAD.size + CODE))
    assert read(b"".join(sent)[:-cut], len(sent)) == frames[:-1]


def test_a_frame_of_the_other_direction_is_refused() -> None:
    [sent] = write([(1, b"back")])
    with pytest.raises(TransferError, match="not authentic"):
        PeerChannel(MemoryStream(sent), ONE, TWO).receive(40, LATER)


def test_a_length_is_checked_before_anything_is_read() -> None:
    stream = MemoryStream(HEAD.pack(41, 1) + bytes(60))
    with pytest.raises(TransferError, match="41 bytes, at most 40"):
        PeerChannel(stream, TWO, ONE).receive(40, LATER)
    assert len(stream.source) == 60


@settings(max_examples=300)
@given(raw=st.binary(max_size=200), magic=st.booleans())
def test_fuzzed_bytes_never_pass_a_handshake(raw: bytes, magic: bool) -> None:
    raw = MAGIC + raw if magic else raw
    for shake in (open_channel, accept_channel):
        with pytest.raises(TransferError):
            shake(MemoryStream(raw), KEY, LATER)


def test_nothing_is_proved_to_a_client_that_proves_nothing() -> None:
    stream = MemoryStream(MAGIC + bytes(NONCE + PROOF))
    with pytest.raises(TransferError, match="another secret"):
        accept_channel(stream, KEY, LATER)
    assert len(stream.written) == len(MAGIC) + NONCE


def shake(ours: bytes, theirs: bytes) -> tuple[object, object]:
    """What both sides of a handshake with these keys make of it."""
    left, right = socket.socketpair()
    found: dict[str, object] = {}

    def run(name: str, line: socket.socket, stream: PeerStream, key: bytes) -> None:
        work = open_channel if name == "client" else accept_channel
        try:
            found[name] = work(stream, key, 1e6 + 60)
        except TransferError as error:
            found[name] = error
            line.close()

    with left, right:
        clock = lambda: 1e6  # noqa: E731
        pairs = (("client", left, ours), ("server", right, theirs))
        threads = [
            Thread(target=run, args=(name, line, SocketStream(line, clock), key))
            for name, line, key in pairs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if isinstance(found["client"], PeerChannel) and isinstance(found["server"], PeerChannel):
            found["client"].send(3, b"up", end=LATER)
            assert found["server"].receive(9, 1e6 + 60) == (3, b"up")
            found["server"].send(4, b"down", end=LATER)
            assert found["client"].receive(9, 1e6 + 60) == (4, b"down")
    return found["client"], found["server"]


def test_both_sides_prove_the_secret() -> None:
    client, server = shake(KEY, KEY)
    assert isinstance(client, PeerChannel) and isinstance(server, PeerChannel)
    client, server = shake(KEY, ONE)
    assert isinstance(client, TransferError) and client.cause == "secret"
    assert isinstance(server, TransferError) and server.cause == "secret"


def test_a_server_without_the_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot send the client's own proof back."""
    monkeypatch.setattr(channels, "token_bytes", lambda count: bytes(count))
    proof = channels._prove(KEY, b"client", bytes(NONCE), bytes(NONCE))
    stream = MemoryStream(MAGIC + bytes(NONCE) + proof)
    with pytest.raises(TransferError, match="it has another secret"):
        open_channel(stream, KEY, LATER)
    assert stream.written.endswith(proof)


def test_a_stream_waits_no_longer_than_it_may() -> None:
    left, right = socket.socketpair()
    with left, right:
        with pytest.raises(TransferError) as slow:
            SocketStream(left, lambda: 5.0).read(1, 5.0)
        assert slow.value.cause == "slow"
        right.close()
        with pytest.raises(TransferError) as lost:
            SocketStream(left, lambda: 5.0).read(1, 65.0)
        assert lost.value.cause == "lost"
