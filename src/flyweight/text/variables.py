"""Which variables a chat template reads, seen from its source.

Invariant: a variable that is not among them changes nothing of what the template renders.  Renders
nothing, and knows no model.
"""

from functools import lru_cache

from jinja2 import meta
from jinja2.exceptions import TemplateError

from flyweight.text.meter import RenderMeter
from flyweight.text.sandbox import Sandbox

GIVEN = frozenset({"messages", "bos_token", "eos_token", "unk_token", "pad_token"})
KEPT = 8  # templates that are remembered


@lru_cache(KEPT)
def read_by(template: str) -> frozenset[str] | None:
    """Variables beside the conversation that it reads; None where it cannot be read itself, which
    rendering says better.
    """
    sandbox = Sandbox(RenderMeter())
    try:
        found = meta.find_undeclared_variables(sandbox.parse(template))
    except (TemplateError, RecursionError):
        return None
    return frozenset(found) - GIVEN - sandbox.globals.keys()
