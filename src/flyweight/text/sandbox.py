"""Jinja's immutable sandbox with a meter: what templates are rendered in.

Invariant: a template can neither change anything outside itself nor reach Python's insides, and
its `RenderMeter` is called before all work or growth without a bound (loops, macros, calls,
filters, operators, what blocks collect).  What it may use is what transformers gives it.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from flyweight.text.meter import RenderMeter

LOOPING = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)


class Generation(Extension):
    """`{% generation %}` marks an assistant's words for training; here it only renders them, in
    their own scope as in transformers.
    """

    tags = {"generation"}  # noqa: RUF012  the base class has a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateNamespace(Namespace):
    """A namespace whose names may not begin with an underscore."""

    def __init__(*args: Any, **given: Any) -> None:
        own, *positional = args
        Namespace.__init__(own, *positional, **given)
        for name in _read_names(own):
            _check_name(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class MeteredNode(NodeTransformer):
    """Puts the question to the meter into a template's tree."""

    def generic_visit(self, node: nodes.Node, *args: Any, **given: Any) -> nodes.Node:
        found = super().generic_visit(node, *args, **given)
        line = found.lineno
        if isinstance(found, LOOPING):
            found.body.insert(0, nodes.ExprStmt(_make_tick(line), lineno=line))
        if isinstance(found, nodes.For) and found.test is not None:
            found.test = nodes.And(_make_tick(line), found.test, lineno=line)
        if isinstance(found, nodes.Compare):
            return nodes.And(_make_tick(line), found, lineno=line)
        if isinstance(found, nodes.Concat):
            joined = nodes.EnvironmentAttribute("join_values", lineno=line)
            return nodes.Call(joined, found.nodes, [], None, None, lineno=line)
        return found


def _make_tick(line: int) -> nodes.Expr:
    tick = nodes.EnvironmentAttribute("tick", lineno=line)
    return nodes.Call(tick, [], [], None, None, lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one rendering, with that rendering's meter."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, meter: RenderMeter) -> None:
        self.meter = meter
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, Generation],
            finalize=self._charge_output,
            optimized=False,  # constants are computed while the meter runs
        )
        self.filters["tojson"] = tojson
        self.filters = {name: self._meter_filter(name, f) for name, f in self.filters.items()}
        del self.globals["lipsum"]
        self.globals.update(
            raise_exception=refuse, strftime_now=strftime_now, namespace=TemplateNamespace
        )

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = MeteredNode().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def tick(self) -> bool:
        return self.meter.tick()

    def join_values(self, *values: object) -> str:
        """`a ~ b ~ c`."""
        self.meter.charge(self.meter.weigh(*values))
        return "".join(map(str, values))

    def concat(self, pieces: Iterable[str]) -> str:
        """What a macro or a block has collected."""
        pieces = list(pieces)
        self.meter.charge(sum(map(len, pieces)))
        return "".join(pieces)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        values = (owner, *args) if isinstance(owner, str | bytes) else args
        __self.meter.call(getattr(__obj, "__name__", ""), values, kwargs)
        return __self.meter.charge_result(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.check_binary(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def _charge_output(self, value: Any) -> Any:
        """A value on its way into the prompt."""
        self.meter.charge(self.meter.weigh(value) if not isinstance(value, str) else len(value))
        return value

    def _meter_filter(self, name: str, filter: Any) -> Any:
        hidden = 1 if hasattr(filter, "jinja_pass_arg") else 0  # a context comes before the value

        @wraps(filter)
        def call(*args: Any, **given: Any) -> Any:
            self.meter.call(name, args[hidden:], given)
            return self.meter.charge_result(filter(*args, **given))

        return call


def read_namespace(value: Any) -> Mapping[str, Any]:
    """What a template has put into a namespace."""
    return _read_names(value) if isinstance(value, Namespace) else {}


def _read_names(names: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(names, "_Namespace__attrs", {})
    return found


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace's name may not begin with an underscore: {name}"
        )


def tojson(value: object, **form: Any) -> str:
    """Jinja's own filter escapes HTML; templates mean plain JSON."""
    return json.dumps(value, **{"ensure_ascii": False, **form})


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class TemplateRefusal(jinja2.TemplateError):
    """What a template says of messages that it does not take."""


def refuse(message: str) -> NoReturn:
    """`raise_exception`: a template's own refusal."""
    raise TemplateRefusal(message)
