"""How GBNF is read: what grammars mean, what is refused and where, and what strangers send."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.errors import RequestError
from flyweight.params.structured import LONGEST, StructuredOutputs
from flyweight.sampling.gbnf import DEEPEST, MOST_REPEATS, MOST_RULES, is_gbnf, read_gbnf
from flyweight.sampling.grammar import Compiler, byte_vocabulary
from flyweight.sampling.sources import translate_gbnf
from flyweight.testing import make_acceptor

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*   # the others
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
SUMS = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
ITEMS = 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"\n'
CHESS = r"""
root ::= "1. " turn "\n" ([1-9] [0-9]? ". " turn "\n")*
turn ::= move " " move
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
CODE = r"""
root ::= function+
function ::= type " " name "(" (type " " name ("," " "? type " " name)*)? ") " block
type ::= "int" | "float" | "char"
block ::= "{" space statement* "}" space
statement ::= (
    type " " name " = " sum ";" |
    name " = " sum ";" |
    name "(" (sum ("," space sum)*)? ");" |
    "return " sum ";" |
    "while (" test ") " block |
    "if (" test ") " block ("else " block)?
  ) space
test ::= sum ("==" | "!=" | "<=" | "<" | ">=" | ">") sum
sum ::= factor (" "? [-+] " "? factor)*
factor ::= unary ([*/] unary)*
unary ::= "-" unary | name | number | "(" sum ")" | name "(" sum ")"
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
number ::= [0-9]+
space ::= [ \t\n]*
"""


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= [a-z]+ "end"', ["aend", "endend"], ["end", "ende"]),
        ('root ::= "a"* "ab"', ["ab", "aab"], ["a", "b", "aabb"]),
        ('root ::= [0-9]* "5"', ["5", "155", "55"], ["54", ""]),
        ('root ::= "a" x | "ab" "d"\nx ::= "b" "c"', ["abc", "abd"], ["ab", "abcd"]),
        ('root ::= "if" " " [a-z]+ | [a-z]+ ":"', ["if if", "if:", "iff:"], ["if", "if :"]),
        ('root ::= w ("," w)*\nw ::= "x" | "x,y"', ["x,y", "x,y,x", "x,x"], ["x,", "y"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a", "ab"]),
        ('root ::= "(" root ")" | ""', ["", "(())"], ["(", "(()"]),
        ('root ::= x | "b"\nx ::= "a" x', ["b"], ["ab", "a"]),
        ('root ::= [^"\\\\] "\\"" [\\]\\[^-] [a\\-c] [+--] [--/] [a-]', ['é"^-,.-', '\n"]a+/a'],
         ['""^-,.-', 'é"ab,.-', 'é"^b,.-', 'é"^-.,-', 'é"^-,,b']),
        ('root ::= "\\x41\\u00e9\\U0001F600" [ぁ-ゟ] . [^\\uD800-\\uDFFFa]', ["Aé😀ぁ\nb"],
         ["Aé😀aab", "Aé😀ぁ\na"]),
        ('root ::= "\\xe9" "\\x00"', ["é\0"], ["é"]),
        ('root ::= ("a"{2} | "b"{0}) "c"{1,}{2} "d"{0}', ["aacc", "ccc"], ["acc", "aac", "ccd"]),
        ('root::="a"#b\n\n\n#c\nx-1::=root|\nroot\r\n', ["a"], ["", "aa"]),
        ("ws ::=\n  |\n [ \\t]*\nroot ::= ws", ["", "\t "], ["\n"]),
        (ITEMS, ["- a\n- b\n"], ["- \n", "- a"]),
        (SUMS, ["a+1=2\n", "(x1 *2) /z = ( 3 )\n\nb=b\n"], ["a=", "1a=2\n", "a+1=2"]),
        (CHESS, ["1. e4 e5\n2. Nf3 Nc6\n10. O-O exd8=Q#\n"], ["1. e4\n", "1. e9 e5\n"]),
        (CODE, ['int main() {\n return f(-x)*2;\n}', "char a(int i, float intx) {int1 = int;}",
                "int f() {int i = 1;intx(i, 2);while (a<=b) {if (c!=1) {}else {x(); }}}"],
         ["int main() {return}", "intmain() {}", "int f() {int i;}"]),
        (JSON, ["{}", '{"a": [1,-2.5e10,true,"x\\u00ff\\n"], "": {"b": null }}\n\t'],
         ["[]", '{"a": 01}', '{"a":"\n"}', '{"a":"\\x"}', '{"a":tru}', '{"a"}', '{"a":1,}']),
    ],
)  # fmt: skip
def test_what_grammars_mean(grammar: str, good: list[str], bad: list[str]) -> None:
    judge = make_acceptor(StructuredOutputs(grammar=grammar))
    assert [text for text in good if not judge(text)] == []
    assert [text for text in bad if judge(text)] == []


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a"\n"b"', "line 2: '\"b\"': no rule begins so"),
        ('root ::= "a"\n | "b"', "line 2: '|': no rule begins so"),
        ('root ::= "a" b ::= "c"', "line 1: 'b': a rule begins on a line of its own"),
        ('root ::= ("a"\nb ::= "c"', "line 2: 'b': ')' is missing, for the '(' of line 1"),
        ('\n\nroot ::= "a" "\\\n"\n ', "line 3: '\"\\\\\\n\"': '\\\\\\n' is not an escape"),
        ('root ::= "a\nb" [x]\n  )', "line 3: ')': no rule begins so"),
        ("a ::= root\nroot ::= itme\nitem ::= [x]", "line 2: the rule 'itme' is not defined "
         "(did you mean 'item'?)"),
        ('rot ::= "a"', "no rule is named 'root' (did you mean 'rot'?)"),
        ('root ::= "a"\r\nroot ::= "b"', "line 2: the rule 'root' is defined twice"),
        ('root ::= "a"\nx "b"', "line 2: '\"b\"': ::= is missing after 'x'"),
        ('root ::= "a', "line 1: '\"': no end of it was found"),
        ("root ::= [a", "line 1: '[': no end of it was found"),
        ("root ::= []", "'[]': a class without characters"),
        ("root ::= [^]", "'[^]': a class without characters"),
        ("root ::= [^\\x00-\\U0010FFFF]", "no character fits this class"),
        ("root ::= [z-a]", "the range 'z-a' ends before it begins"),
        ('root ::= "\\q"', "'\\\\q' is not an escape; allowed: \\n"),
        ('root ::= "\\x4"', "'\\\\x' is not an escape"),
        ('root ::= "\\uD83D"', "\\uD83D is no character"),
        ("root ::= [\\U00110000]", "\\U00110000 is no character"),
        ('root ::= "a"{3,2}', "'{3,2}' is out of range"),
        ('root ::= "a"{1,999999}', f"0 to {MOST_REPEATS}"),
        ('root ::= "a"{,2}', "'{,2}' is not a repetition; allowed: {m}, {m,} or {m,n}"),
        ('root ::= "a"{1 2}', "is not a repetition"),
        ('root ::= "a"{1', "'{1' is not a repetition"),
        ('root ::= ("a"', "the end: ')' is missing"),
        ('root ::= "a")', "')': not here; allowed"),
        ('root ::= * "a"', "'*': nothing stands before it"),
        ('root ::= "a"*+?*', "more than 3 marks of repetition"),
        ("root ::= <[12]>", "'<[12]>': a token by its id is not supported; allowed: its spelling"),
        ("root ::= !<think>", "'!<think>': 'any token but this' is not supported"),
        ("root ::= <nowhere>", "nowhere"),
        ('root ::= "a" & "b"', "'&': not known here; allowed: \"text\", [a-z]"),
        ("root ::= root", "no text satisfies it"),
        ('root ::= "a" x\nx ::= "b" x', "no text satisfies it"),
        ("root ::= " + "(" * (DEEPEST + 1) + '"a"' + ")" * (DEEPEST + 1), f"more than {DEEPEST}"),
        ("\n".join(f'r{i} ::= ""' for i in range(MOST_RULES + 1)), f"more rules than {MOST_RULES}"),
        ("root ::= r0\n" + "".join(f'r{i} ::= "x" r{i + 1} "y" | "a" root\n' for i in range(1500))
         + 'r1500 ::= "b"', "rules lead each to the next; allowed: at most 500"),
    ],
)  # fmt: skip
def test_what_is_no_gbnf_is_refused_with_its_line(grammar: str, words: str) -> None:
    with pytest.raises(RequestError, match=r"structured_outputs\.grammar: ") as refusal:
        make_acceptor(StructuredOutputs(grammar=grammar))
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 300 and "\n" not in str(refusal.value)
    assert refusal.value.path == "structured_outputs.grammar"


