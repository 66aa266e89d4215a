"""What a constraint lets through, said without a model: for tests of schemas and grammars.

Invariant: the answers are those that a sampler's masks enforce, byte by byte.
"""

from collections.abc import Callable, Mapping
from typing import Any

from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.grammar import Compiler, byte_vocabulary


def accepts(schema: Mapping[str, Any] | bool | str, text: str) -> bool:
    """Whether `text` could be the whole answer under a JSON schema.  Raises `RequestError` for a
    schema that is refused.
    """
    return make_acceptor(StructuredOutputs(json=schema))(text)


def make_acceptor(outputs: StructuredOutputs) -> Callable[[str], bool]:
    """The same for any constraint and many texts; what is dear is done once.  Raises
    `RequestError`.
    """
    beginning = Compiler(byte_vocabulary()).compile(outputs)

    def judge(text: str) -> bool:
        matcher, given = beginning.copy(), text.encode("utf-8", "surrogatepass")
        return matcher.take(given) == len(given) and matcher.complete

    return judge
