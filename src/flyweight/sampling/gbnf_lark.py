"""GBNF written as the Lark that the grammar engine reads, with the same meaning.

Invariant: the engine's lexer takes the longest word that any terminal makes and forgets the shorter
ones, which GBNF, a grammar of single characters, does not mean.  So a terminal here is one
character, or a word of which `sampling.gbnf_words` knows that taking the longest loses no text.
"""

from collections.abc import Iterator

from flyweight.errors import RequestError
from flyweight.params.structured import NAME
from flyweight.sampling.gbnf import GbnfToken, read_gbnf
from flyweight.sampling.gbnf_flat import (
    FlatRule,
    FlatWord,
    Symbol,
    flatten_rules,
    get_mark,
    spell_class,
)
from flyweight.sampling.gbnf_words import form_words

# The engine compiles what a rule names within the rule: 1,500 of them fit 8 MB of stack, 2,000 end
# the process.
DEEPEST = 500
SOMETHING = "/(?s:.+)/"


def translate_gbnf(text: str) -> str:
    """A GBNF grammar as Lark.  Raises `RequestError`."""
    rules = form_words(flatten_rules(read_gbnf(text)))
    deepest = _measure_depth(rules)
    if deepest > DEEPEST:
        what = f"{deepest} rules lead each to the next; allowed: at most {DEEPEST}"
        raise RequestError(f": {what}", f"{NAME}.grammar")
    return write_rules(rules)


def _measure_depth(rules: dict[int, FlatRule]) -> int:
    """How deep it goes for who follows each rule's symbols in turn, and no rule twice."""
    seen, deepest = {0}, 1
    path = [_list_names(rules[0])]
    while path:
        number = next(path[-1], None)
        if number is None:
            path.pop()
        elif number not in seen:
            seen.add(number)
            path.append(_list_names(rules[number]))
            deepest = max(deepest, len(path))
    return deepest


def _list_names(rule: FlatRule) -> Iterator[int]:
    return (one for row in rule.rows for one in row if isinstance(one, int))


def write_rules(rules: dict[int, FlatRule]) -> str:
    """Rules, that of number 0 being the whole text."""
    terminals: dict[str, str] = {}
    lines = ["start: r0"]
    for number, rule in rules.items():
        rows = (" ".join(_write_symbol(one, terminals) for one in row) for row in rule.rows)
        options, mark = " | ".join(rows), get_mark(rule)
        lines.append(f"r{number}: " + (f"({options}){mark}" if mark else options))
    lines += [f"{name}: {regex}" for regex, name in terminals.items()]
    return "\n".join(lines) + "\n"


def _write_symbol(symbol: Symbol, terminals: dict[str, str]) -> str:
    if isinstance(symbol, int):
        return f"r{symbol}"
    if isinstance(symbol, GbnfToken):
        return symbol.spelling
    regex = f"/{symbol.regex if isinstance(symbol, FlatWord) else spell_class(symbol)}/"
    if isinstance(symbol, FlatWord) and symbol.empty:
        regex += f" & {SOMETHING}"  # the rule around it may be nothing, a terminal must not
    return terminals.setdefault(regex, f"T{len(terminals)}")
