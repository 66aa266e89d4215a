"""What a chat template reads, seen from its syntax tree: which variables, and whether the parts of
a message's content or one text.

Invariant: nothing is rendered; a variable that is not among them changes nothing of what the
template renders. A template reads parts where it loops over a content: by that name, or through
variables and macro arguments set from it. Knows no model.
"""

from collections.abc import Iterator
from functools import lru_cache

from jinja2 import meta, nodes
from jinja2.exceptions import TemplateError

from flyweight.text.meter import RenderMeter
from flyweight.text.sandbox import Sandbox

GIVEN = frozenset({"messages", "bos_token", "eos_token", "unk_token", "pad_token"})
KEPT = 8  # templates that are remembered


@lru_cache(KEPT)
def list_variables(template: str) -> frozenset[str] | None:
    """Variables other than the conversation that it reads; None where it cannot be parsed, which
    rendering reports better.
    """
    sandbox = Sandbox(RenderMeter())
    try:
        found = meta.find_undeclared_variables(sandbox.parse(template))
    except (TemplateError, RecursionError):
        return None
    return frozenset(found) - GIVEN - sandbox.globals.keys()


CONTENT = "content"


@lru_cache(KEPT)
def reads_parts(template: str) -> bool:
    """Whether the template loops over the parts of a content."""
    try:
        tree = Sandbox(RenderMeter()).parse(template)
    except TemplateError:
        return True  # rendering will say what is wrong
    names = _find_content_names(tree)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _find_content_names(tree: nodes.Template) -> set[str]:
    """The variables that hold a content."""
    names, links = {CONTENT}, list(_find_links(tree))
    found = -1
    while found != len(names):
        found = len(names)
        names |= {name for name, value in links if _is_content(value, names)}
    return names


def _find_links(tree: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
    """Every variable with an expression it is set to, and macro argument with one it is given."""
    for put in tree.find_all(nodes.Assign):
        if isinstance(put.target, nodes.Name):
            yield put.target.name, put.node
    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    for call in tree.find_all(nodes.Call):
        macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
        if macro is not None:
            yield from ((a.name, given) for a, given in zip(macro.args, call.args, strict=False))
            yield from ((pair.key, pair.value) for pair in call.kwargs)


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Whether an expression is a content, whole, filtered or in part; not what a method of it
    gives: a text alone can be split.
    """
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getattr):
        return node.attr == CONTENT
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Slice):
            return _is_content(node.node, names)
        return _is_word(node.arg)
    if isinstance(node, nodes.Call):
        method = node.node
        if isinstance(method, nodes.Getattr):
            return method.attr == "get" and bool(node.args) and _is_word(node.args[0])
        return any(_is_content(inner, names) for inner in _list_arguments(node.args))
    if isinstance(node, nodes.Filter):
        return _is_content(node.node, names)
    if isinstance(node, nodes.CondExpr):
        return _is_content(node.expr1, names) or _is_content(node.expr2, names)
    if isinstance(node, nodes.Or | nodes.And):
        return _is_content(node.left, names) or _is_content(node.right, names)
    return False


def _is_word(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and node.value == CONTENT


def _list_arguments(args: list[nodes.Expr]) -> Iterator[nodes.Node]:
    """Arguments of a function (range, enumerate), and what filters count of them."""
    for one in args:
        yield one
        yield from one.find_all((nodes.Filter,))
