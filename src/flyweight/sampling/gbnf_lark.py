"""GBNF written as the Lark that the grammar engine reads, with the same meaning.

Invariant: the engine's lexer takes the longest word that any terminal makes and forgets the shorter
ones, which GBNF, a grammar of single characters, does not mean.  So a terminal here is one
character.
"""

from flyweight.sampling.gbnf import Chars, Token, read
from flyweight.sampling.gbnf_flat import Rule, Symbol, flattened


def lark(text: str) -> str:
    """A GBNF grammar as Lark.  Raises `RequestError`."""
    return written(flattened(read(text)))


def written(rules: dict[int, Rule]) -> str:
    """Rules, that of number 0 being the whole text."""
    terminals: dict[Symbol, str] = {}
    lines = ["start: r0"]
    for number, rule in rules.items():
        rows = (" ".join(_symbol(one, terminals) for one in row) for row in rule.rows)
        options, often = " | ".join(rows), _often(rule)
        lines.append(f"r{number}: " + (f"({options}){often}" if often else options))
    for symbol, name in terminals.items():
        lines.append(f"{name}: {characters(symbol)}")
    return "\n".join(lines) + "\n"


def characters(symbol: Symbol) -> str:
    """A regex of one character."""
    assert isinstance(symbol, Chars)
    parts = [_escaped(a) if a == b else f"{_escaped(a)}-{_escaped(b)}" for a, b in symbol.ranges]
    return f"/[{''.join(parts)}]/"


def _escaped(code: int) -> str:
    one = chr(code)
    return one if one.isascii() and one.isalnum() else f"\\x{{{code:X}}}"


def _symbol(symbol: Symbol, terminals: dict[Symbol, str]) -> str:
    if isinstance(symbol, int):
        return f"r{symbol}"
    if isinstance(symbol, Token):
        return symbol.spelling
    return terminals.setdefault(symbol, f"T{len(terminals)}")


def _often(rule: Rule) -> str:
    if rule.most is not None:
        return "" if rule.least == rule.most == 1 else f"{{{rule.least},{rule.most}}}"
    return {0: "*", 1: "+"}.get(rule.least, f"{{{rule.least},}}")
