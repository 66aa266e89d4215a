"""A model built by hand that copies from far back: two layers of one head, an induction head.

The residual of a token is [its code, the code of the token before it, the answer's code, ones].
Layer 1 attends to the position before (ones, turned by one position more than rope does) and
copies its code.  Layer 2 looks for the position whose earlier token is this token, and copies its
own code into the answer: after a second "A" comes what followed the first.  Rope's fast pairs see
positions, its slow ones codes.
"""

import numpy as np

from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.models.registry import FAMILIES
from flyweight.ops.base import Ops
from flyweight.spec import Files
from flyweight.wire import F32

CODE, ONES, HEAD, VOCAB = 64, 16, 128, 512
HIDDEN = 3 * CODE + ONES
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": HEAD,
    "vocab_size": VOCAB,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e12,
    "tie_word_embeddings": False,
}
SLOW = HEAD // 4  # pairs from here on turn by less than 0.01 over the context
TOKEN, BEFORE, ANSWER = (slice(i * CODE, (i + 1) * CODE) for i in range(3))
ALWAYS = slice(3 * CODE, HIDDEN)


def _pairs(first: int, count: int) -> np.ndarray:
    """Elements of a head that are the first and the second half of `count` pairs."""
    return np.concatenate(
        [np.arange(first, first + count), np.arange(first, first + count) + HEAD // 2]
    )


def _attention(layer: int, fast: int) -> tuple[F32, F32, F32, F32]:
    q, k = np.zeros((HEAD, HIDDEN), np.float32), np.zeros((HEAD, HIDDEN), np.float32)
    v, out = np.zeros((HEAD, HIDDEN), np.float32), np.zeros((HIDDEN, HEAD), np.float32)
    v[np.arange(CODE), np.arange(CODE)] = 1  # the code of a token
    if layer == 0:
        angle = CONFIG["rope_theta"] ** (-2.0 * np.arange(fast) / HEAD)  # type: ignore[operator]
        both = _pairs(0, fast)
        k[both[:fast], ALWAYS] = 1 / ONES
        q[both[:fast], ALWAYS] = 200 * np.cos(-angle)[:, None] / ONES
        q[both[fast:], ALWAYS] = 200 * np.sin(-angle)[:, None] / ONES
        out[np.arange(BEFORE.start, BEFORE.stop), np.arange(CODE)] = 1
    else:
        slow = _pairs(SLOW, CODE // 2)
        q[slow, np.arange(TOKEN.start, TOKEN.stop)] = 16
        k[slow, np.arange(BEFORE.start, BEFORE.stop)] = 1
        out[np.arange(ANSWER.start, ANSWER.stop), np.arange(CODE)] = 1
    return q, k, v, out


def make_codes() -> F32:
    """[VOCAB, CODE] of -1 and 1."""
    return np.random.default_rng(5).choice(np.float32([-1, 1]), (VOCAB, CODE)).astype(np.float32)


def make_model(ops: Ops, fast: int) -> Decoder:
    """`fast`: pairs of rope that tell positions, at most SLOW; with more, the scores of neighbours
    differ by a smaller part.
    """
    family = FAMILIES["llama"]
    spec, codes = family.read_spec(CONFIG), make_codes()
    embed = np.zeros((VOCAB, HIDDEN), np.float32)
    embed[:, TOKEN], embed[:, ALWAYS] = codes, 1
    head = np.zeros((VOCAB, HIDDEN), np.float32)
    head[:, ANSWER] = codes
    weights: dict[str, object] = {}
    for slot in family.plan(spec, Files()).slots:
        if slot.kind == "vector":
            weights[slot.name] = np.ones(slot.shape, np.float32)
            continue
        matrix = np.zeros(slot.shape, np.float32)
        if slot.name in ("embed", "head"):
            matrix = embed if slot.name == "embed" else head
        elif "qkv" in slot.name:
            matrix = np.concatenate(_attention(int(slot.name.split(".")[1]), fast)[:3])
        elif "out" in slot.name or slot.name.endswith(".o"):
            matrix = _attention(int(slot.name.split(".")[1]), fast)[3]
        assert matrix.shape == slot.shape, slot.name
        weights[slot.name] = ops.pack(slot.shape, [matrix])
    return Decoder(Parts(ops, SingleProcess(), spec, weights), spec.context)


def make_needles(count: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, rows that ask, and the tokens that are right there: `count` pairs spread over a text
    of `length` other tokens; then the first of each pair, which had one meaning.
    """
    rng = np.random.default_rng(7)
    names = rng.permutation(VOCAB)
    requested, reported, others = names[:count], names[count : 2 * count], names[2 * count :]
    text = rng.choice(others, length)
    places = np.linspace(2, length - 2, count).astype(int) // 2 * 2
    text[places], text[places + 1] = requested, reported
    tokens = np.concatenate(
        [text, np.stack([requested, rng.choice(others, count)], axis=1).reshape(-1)]
    )
    return tokens, length + 2 * np.arange(count), reported