def test_lark_is_distinguished_from_gbnf() -> None:
    for text in (
        'root ::= "a"',
        "# x\n\n  a-b\t::= c",
        "x\r y::=",
        "%\nroot ::=",
        '"a" |\nb ::= c',
    ):
        assert is_gbnf(text), text
    for text in ('start: "::="', "// root ::= x\nstart: /a ::= b/", "# root ::= x\nstart: x", ""):
        assert not is_gbnf(text), text
    assert make_acceptor(StructuredOutputs(grammar='start: "x ::= y"'))("x ::= y")


def test_a_special_token_is_named_by_its_spelling() -> None:
    compiler = Compiler(byte_vocabulary([b"</think>"]))
    text = 'root ::= [a-z]* </think> "b"'
    matcher = compiler.compile(StructuredOutputs(grammar=text))
    assert matcher.fits([*b"a</think>b"]) == 1
    assert matcher.take([ord("a"), 257, ord("b")]) == 3 and matcher.over


@pytest.mark.parametrize(
    "text",
    [
        "root ::= " + '"\\"' * 20_000, "root ::= " + "[\\]" * 20_000, "root ::= " + "a" * 60_000,
        "root ::= " + "a " * 30_000, "root ::= " + "<" * 60_000, "root ::= " + "(" * 60_000,
        "root ::= " + "\n" * 60_000, "root ::= " + "#" * 60_000, "a::=\n" * 12_000,
        "root ::= a" + "*" * 60_000, "root ::= a{" + "1" * 60_000, " " * 60_000 + "root ::=",
        "\n".join(f"r{i} ::= r{i + 1}" for i in range(4_000)) + '\nr4000 ::= "a"\nroot ::= r0',
        "root ::= " + " | ".join(f'"a" r{i}' for i in range(2_000)) + "\n" + "".join(
            f"r{i} ::= r{i - 1} r{i - 1}\n" for i in range(1, 2_000)) + 'r0 ::= "b"?',
        "root ::= " + "(" * 40 + '"a"' + "{2,9999}){2,9999}" * 20 + "?)" * 20,
        "root ::= [" + "".join(map(chr, range(0x4E00, 0x4E00 + 30_000, 2))) + "]",
        'root ::= "' + "".join(map(chr, range(0x4E00, 0x4E00 + 20_000))) + '"',
    ],
    ids=lambda text: text[:12].replace("\n", "/"),
)  # fmt: skip
def test_hostile_grammars_are_read_once(text: str) -> None:
    """In time that grows with their length: a square of it would take minutes."""
    assert len(text.encode()) <= LONGEST
    try:
        make_acceptor(StructuredOutputs(grammar=text))
        made = translate_gbnf(text)
    except RequestError:
        return
    assert len(made) < 30 * len(text) + 1000


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([JSON, SUMS, ITEMS, CHESS, CODE]), st.data())
def test_a_mangled_grammar_is_read_or_refused(grammar: str, data: st.DataObject) -> None:
    """Nothing but `RequestError` comes out of the reader, nor out of the engine."""
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(grammar)))
        end = data.draw(st.integers(at, min(len(grammar), at + 6)))
        piece = data.draw(st.one_of(
            st.sampled_from([*"()[]{}|*+?.\"\\\n#<>,-9", "::=", "{3,", "<a>", "\\x", "[^", "é"]),
            st.text(max_size=3),
        ))  # fmt: skip
        grammar = grammar[:at] + piece + grammar[end:]
    try:
        read_gbnf(grammar)
        make_acceptor(StructuredOutputs(grammar=grammar))
    except RequestError:
        pass
