"""Templates that attack: out of the sandbox, down the stack, or up the memory.  Each ends in a text
or in one line, in a process that may hold 2 GiB.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flyweight.errors import RequestError
from flyweight.text.chat import render
from flyweight.text.tokenizer import load_tokenizer

FIXTURES = Path(__file__).parents[1] / "data" / "text"
TOKENIZER = load_tokenizer(FIXTURES / "tiny-bpe")
USER = [{"role": "user", "content": "hi"}]
DEEP = 6000

ESCAPES = {
    "subclasses of object": "{% for c in ''.__class__.__base__.__subclasses__() %}"
    "{% if 'wrap_close' in c.__name__ %}{{ c.__init__.__globals__['system']('SHELL') }}"
    "{% endif %}{% endfor %}",
    "globals of a built-in": "{{ lipsum.__globals__['os'].popen('SHELL').read() }}",
    "globals of a class": "{{ cycler.__init__.__globals__.os.popen('SHELL').read() }}",
    "a namespace's": "{{ namespace.__init__.__globals__.os.system('SHELL') }}",
    "built-ins by item": "{{ joiner.__init__['__globals__']['__builtins__']"
    "['open']('MARK', 'w') }}",
    "the attr filter": "{{ ''|attr('__class__')|attr('__mro__') }}{{ 1|attr('__reduce__')() }}",
    "attr and format": "{{ ('{0.__class__.__init__.__globals__}'|attr('format'))(cycler) }}",
    "format kept in a name": "{% set f = '{0.__class__.__mro__}'.format %}{{ f(1) }}",
    "format through a filter": "{{ ['{0.__class__.__mro__}']|map('format', 1)|list }}"
    "{{ '{0.__class__}'.format_map({'0': 1}) }}",
    "map of attributes": "{{ [cycler]|map(attribute='__init__.__globals__')|list }}",
    "self": "{{ self._TemplateReference__context.cycler.__init__.__globals__.os }}",
    "a frame of a generator": "{{ (messages|map('upper')).gi_frame.f_back.f_globals }}",
    "code of a macro": "{% macro m() %}{% endmacro %}{{ m.__code__ }}{{ m._func.__globals__ }}",
    "a function's globals": "{{ raise_exception.__globals__.jinja2 }}",
    "the clock's globals": "{{ strftime_now.__globals__['datetime'] }}",
    "a file by include": "{% include '/etc/passwd' %}",
    "a file by import": "{% import 'os' as os %}{{ os.system('SHELL') }}",
    "a file by extends": "{% extends '/etc/passwd' %}",
    "messages changed": "{% set _ = messages[0].update({'role': 'system'}) %}",
    "a list changed": "{% set _ = messages.clear() %}",
    "the environment": "{{ self.environment }}{{ environment.globals }}",
}
DEPTHS = {
    "ifs": "{% if true %}" * DEEP + "{% endif %}" * DEEP,
    "parentheses": "{{ " + "(" * DEEP + "1" + ")" * DEEP + " }}",
    "lists": "{{ " + "[" * DEEP + "1" + "]" * DEEP + " }}",
    "not": "{{ " + "not " * DEEP + "1 }}",
    "minus": "{{ " + "-" * DEEP + "1 }}",
    "plus": "{{ " + "1+" * DEEP + "1 }}",
    "filters": "{{ 1" + "|string" * DEEP + " }}",
    "attributes": "{{ x" + ".a" * DEEP + " }}",
    "ternaries": "{{ " + "1 if 0 else " * DEEP + "1 }}",
    "loops": "{% for a in b %}" * 600 + "{% endfor %}" * 600,
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macros that call each other": "{% macro a() %}{{ b() }}{% endmacro %}"
    "{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "a recursive loop": "{% set x = [0] %}{% for i in [x] recursive %}{{ loop([x]) }}{% endfor %}",
}
BOMBS = {
    "range": "{{ range(10 ** 12) | list }}",
    "a string times": "{{ 'x' * 10 ** 12 }}",
    "a list times": "{{ ([0] * 10 ** 12) | length }}",
    "a width": "{{ '%1000000000000d' % 1 }}",
    "a format's width": "{{ '{:1000000000000}'.format(1) }}",
    "a centre": "{{ 'x'.center(10 ** 12) }}{{ 'x' | center(10 ** 12) }}",
    "an indent": "{{ 'x' | indent(10 ** 12, true) }}",
    "doubling": "{% set n = namespace(x='xx') %}{% for i in range(99) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "padding": "{{ 'x'.ljust(10 ** 12) }}{{ 'x'.zfill(10 ** 12) }}",
    "output": "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
    "names": "{{ lipsum(n=10 ** 9) }}",
}


@pytest.mark.parametrize("attack", ESCAPES)
def test_nothing_of_python_is_reached(attack: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    template = ESCAPES[attack].replace("SHELL", f"touch {mark}").replace("MARK", str(mark))
    try:
        text = render(template, USER, TOKENIZER)
    except RequestError as error:
        assert str(error).isprintable()
    else:  # Jinja writes nothing where there is nothing
        for word in ("class", "module", "built-in", "function", "frame", "root:", "0x"):
            assert word not in text, text
    assert not mark.exists() and USER == [{"role": "user", "content": "hi"}]


GUARDED = """
import json, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from flyweight.errors import RequestError
from flyweight.text import chat
from flyweight.text.tokenizer import load_tokenizer
tokenizer = load_tokenizer(Path(sys.argv[1]))
for name, template in json.load(sys.stdin).items():
    print(name, end=": ", flush=True)
    try:
        print(len(chat.render(template, [{"role": "user", "content": "hi"}], tokenizer)))
    except RequestError as error:
        assert str(error).isprintable() and len(str(error)) < 400
        print("refused", flush=True)
"""


@pytest.mark.parametrize("attacks", [DEPTHS, BOMBS], ids=["depths", "bombs"])
def test_neither_the_stack_nor_the_memory_gives_way(attacks: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GUARDED, str(FIXTURES / "tiny-bpe")],
        input=json.dumps(attacks),
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{done.returncode} after {lines[-1:]}: {done.stderr[-500:]}"
    assert [line.split(": ")[0] for line in lines] == list(attacks)
    refused = sum(line.endswith("refused") for line in lines)
    assert refused >= len(attacks) - 2, lines
