"""Whether a finished text satisfies a JSON schema, with the keywords that no grammar enforces.

Invariant: a schema means what it means to the grammar (draft 2020-12, and what older drafts and
OpenAPI write otherwise), and nothing is fetched.  Regexes give up after `BACKTRACKS` steps; other
hostile schemas may take long: call this where it can be killed if they are not trusted.  Needs
jsonschema-rs, the extra `validate`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from flyweight.errors import RequestError
from flyweight.params.structured import NAME, StructuredOutputs
from flyweight.sampling.schema_keywords import map_within, modernise
from flyweight.validation.untrusted import one_line

BACKTRACKS = 100_000


def make_validator(outputs: StructuredOutputs) -> Callable[[str], bool]:
    """Says of texts whether they satisfy the schema.  Raises `RequestError`."""
    try:
        import jsonschema_rs
    except ImportError:
        raise RequestError(
            "= 'validate' needs jsonschema-rs",
            f"{NAME}.strictness",
            code="not_installed",
            hint="install flyweight[validate]",
        ) from None
    try:
        with _catch_panics():
            validator = jsonschema_rs.Draft202012Validator(
                _update(json.loads(str(outputs.json))),
                validate_formats=True,
                retriever=_refuse_retrieval,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS),
            )
    except (ValueError, OverflowError) as error:
        reason = one_line(str(error).splitlines()[0])
        raise RequestError(f": {reason}", f"{NAME}.json", code="bad_constraint") from None

    def is_valid(text: str) -> bool:
        try:
            with _catch_panics():
                return bool(validator.is_valid(json.loads(text, parse_constant=_refuse_constant)))
        except (ValueError, RecursionError, OverflowError):
            return False

    return is_valid


@contextmanager
def _catch_panics() -> Iterator[None]:
    """Raises `ValueError` for a bug of the library, whose own exception is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError("the schema cannot be read by the validator") from None


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _refuse_retrieval(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not within the schema")


def _update(schema: Any) -> Any:
    """A schema in the words of draft 2020-12, which is read as nothing else."""
    if not isinstance(schema, Mapping):
        return schema
    found = map_within(modernise(schema), lambda name, one: _update(one))
    found.pop("$schema", None)
    if isinstance(found.get("items"), list):
        found["prefixItems"] = found.pop("items")
        if "additionalItems" in found:
            found["items"] = found.pop("additionalItems")
    dependencies = found.pop("dependencies", None)
    for name, one in dependencies.items() if isinstance(dependencies, Mapping) else ():
        kind = "dependentRequired" if isinstance(one, str | list) else "dependentSchemas"
        found[kind] = {**found.get(kind, {}), name: [one] if isinstance(one, str) else one}
    return found
