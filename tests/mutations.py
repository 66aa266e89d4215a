"""Requests gone wrong: bodies that a route takes, with parts of them replaced by what no client
should send, and bytes that are no JSON at all.

Invariant: a generator with the same seed makes the same requests.  Knows routes by their bodies'
fields, not what they mean.
"""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

TALK = [{"role": "user", "content": "Tell me about a cat."}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
NAMED = {"model": "talker.gguf"}  # what must be named in some dialects
SEEDS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": TALK, "max_tokens": 2},
        {"messages": TALK, "max_tokens": 2, "stream": True, "logprobs": True, "top_logprobs": 2},
        {"messages": TALK, "max_tokens": 2, "tools": [TOOL], "tool_choice": "auto"},
        {"messages": TALK, "max_tokens": 2, "chat_template_kwargs": {"a": True}},
        {
            "messages": TALK,
            "max_tokens": 2,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            },
        },
    ],
    "/v1/completions": [
        {"prompt": "One day", "max_tokens": 2, "n": 2, "temperature": 1.0, "seed": 1},
        {"prompt": ["One", "Two"], "max_tokens": 2, "logprobs": 2, "echo": True},
        {"prompt": [1, 2, 3], "max_tokens": 2, "logit_bias": {"5": 1.0}, "stop": ["x"]},
        {"prompt": [[1], [2]], "max_tokens": 2, "stream": True, "best_of": 2, "n": 1},
        {"prompt": "a", "max_tokens": 2, "stop_token_ids": [3], "allowed_token_ids": [4, 5]},
        {"prompt": "a", "max_tokens": 2, "bad_words": ["cat"], "repetition_penalty": 1.1},
        {"prompt": "a", "max_tokens": 2, "dry_multiplier": 1.0, "dry_sequence_breakers": ["x"]},
        {"prompt": "a", "max_tokens": 2, "mirostat": 2, "priority": 1, "cache_salt": "s"},
        {"prompt": "a", "max_tokens": 2, "prompt_logprobs": 1, "min_tokens": 1, "user": "u"},
        {"prompt": "a", "max_tokens": 2, "use_beam_search": True, "n": 3, "length_penalty": 0.5},
        {
            "prompt": "One day",
            "max_tokens": 4,
            "truncate_prompt_tokens": 2,
            "logprobs": 1,
            "truncation_side": "right",
            "stream": True,
            "stream_interval": 2,
            "echo": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "request_id": "r",
        },
    ],
    "/v1/chat/completions/input_tokens": [{"messages": TALK}],
    "/v1/responses": [{"input": "a", "max_output_tokens": 2}],
    "/v1/responses/input_tokens": [{"input": "a"}],
    "/v1/embeddings": [{"input": ["a", "b"]}],
    "/v1/messages": [{**NAMED, "messages": TALK, "max_tokens": 2}],
    "/v1/messages/count_tokens": [{**NAMED, "messages": TALK}],
    "/v1/models/load": [NAMED],
    "/v1/models/unload": [{"model": "another"}],
    "/completion": [{"prompt": "a", "n_predict": 2, "stop": ["x"]}],
    "/infill": [{"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]}],
    "/tokenize": [{"content": "a"}, {"prompt": "a", "add_special_tokens": False}],
    "/detokenize": [{"tokens": [3, 4]}],
    "/apply-template": [{"messages": TALK}],
    "/api/chat": [{**NAMED, "messages": TALK, "stream": False, "options": {"num_predict": 2}}],
    "/api/generate": [{**NAMED, "prompt": "a", "stream": False, "options": {"num_predict": 2}}],
    "/api/embed": [{**NAMED, "input": "a"}],
    "/api/embeddings": [{**NAMED, "prompt": "a"}],
    "/api/pull": [NAMED],
    "/api/show": [{**NAMED, "verbose": False}],
    "/generate": [{"prompt": "a", "max_tokens": 2}],
}
NUMBERS = [
    0, -1, 1, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30,
    0.5, -0.0, 1e-320, 1e308, 129, 1025, 100_000,
]  # fmt: skip
TEXTS = [
    "", " ", "\0", "\x1b[31m", "é", "🔑", "\u202e", "a" * 5000, "%s%n", "../../etc", "{{7}}",
    "{% for i in range(10**9) %}x{% endfor %}", "<|im_start|>", "</s>", "null", "\n" * 50, "(a+)+$",
    "data: [DONE]\n\n", "\ufffd", "\u0300" * 300, "file:///etc/passwd", "http://127.0.0.1/",
]  # fmt: skip
RAW = [
    b"", b"{", b"[]", b"null", b"1", b'"x"', b"{}", b"\xff\xfe", b"\xef\xbb\xbf{}", b"{}{}",
    b'{"prompt": NaN}', b'{"prompt": "x", "temperature": Infinity}', b'{"prompt": "\\ud800"}',
    b'{"prompt": "\\udc00\\ud800"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt":"x","prompt":"y"}',
    b'{"prompt": "x", "seed": ' + b"9" * 1_000_000 + b"}", b'{"prompt": "x", "seed": 1e99999}',
    b'{"prompt": ' + b"[" * 100_000, b'{"a":' * 50_000, b'{"prompt": "x", "temperature": 0x10}',
    b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"prompt": [' + b"{}," * 50_000 + b"{}]}",
    b'{"logit_bias": {' + b",".join(b'"%d":9' % i for i in range(5000)) + b'}, "prompt": "x"}',
    b"{" + b",".join(b'"%d":9' % i for i in range(5000)) + b"}", b" " * 100_000, b"\0" * 1000,
    b'{"messages": [' + b"{}," * 50_000 + b"{}]}", b'{"prompt": [' + b"1," * 260_000 + b"1]}",
    b'{"stop": [' + b'"a",' * 50_000 + b'"a"], "prompt": "x"}',
    b'{"prompt": "x", "allowed_token_ids": [' + b"1," * 100_000 + b"1]}",
]  # fmt: skip
LARGEST = 16 << 20  # bytes of a list that was repeated: a body is refused from the half on


class Mutator:
    """An endless supply of requests, each a path and bytes."""

    def __init__(self, seed: int, fields: dict[str, list[str]]) -> None:
        self.draw = Random(seed)
        self.fields = fields  # names a route's body may have

    def requests(self) -> Iterator[tuple[str, bytes]]:
        paths = sorted(self.fields)
        while True:
            path = self.draw.choice(paths)
            if self.draw.random() < 0.05:
                yield path, self.draw.choice(RAW)
                continue
            yield path, self._bytes(self._body(path))

    def _body(self, path: str) -> Any:
        """A body that a route takes, with one to three faults: of many only the first counts."""
        body: Any = json.loads(json.dumps(self.draw.choice(SEEDS.get(path, [{}]))))
        for _ in range(self.draw.choice([1, 1, 1, 2, 3])):
            names = self.fields[path]
            if isinstance(body, dict) and names and self.draw.random() < 0.3:
                body[self.draw.choice(names)] = self._value()
            else:
                body = self._spoilt(body)
        return body

    def _spoilt(self, value: Any) -> Any:
        """`value` with one part of it, however deep, changed."""
        if isinstance(value, dict) and value and self.draw.random() < 0.95:
            name = self.draw.choice(sorted(value))
            draw = self.draw.random()
            if draw < 0.1:
                del value[name]
            elif draw < 0.2:
                value[self._text()[:50]] = value.pop(name)
            else:
                value[name] = self._spoilt(value[name])
            return value
        if isinstance(value, list) and value and self.draw.random() < 0.6:
            at = self.draw.randrange(len(value))
            if self.draw.random() < 0.2:
                times = self.draw.choice([2, 30, 1100])
                return value * times if times * len(json.dumps(value)) < LARGEST else value
            value[at] = self._spoilt(value[at])
            return value
        return self._alike(value) if self.draw.random() < 0.5 else self._value()

    def _alike(self, value: Any) -> Any:
        """Another value of the same kind, which may well be taken."""
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            return self.draw.choice([0, 1, 2, 3, 0.5])
        return self._text() if isinstance(value, str) else self._value()

    def _value(self, depth: int = 0) -> Any:
        kind = self.draw.randrange(8 if depth < 3 else 6)
        if kind == 0:
            return self.draw.choice([None, True, False])
        if kind in (1, 2):
            return self.draw.choice(NUMBERS)
        if kind in (3, 4):
            return self._text()
        if kind == 5:
            return self.draw.choice([[], {}, "", 0])
        count = self.draw.choice([1, 2, 5, 70])
        if kind == 6:
            return [self._value(depth + 1) for _ in range(count)]
        return {self._text()[:60]: self._value(depth + 1) for _ in range(count)}

    def _text(self) -> str:
        if self.draw.random() < 0.3:
            return "".join(chr(self.draw.randrange(1, 0x3000)) for _ in range(20))
        return self.draw.choice(TEXTS)

    def _bytes(self, body: Any) -> bytes:
        raw = json.dumps(body, ensure_ascii=self.draw.random() < 0.5).encode()
        if self.draw.random() < 0.05:
            at = self.draw.randrange(len(raw) + 1)
            raw = raw[:at] + self.draw.randbytes(self.draw.randrange(4)) + raw[at + 1 :]
        return raw
