"""A fixed corpus of JSON schemas that other people wrote, and how many of them are refused.

    python tests/schema_corpus.py [--write] [--unsound N]

The schemas are the parameters of BFCL's functions (FLYWEIGHT_DATA), and the JSON schemas, with each
of their definitions, that the installed development packages carry.  Of schemas that differ only in
names and texts the first is taken.  `tests/data/schemas/corpus.tsv` lists hashes (16 digits of
SHA-256), sources and baseline verdicts: `--write` makes the list again, with the verdicts of the
code at hand.
`--unsound N` validates N random texts under each accepted schema with jsonschema.
"""

import hashlib
import json
import os
import random
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.grammar import Compiler, byte_vocabulary

LIST = Path(__file__).parent / "data/schemas/corpus.tsv"
PACKAGES = Path(sysconfig.get_path("purelib"))
OPENAPI = "schemathesis/specs/openapi/definitions.py"
# Of BFCL's types, which are Python's, the JSON Schema types; `any` represents no type.
TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array"}
TEXTS = {"description", "title", "default", "examples", "example", "$comment", "$id", "id"}
DEFINITIONS = ("definitions", "$defs")
NAMED = {*DEFINITIONS, "properties", "patternProperties"}


def corpus(data: Path) -> dict[str, tuple[str, Any]]:
    """Source and schema by the hash of the schema."""
    found: dict[str, tuple[str, Any]] = {}
    shapes = set[str]()
    for source, schema in (*_functions(data), *_documents()):
        shape = _written(_shape(schema))
        if shape not in shapes:
            shapes.add(shape)
            found[hashlib.sha256(_written(schema).encode()).hexdigest()[:16]] = source, schema
    return found


def listed() -> dict[str, tuple[str, str]]:
    """Source and baseline verdict by hash: what is committed."""
    lines = LIST.read_text(encoding="utf-8").splitlines()[1:]
    return {name: (source, verdict) for name, source, verdict in (x.split("\t") for x in lines)}


def verdict(compiler: Compiler, schema: Any) -> str:
    """Why a schema is refused; empty where it is accepted."""
    try:
        compiler.compile(StructuredOutputs(json=schema))
    except RequestError as error:
        return " ".join(str(error).removeprefix("structured_outputs.json").strip(": ").split())
    return ""


def _functions(data: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted((data / "prompts-bfcl").glob("*.json")):
        for line in path.read_text(encoding="utf-8").splitlines():
            for function in json.loads(line)["function"]:
                yield f"{path.name}#{function['name']}", _translated(function["parameters"])


def _translated(value: Any) -> Any:
    """With JSON Schema's types in the place of Python's."""
    if isinstance(value, list):
        return [_translated(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: TYPES.get(one, one) if key == "type" and isinstance(one, str) else _translated(one)
        for key, one in value.items()
        if (key, one) != ("type", "any")
    }


def _documents() -> Iterator[tuple[str, Any]]:
    for path in sorted(PACKAGES.rglob("*.json")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if isinstance(found, dict) and "json-schema.org" in str(found.get("$schema")):
            yield from _parts(path.relative_to(PACKAGES).as_posix(), found)
    if (PACKAGES / OPENAPI).exists():
        from schemathesis.specs.openapi import definitions

        for name in ("SWAGGER_20", "OPENAPI_30", "OPENAPI_31", "OPENAPI_32"):
            yield from _parts(f"{OPENAPI}:{name}", json.loads(json.dumps(vars(definitions)[name])))


def _parts(source: str, document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """A schema; and each of its definitions, with those that it refers to."""
    yield source, document
    draft = {"$schema": document["$schema"]}
    for key in DEFINITIONS:
        for name in document.get(key, {}):
            needed = _needed(document, key, name)
            if needed is not None:
                yield f"{source}#/{key}/{name}", {**draft, "$ref": f"#/{key}/{name}", **needed}


def _needed(document: dict[str, Any], key: str, name: str) -> dict[str, Any] | None:
    """The definitions that one leads to; none where it refers to other places."""
    found: dict[str, dict[str, Any]] = {}
    left = [f"#/{key}/{name}"]
    while left:
        match left.pop().split("/"):
            case ["#", ("definitions" | "$defs") as kind, one, *_] if one in document.get(kind, {}):
                if one not in found.get(kind, {}):
                    found.setdefault(kind, {})[one] = document[kind][one]
                    left += _references(document[kind][one], document)
            case _:
                return None
    return {key: dict(sorted(one.items())) for key, one in sorted(found.items())}


def _references(value: Any, document: dict[str, Any]) -> Iterator[str]:
    """Where a part leads, by `$ref` or to the definition that has a `$dynamicAnchor`."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for name, one in document.get("$defs", {}).items():
            anchor = one.get("$dynamicAnchor") if isinstance(one, dict) else None
            if anchor and value.get("$dynamicRef") == f"#{anchor}":
                yield f"#/$defs/{name}"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _references(one, document)


def _shape(value: Any, key: str = "") -> Any:
    """What is left of a schema without its names and texts."""
    if isinstance(value, list):
        return len(value) if key in ("required", "enum") else [_shape(one) for one in value]
    if not isinstance(value, dict):
        return value if key != "const" else "const"
    if key in NAMED:
        return sorted((_shape(one) for one in value.values()), key=_written)
    return {name: _shape(one, name) for name, one in value.items() if name not in TEXTS}


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def reason(verdict: str) -> str:
    """A verdict without its place."""
    return re.sub(r"^at '[^']*': |; .*", "", verdict)[:90] or "accepted"


def _unsound(compiler: Compiler, schemas: dict[str, tuple[str, Any]], texts: int) -> int:
    """How many random texts under accepted schemas do not satisfy them."""
    sys.path.insert(0, str(Path(__file__).parent / "plain"))
    from test_schema_walks import validator, walk

    draw, wrong, valid = random.Random(5), 0, 0
    for source, schema in schemas.values():
        if verdict(compiler, schema):
            continue
        matcher = compiler.compile(StructuredOutputs(json=schema))
        judge = validator(schema)
        for text in filter(None, (walk(matcher, draw) for _ in range(texts))):
            if judge.is_valid(json.loads(text)):
                valid += 1
            else:
                wrong += 1
                print(f"unsound: {source}: {text}")
    print(f"{valid} texts are valid, {wrong} are not")
    return wrong


def main() -> int:
    compiler, found = Compiler(byte_vocabulary()), corpus(Path(os.environ["FLYWEIGHT_DATA"]))
    if "--unsound" in sys.argv:
        return bool(_unsound(compiler, found, int(sys.argv[sys.argv.index("--unsound") + 1])))
    verdicts = {name: verdict(compiler, schema) for name, (_, schema) in found.items()}
    for title, part in (("functions", "BFCL"), ("packages", ""), ("all", None)):
        chosen = [
            verdicts[name]
            for name, (source, _) in found.items()
            if part is None or source.startswith("BFCL") == bool(part)
        ]
        refused = sum(map(bool, chosen))
        print(f"{title}: {refused} of {len(chosen)} refused ({refused / len(chosen):.1%})")
    for why, count in Counter(map(reason, verdicts.values())).most_common(40):
        print(f"{count:5} {why}")
    if "--write" in sys.argv:
        rows = [f"{n}\t{source}\t{reason(verdicts[n])}" for n, (source, _) in found.items()]
        LIST.write_text("\n".join(["hash\tsource\tbaseline", *rows, ""]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
