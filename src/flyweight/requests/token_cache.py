"""Remembers the token ids of prompts that were read before, for each tenant by itself.

Invariant: the ids are those that the codec made of the same text with the same options.  A tenant
never finds what another's prompt has left, so that no time reveals it.  Bytes are bounded; what the
tenant that holds most used longest ago goes first, so a busy tenant drops its own.  Texts are not
kept, only their hashes.  Knows no model and no HTTP.
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
        self._tenants: dict[str, _Entries] = {}
        self._lock = Lock()

    def find(self, key: bytes, tenant: str = "") -> list[int] | None:
        with self._lock:
            own = self._tenants.get(tenant)
            found = None if own is None else own.find(key)
            self._on_query(found is not None)
        return None if found is None else found.tolist()

    def keep(self, key: bytes, ids: Sequence[int], tenant: str = "") -> None:
        """Keeps ids; those that are too many for the cache are not kept."""
        entry = array("i", ids)
        if count_bytes(entry) > self.most:
            return
        with self._lock:
            own = self._tenants.setdefault(tenant, _Entries())
            self.held += own.put(key, entry)
            while self.held > self.most:
                largest = max(self._tenants, key=lambda one: self._tenants[one].held)
                self.held -= self._tenants[largest].drop_oldest()
                if not self._tenants[largest].held:
                    del self._tenants[largest]


class _Entries:
    """What one tenant holds, and its bytes; that used longest ago is the first."""

    __slots__ = ("_ids", "held")

    def __init__(self) -> None:
        self.held = 0
        self._ids: OrderedDict[bytes, array[int]] = OrderedDict()

    def find(self, key: bytes) -> "array[int] | None":
        found = self._ids.get(key)
        if found is not None:
            self._ids.move_to_end(key)
        return found

    def put(self, key: bytes, ids: "array[int]") -> int:
        """How many bytes more are held."""
        before = self._ids.pop(key, None)  # of a thread that read the same text
        more = count_bytes(ids) - (0 if before is None else count_bytes(before))
        self._ids[key] = ids
        self.held += more
        return more

    def drop_oldest(self) -> int:
        """How many bytes less are held."""
        _, oldest = self._ids.popitem(last=False)
        less = count_bytes(oldest)
        self.held -= less
        return less


class CachedCodec:
    """A codec that looks in a cache first.  Ids are found again with the same `salt` alone; all of
    a tenant's count as its own.
    """

    def __init__(self, codec: Codec, cache: TokenCache, tenant: str, salt: str = "") -> None:
        self._codec, self._cache, self._tenant = codec, cache, tenant
        owner = f"{len(tenant)}:{tenant}{salt}"
        self._owner = owner.encode("utf-8", "surrogatepass")

    @property
    def vocab_size(self) -> int:
        return self._codec.vocab_size

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        if len(text) < SHORTEST:
            return self._codec.encode(text, add_special, parse_special)
        key = make_key(self._owner, text, add_special, parse_special)
        found = self._cache.find(key, self._tenant)
        if found is None:
            found = self._codec.encode(text, add_special, parse_special)
            self._cache.keep(key, found, self._tenant)
        return found

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return self._codec.decode(ids, skip_special)

    def stream(self, context: Sequence[int], skip_special: bool) -> TextStream:
        return self._codec.stream(context, skip_special)

    def token_bytes(self, token: int, special: bool) -> bytes:
        return self._codec.token_bytes(token, special)

    def piece(self, token: int) -> str:
        return self._codec.piece(token)


def make_key(owner: bytes, text: str, add_special: bool, parse_special: bool) -> bytes:
    """No two different prompts have one key: the owner's length separates it from the text."""
    head = b"%d:%d:%d:" % (len(owner), add_special, parse_special)
    return sha256(head + owner + text.encode("utf-8", "surrogatepass")).digest()


def count_bytes(ids: "array[int]") -> int:
    return ids.itemsize * len(ids) + OVERHEAD
