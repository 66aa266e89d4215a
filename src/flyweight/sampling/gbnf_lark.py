"""GBNF written as the Lark that the grammar engine reads, with the same meaning.

Invariant: the engine's lexer takes the longest word that any terminal makes and forgets the shorter
ones, which GBNF, a grammar of single characters, does not mean.  So a terminal here is one
character, or a word of which `sampling.gbnf_words` knows that taking the longest loses no text.
"""

from flyweight.sampling.gbnf import Token, read
from flyweight.sampling.gbnf_flat import Rule, Symbol, Word, flattened, often, spelled
from flyweight.sampling.gbnf_words import with_words

SOMETHING = "/(?s:.+)/"


def lark(text: str) -> str:
    """A GBNF grammar as Lark.  Raises `RequestError`."""
    return written(with_words(flattened(read(text))))


def written(rules: dict[int, Rule]) -> str:
    """Rules, that of number 0 being the whole text."""
    terminals: dict[str, str] = {}
    lines = ["start: r0"]
    for number, rule in rules.items():
        rows = (" ".join(_symbol(one, terminals) for one in row) for row in rule.rows)
        options, mark = " | ".join(rows), often(rule)
        lines.append(f"r{number}: " + (f"({options}){mark}" if mark else options))
    lines += [f"{name}: {regex}" for regex, name in terminals.items()]
    return "\n".join(lines) + "\n"


def _symbol(symbol: Symbol, terminals: dict[str, str]) -> str:
    if isinstance(symbol, int):
        return f"r{symbol}"
    if isinstance(symbol, Token):
        return symbol.spelling
    regex = f"/{symbol.regex if isinstance(symbol, Word) else spelled(symbol)}/"
    if isinstance(symbol, Word) and symbol.empty:
        regex += f" & {SOMETHING}"  # the rule around it may be nothing, a terminal must not
    return terminals.setdefault(regex, f"T{len(terminals)}")
