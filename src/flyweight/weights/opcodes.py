"""The pickle inside a PyTorch checkpoint, read as data: tensors, their storages, and containers.

No pickle module is used.  Invariant: an opcode or a global outside the tables below is a
`CheckpointError` that names it, called or not; nothing is imported or run, and what is made is
bounded by the pickle's length, MOST_PICKLE at most.  Opcodes: Python's pickletools, protocols 2
to 4.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import shown

MOST_PICKLE = 4 << 20  # bytes; a tensor takes 150 of them, the largest published models have 2^10
MOST_STACK = 1 << 16
MOST_PAIRS = 1 << 16
MOST_AXES = 8
MOST_NAME = 1 << 16
STORAGES = {  # torch's storage types: bytes of an element
    "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "DoubleStorage": 8,
    "LongStorage": 8, "IntStorage": 4, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1,
    "BoolStorage": 1,
}  # fmt: skip
REBUILDERS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")
ORDERED = "collections.OrderedDict"
SUBCLASS = "torch._tensor._rebuild_from_type_v2"
GLOBALS = {ORDERED, *(f"torch.{s}" for s in STORAGES), *(f"torch._utils.{r}" for r in REBUILDERS)}


@dataclass(frozen=True, slots=True)
class PickleGlobal:
    """A name that a pickle may hold: one of GLOBALS, never the thing itself."""

    name: str


@dataclass(frozen=True, slots=True)
class TorchStorage:
    """`count` elements of `type` (a key of STORAGES) under a `key` of the file's own."""

    type: str
    key: str
    count: int

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return STORAGES[self.type]


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A view of a storage: its first element, its shape and its strides, in elements."""

    storage: TorchStorage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Mark:
    """What MARK puts on the stack."""


MARK = _Mark()


class PickleRead(NamedTuple):
    """What a pickle holds: None, bool, int, float, str, tuple, list, dict, `PickleGlobal`,
    `TorchStorage` or `PickledTensor`; the byte after it; and its storages by key.
    """

    value: Any
    end: int
    storages: dict[str, TorchStorage]


def read_object(data: bytes, at: int, where: str) -> PickleRead:
    """The pickle that begins at byte `at`; `where` begins the errors."""
    machine = _Machine(data, at, where)
    while machine.running:
        code = machine.take(1)[0]
        step = STEPS.get(code)
        if step is None:
            raise machine.fail(f"opcode {_name(code)} is not allowed in a checkpoint of tensors")
        step(machine)
        if len(machine.stack) > MOST_STACK:
            raise machine.fail(f"more than {MOST_STACK} objects on the stack")
    return PickleRead(machine.pop(), machine.at, machine.storages)


def _name(code: int) -> str:
    return OTHERS.get(code, f"0x{code:02x}")


class _Machine:
    """Stack and memo of one pickle."""

    def __init__(self, data: bytes, at: int, where: str) -> None:
        self.data, self.at, self.where, self.running = data, at, where, True
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, TorchStorage] = {}
        self.pairs = 0  # of every OrderedDict; its list may be used again

    def fail(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: at byte {self.at} of its pickle: {message}")

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise self.fail("it ends early; the file is truncated or damaged")
        self.at += count
        return self.data[self.at - count : self.at]

    def read_number(self, count: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(count), "little", signed=signed)

    def read_line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + MOST_NAME)
        if end < 0:
            raise self.fail("a name that does not end")
        found = self.take(end + 1 - self.at)[:-1]
        return found.decode("utf-8", "backslashreplace")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is MARK:
            raise self.fail("nothing is left on the stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        """The top of the stack, which stays."""
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise self.fail(f"a {kind.__name__} was expected on the stack")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        """Pops everything above the last mark, and the mark."""
        for i in range(len(self.stack) - 1, -1, -1):
            if self.stack[i] is MARK:
                found = self.stack[i + 1 :]
                del self.stack[i:]
                return found
        raise self.fail("no mark on the stack")

    def fill(self, pairs: list[Any]) -> None:
        """Keys and values, one after the other, into the dict below them."""
        if len(pairs) % 2:
            raise self.fail("a key without a value")
        into = self.top(dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, str | int):
                raise self.fail(f"a key is {shown(key)}; text or a number expected")
            if key in into:
                raise self.fail(f"the key {shown(key)} appears twice")
            into[key] = value


def _global(m: _Machine) -> None:
    _push_global(m, m.read_line(), m.read_line())


def _stack_global(m: _Machine) -> None:
    name, module = m.pop(), m.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise m.fail(f"a global of {shown(module)} and {shown(name)}")
    _push_global(m, module, name)


def _inst(m: _Machine) -> None:
    """A call that names what it calls: the name is refused, or else the opcode."""
    _push_global(m, m.read_line(), m.read_line())
    raise m.fail("opcode INST is not allowed in a checkpoint of tensors")


def _push_global(m: _Machine, module: str, name: str) -> None:
    full = f"{module}.{name}"
    if full == SUBCLASS:
        raise m.fail(
            f"it names {shown(full)}: tensors of classes of a library, as torchao's; save the "
            "model as safetensors (transformers 5 does), or dequantised"
        )
    if full not in GLOBALS:
        raise m.fail(
            f"it names {shown(full)}, which a checkpoint of tensors does not need; allowed: "
            f"{ORDERED}, torch's storages and torch._utils' {', '.join(REBUILDERS)}"
        )
    m.push(PickleGlobal(full))


def _persistent(m: _Machine) -> None:
    """A storage: ("storage", its type, key, device, count[, no view of another])."""
    found = m.pop()
    known = isinstance(found, tuple) and len(found) in (5, 6) and found[0] == "storage"
    kind = found[1] if known else None
    name = kind.name.removeprefix("torch.") if isinstance(kind, PickleGlobal) else ""
    if name not in STORAGES or not isinstance(found[2], str) or not _is_natural(found[4]):
        raise m.fail(f"a persistent id that is no storage: {shown(found)}")
    if len(found) == 6 and found[5] is not None:
        raise m.fail("a storage that is a view of another one")
    storage = TorchStorage(name, found[2], found[4])
    m.storages[storage.key] = storage
    m.push(storage)


def _reduce(m: _Machine) -> None:
    """A call, of one of the few that are known."""
    args, called = m.pop(), m.pop()
    if not isinstance(called, PickleGlobal) or not isinstance(args, tuple):
        raise m.fail(f"a call of {shown(called)}")
    name = called.name.removeprefix("torch._utils.")
    if called.name == ORDERED:
        m.push(_make_ordered(m, args))
    elif name in ("_rebuild_tensor", "_rebuild_tensor_v2") and len(args) >= 4:
        m.push(_make_tensor(m, args))
    elif name == "_rebuild_parameter" and args and isinstance(args[0], PickledTensor):
        m.push(args[0])
    else:
        raise m.fail(f"a call of {called.name} with {len(args)} arguments")


def _make_ordered(m: _Machine, args: tuple[Any, ...]) -> dict[Any, Any]:
    """An empty dict, or one of a list of pairs."""
    pairs = args[0] if args else []
    if len(args) > 1 or not isinstance(pairs, list):
        raise m.fail("an OrderedDict of something other than pairs")
    m.pairs += len(pairs)
    if m.pairs > MOST_PAIRS:
        raise m.fail(f"OrderedDicts of more than {MOST_PAIRS} pairs")
    m.push({})
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise m.fail("an OrderedDict of something other than pairs")
        m.fill([*pair])
    found: dict[Any, Any] = m.pop()
    return found


def _make_tensor(m: _Machine, args: tuple[Any, ...]) -> PickledTensor:
    storage, offset, shape, strides = args[:4]
    sizes = all(
        isinstance(x, tuple) and len(x) <= MOST_AXES and all(map(_is_natural, x))
        for x in (shape, strides)
    )
    if not isinstance(storage, TorchStorage) or not _is_natural(offset) or not sizes:
        raise m.fail(f"a tensor of {shown(args[:4])}")
    if len(shape) != len(strides):
        raise m.fail(f"a tensor of {len(shape)} axes with {len(strides)} strides")
    return PickledTensor(storage, offset, shape, strides)


def _is_natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _text(m: _Machine, count: int) -> None:
    try:
        m.push(m.take(count).decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        raise m.fail("text that is not valid UTF-8") from None


def _recall(m: _Machine, key: int) -> None:
    if key not in m.memo:
        raise m.fail(f"memo {key} was never written")
    m.push(m.memo[key])


def _remember(m: _Machine, key: int) -> None:
    value = m.pop()
    m.memo[key] = value
    m.push(value)


def _memoize(m: _Machine) -> None:
    _remember(m, len(m.memo))


def _tuple(m: _Machine, count: int) -> None:
    m.push(tuple(reversed([m.pop() for _ in range(count)])))


def _append(m: _Machine, values: list[Any]) -> None:
    m.top(list).extend(values)


def _pair(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    m.fill([key, value])


def _build(m: _Machine) -> None:
    """Attributes of a dict (a state dict's `_metadata`), which say nothing of its tensors."""
    m.pop()
    m.top(dict)


def _stop(m: _Machine) -> None:
    m.running = False


STEPS: dict[int, Callable[[_Machine], object]] = {
    0x80: lambda m: m.take(1),  # PROTO
    ord("c"): _global,
    ord("Q"): _persistent,
    ord("R"): _reduce,
    ord("b"): _build,
    ord("."): _stop,
    ord("("): lambda m: m.push(MARK),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: m.push(m.read_number(1)),
    ord("M"): lambda m: m.push(m.read_number(2)),
    ord("J"): lambda m: m.push(m.read_number(4, signed=True)),
    0x8A: lambda m: m.push(m.read_number(m.read_number(1), signed=True)),
    ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    ord("X"): lambda m: _text(m, m.read_number(4)),
    ord("U"): lambda m: _text(m, m.read_number(1)),  # Python 2's
    ord(")"): lambda m: m.push(()),
    ord("]"): lambda m: m.push([]),
    ord("}"): lambda m: m.push({}),
    0x85: lambda m: _tuple(m, 1),
    0x86: lambda m: _tuple(m, 2),
    0x87: lambda m: _tuple(m, 3),
    ord("t"): lambda m: m.push(tuple(m.pop_to_mark())),
    ord("a"): lambda m: _append(m, [m.pop()]),
    ord("e"): lambda m: _append(m, m.pop_to_mark()),
    ord("s"): _pair,
    ord("u"): lambda m: m.fill(m.pop_to_mark()),
    ord("q"): lambda m: _remember(m, m.read_number(1)),
    ord("r"): lambda m: _remember(m, m.read_number(4)),
    ord("h"): lambda m: _recall(m, m.read_number(1)),
    ord("j"): lambda m: _recall(m, m.read_number(4)),
    ord("i"): _inst,
    0x8C: lambda m: _text(m, m.read_number(1)),  # protocol 4
    0x93: _stack_global,
    0x94: _memoize,
    0x95: lambda m: m.take(8),  # FRAME
}
OTHERS = {  # names of opcodes that are refused
    0x81: "NEWOBJ", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x8B: "LONG4", 0x8D: "BINUNICODE8",
    0x8E: "BINBYTES8", 0x8F: "EMPTY_SET", 0x90: "ADDITEMS", 0x91: "FROZENSET", 0x92: "NEWOBJ_EX",
    0x96: "BYTEARRAY8", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER", ord("o"): "OBJ",
    ord("P"): "PERSID", ord("V"): "UNICODE", ord("S"): "STRING", ord("T"): "BINSTRING",
    ord("I"): "INT", ord("L"): "LONG", ord("F"): "FLOAT", ord("p"): "PUT", ord("g"): "GET",
    ord("l"): "LIST", ord("d"): "DICT", ord("0"): "POP", ord("1"): "POP_MARK", ord("2"): "DUP",
    ord("B"): "BINBYTES", ord("C"): "SHORT_BINBYTES",
}  # fmt: skip
