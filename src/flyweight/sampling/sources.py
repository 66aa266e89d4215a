"""Constraints as the grammar engine reads them: from `StructuredOutputs` to its texts.

Invariant: a text accepts what the constraint does and nothing else; of a schema whose finished
answer is checked, also what the constraint would not.  The engine's lexer takes the longest word
that any terminal makes and forgets the shorter ones, which GBNF, a grammar of single characters,
does not mean: a terminal made of GBNF is one character, or a word of which `sampling.gbnf_words`
knows that taking the longest loses no text.  Knows no vocabulary.
"""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flyweight.errors import RequestError
from flyweight.params.structured import NAME, StructuredOutputs
from flyweight.sampling.gbnf import GbnfToken, is_gbnf, read_gbnf
from flyweight.sampling.gbnf_flat import (
    FlatRule,
    FlatWord,
    Symbol,
    flatten_rules,
    get_mark,
    spell_class,
)
from flyweight.sampling.gbnf_words import form_words
from flyweight.sampling.levels import check_rules
from flyweight.sampling.patterns import find_long_count
from flyweight.sampling.schema import prepare_schema
from flyweight.sampling.schema_loosening import list_looser

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# Escapes in strings.  With \u the engine takes a key for another than it is ("\u0061" for no "a");
# without, it leaves characters that can only be written so out of what a schema says.
PLAIN_ESCAPES, ALL_ESCAPES = 'nrbtf\\"', 'nrbtf\\"u'
CONTROL = re.compile(r"\\u00(?:[01].|7f)|\\x(?:[01].|7f)|\\u\{0*(?:[01]?.|7f)\}|\\\\v|\x7f", re.I)
NAMING = ('"properties"', '"patternProperties"')
# The engine compiles what a rule names within the rule: 1,500 of them fit 8 MB of stack, 2,000 end
# the process.
DEEPEST_RULES = 500
SOMETHING = "/(?s:.+)/"


def list_sources(outputs: StructuredOutputs) -> Iterator[str]:
    """The constraint as the grammar engine reads it: one text, or of a schema whose answer is
    checked, texts that enforce less and less of it.  Raises `RequestError`.
    """
    from llguidance import LLMatcher

    kind = outputs.kind
    if kind == "grammar":
        text = str(outputs.grammar)
        text = translate_gbnf(text) if is_gbnf(text) else text
        check_rules(text)
        yield str(LLMatcher.grammar_from_lark(text))
    elif kind == "regex":
        if problem := find_long_count(str(outputs.regex)):
            raise RequestError(f": {problem}", f"{NAME}.regex", code="bad_constraint")
        yield str(LLMatcher.grammar_from_regex(str(outputs.regex)))
    elif kind == "choice":
        listed = "|".join(_spell_literal(one) for one in outputs.choice or ())
        yield str(LLMatcher.grammar_from_regex(f"(?:{listed})"))
    else:
        yield from _list_schema_sources(outputs)


def _list_schema_sources(outputs: StructuredOutputs) -> Iterator[str]:
    from llguidance import LLMatcher

    schema, options = _read_schema(outputs), _make_options(outputs)
    for one in list_looser(schema) if outputs.validated else [prepare_schema(schema)]:
        try:
            text = json.dumps(one, allow_nan=False)
        except ValueError:
            problem = "has a number that no float can hold"
            raise RequestError(problem, f"{NAME}.json", code="bad_constraint") from None
        yield str(LLMatcher.grammar_from_json_schema(text, overrides=options))


def embed_schema(schema: dict[str, Any] | bool) -> str:
    """A schema within a Lark grammar: `%json` and what it takes, checked and tightened as other
    schemas are.  Raises `RequestError`.
    """
    outputs = StructuredOutputs(json=schema)
    return _embed(prepare_schema(schema), outputs)


def embed_constraint(outputs: StructuredOutputs) -> str:
    """The same of a constraint whose kind is JSON, with the options that it has."""
    return _embed(prepare_schema(_read_schema(outputs)), outputs)


def _embed(schema: dict[str, Any], outputs: StructuredOutputs) -> str:
    options = _make_options(outputs)
    return "%json " + json.dumps({**schema, "x-guidance": options}, allow_nan=False)


def _read_schema(outputs: StructuredOutputs) -> Any:
    return {"type": "object"} if outputs.json is None else json.loads(str(outputs.json))


def _make_options(outputs: StructuredOutputs) -> "JsonCompileOptions":
    """White space stands after a comma or a colon only, and never without end: a text whose values
    are finite is.
    """
    blank = "[ ]?" if outputs.whitespace_pattern is None else f"(?:{outputs.whitespace_pattern})"
    if outputs.disable_any_whitespace:
        blank = ""
    return {
        "whitespace_flexible": False,
        "item_separator": f",{blank}",
        "key_separator": f":{blank}",
        "coerce_one_of": False,
        "lenient": False,
        "json_allowed_escapes": _choose_escapes(outputs),
    }


def _choose_escapes(outputs: StructuredOutputs) -> str:
    """The escapes that keep to a schema.  Raises `RequestError` where none do."""
    if outputs.json is None:
        return PLAIN_ESCAPES
    if outputs.validated:  # no text is lost, and a key that was taken for another is found later
        return ALL_ESCAPES
    text = json.dumps(json.loads(str(outputs.json)), ensure_ascii=False)
    if CONTROL.search(text) is None:
        return PLAIN_ESCAPES
    if any(word in text for word in NAMING):
        what = "control characters, in a schema that names properties, are not supported"
        raise RequestError(f": {what}", f"{NAME}.json", code="bad_constraint")
    return ALL_ESCAPES


def _spell_literal(text: str) -> str:
    """A regex that matches the text alone."""
    return re.sub(r"[^A-Za-z0-9_ ]", lambda found: rf"\x{{{ord(found.group()):X}}}", text)


def translate_gbnf(text: str) -> str:
    """A GBNF grammar as Lark.  Raises `RequestError`."""
    rules = form_words(flatten_rules(read_gbnf(text)))
    deepest = _measure_depth(rules)
    if deepest > DEEPEST_RULES:
        what = f"{deepest} rules lead each to the next; allowed: at most {DEEPEST_RULES}"
        raise RequestError(f": {what}", f"{NAME}.grammar", code="bad_constraint")
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
