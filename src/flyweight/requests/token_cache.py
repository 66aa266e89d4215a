"""Remembers the token ids of prompts that were read before, for each tenant by itself.

Invariant: the ids are those that the codec made of the same text with the same options.  A tenant
never finds what another's prompt has left, so that no time reveals it.  Bytes are bounded; what was
used longest ago goes first.  Texts are not kept, only their hashes.  Knows no model and no HTTP.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256
from threading import Lock

from flyweight.text.codec import Codec, TextStream

SHORTEST = 256  # characters of a text: encoding a shorter one takes no longer than finding it
OVERHEAD = 256  # bytes of an entry without its ids, about


class TokenCache:
    """Holds `most` bytes; `on_query` is called with whether ids were found, by one thread at a
    time.
    """

    def __init__(self, most: int, on_query: Callable[[bool], None] = lambda found: None) -> None:
        self.most, self.held = most, 0
        self._on_query = on_query
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: bytes) -> list[int] | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            self._on_query(found is not None)
        return None if found is None else found.tolist()

    def keep(self, key: bytes, ids: Sequence[int]) -> None:
        """Keeps ids; those that are too many for the cache are not kept."""
        entry = array("i", ids)
        size = count_bytes(entry)
        if size > self.most:
            return
        with self._lock:
            before = self._entries.pop(key, None)  # of a thread that read the same text
            if before is not None:
                self.held -= count_bytes(before)
            self._entries[key] = entry
            self.held += size
            while self.held > self.most:
                _, oldest = self._entries.popitem(last=False)
                self.held -= count_bytes(oldest)


class CachedCodec:
    """A codec that looks in a cache first, as one tenant."""

    def __init__(self, codec: Codec, cache: TokenCache, tenant: str) -> None:
        self._codec, self._cache = codec, cache
        self._tenant = tenant.encode("utf-8", "surrogatepass")

    @property
    def vocab_size(self) -> int:
        return self._codec.vocab_size

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        if len(text) < SHORTEST:
            return self._codec.encode(text, add_special, parse_special)
        key = make_key(self._tenant, text, add_special, parse_special)
        found = self._cache.find(key)
        if found is None:
            found = self._codec.encode(text, add_special, parse_special)
            self._cache.keep(key, found)
        return found

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return self._codec.decode(ids, skip_special)

    def stream(self, context: Sequence[int], skip_special: bool) -> TextStream:
        return self._codec.stream(context, skip_special)

    def token_bytes(self, token: int, special: bool) -> bytes:
        return self._codec.token_bytes(token, special)

    def piece(self, token: int) -> str:
        return self._codec.piece(token)


def make_key(tenant: bytes, text: str, add_special: bool, parse_special: bool) -> bytes:
    """No two different prompts have one key: the tenant's length separates it from the text."""
    head = b"%d:%d:%d:" % (len(tenant), add_special, parse_special)
    return sha256(head + tenant + text.encode("utf-8", "surrogatepass")).digest()


def count_bytes(ids: "array[int]") -> int:
    return ids.itemsize * len(ids) + OVERHEAD
