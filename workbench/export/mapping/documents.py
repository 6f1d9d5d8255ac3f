"""Files of trainers as flat documents, and what a trainer knows: its keys with their types and usual values.

``known_keys.json`` holds them as the trainers' own code has them; a slow test takes them anew and compares.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from engine.config.errors import InputError
from tuning.space.yaml_loader import StrictLoader
from workbench.export.mapping.rows import Document

KNOWN = Path(__file__).with_name("known_keys.json")
#: A trainer's file is smaller than this; a larger one is none.
MOST_MIB = 4
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "text"),
    "flag": ((bool,), "it without a value"),
}


def nest_keys(document: Document) -> dict[str, Any]:
    """Dotted keys as dictionaries in each other."""
    tree: dict[str, Any] = {}
    for key, value in document.items():
        *sections, name = key.split(".")
        nested = tree
        for section in sections:
            nested = nested.setdefault(section, {})
        nested[name] = value
    return tree


def flat(tree: dict[str, Any], prefix: str = "") -> Document:
    """Dictionaries in each other as dotted keys; an empty one is a value."""
    flat_document: Document = {}
    for key, value in tree.items():
        inner = isinstance(value, dict) and value
        flat_document |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat_document


def json_text(document: Document) -> str:
    """A document as an indented JSON file."""
    return json.dumps(nest_keys(document), indent=2) + "\n"


def yaml_text(document: Document) -> str:
    """A document as a YAML file."""
    return yaml.safe_dump(nest_keys(document), sort_keys=False)


def text_of(path: Path, field: str, value: str) -> str:
    """The text of a trainer's file, which was given as the ``value`` of a ``field``.

    Raises:
        InputError: it cannot be read, or is no such file.
    """
    try:
        if path.stat().st_size > MOST_MIB * 2**20:
            remedy = f"is larger than {MOST_MIB} MiB; give a trainer's configuration file"
            raise InputError(field, value, remedy)
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(field, value, f"cannot be read ({os.strerror(error.errno or 0)})") from None
    except UnicodeDecodeError:
        raise InputError(field, value, "is not a text file; give a trainer's configuration file") from None


def read_json(text: str) -> Document:
    """The document of a JSON file.

    Raises:
        InputError: it is not JSON, or holds no keys.
    """
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError("file", None, f"is not valid JSON ({error}); give the trainer's own file") from None
    return _of_keys(tree)


def read_yaml(text: str) -> Document:
    """The document of a YAML file; it is data alone, nothing in it runs.

    Raises:
        InputError: it is not YAML, or holds no keys.
    """
    try:
        tree = yaml.load(text, StrictLoader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError("file", None, f"is not valid YAML ({reason}); give the trainer's own file") from None
    return _of_keys(tree)


def _of_keys(tree: object) -> Document:
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise InputError("file", None, "holds no keys with values; give the trainer's own file")
    return flat(tree)


@functools.cache
def read_format(name: str) -> dict[str, Any]:
    """Of a format: ``package`` with its version, ``keys`` with their types, ``usual`` values.

    Raises:
        InputError: nobody took them from the trainer yet.
    """
    formats: dict[str, dict[str, Any]] = json.loads(KNOWN.read_text(encoding="utf-8"))
    if name not in formats:
        remedy = f"is not in it: python -m tests.support.trainers.environments {name} writes what that trainer knows"
        raise InputError(KNOWN.name, name, remedy)
    return formats[name]


def usual(name: str) -> Document:
    """What a trainer takes for keys that a file leaves out."""
    return dict(read_format(name)["usual"])


def unknown_keys(name: str, document: Document) -> Iterator[InputError]:
    """Keys that a trainer does not know, and values of another type than its own."""
    keys: dict[str, Any] = read_format(name)["keys"]
    for key, value in document.items():
        known_part = next((part for part in _parts(key) if part in keys), None)
        owner = known_part or ""
        strict = any(other.startswith(f"{owner}.") for other in keys)
        if known_part is None or (known_part != key and strict):
            nearest = difflib.get_close_matches(key, keys, n=3, cutoff=0.0)
            yield InputError(
                key, value, f"unknown to {read_format(name)['package']}; nearest: {', '.join(nearest)}"
            )
        elif known_part == key and value is not None and not _is(value, keys[key]):
            kind = keys[key]
            wanted = f"one of {', '.join(map(str, kind))}" if isinstance(kind, list) else _TYPES[kind][1]
            yield InputError(key, value, f"is not what {read_format(name)['package']} takes; give {wanted}")


def _parts(key: str) -> Iterator[str]:
    """A dotted key, and what holds it, the longest first."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _is(value: object, kind: str | list[Any]) -> bool:
    if isinstance(kind, list):
        return value in kind
    if kind == "flag":
        return isinstance(value, bool)
    if kind not in _TYPES:
        return True
    return isinstance(value, _TYPES[kind][0]) and (kind == "bool" or not isinstance(value, bool))


def positive(document: Document, *keys: str) -> Iterator[InputError]:
    """Keys that have to be at least 1 where they are given."""
    for key in keys:
        value = document.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value < 1:
            yield InputError(key, value, "give 1 or more")


def not_negative(document: Document, *keys: str) -> Iterator[InputError]:
    """Keys that have to be at least 0 where they are given."""
    for key in keys:
        value = document.get(key)
        if isinstance(value, int | float) and value < 0:
            yield InputError(key, value, "give 0 or more")


def one_of(document: Document, key: str, *choices: object) -> Iterator[InputError]:
    """A key whose value has to be one of these where it is given."""
    value = document.get(key)
    if value is not None and not any(value == choice and type(value) is type(choice) for choice in choices):
        yield InputError(key, value, f"give one of {', '.join(map(str, choices))}")


def divides(document: Document, key: str, size: int, divisor: str) -> Iterator[InputError]:
    """A key whose value has to divide a number; without the number (0) nothing is said."""
    value = document.get(key)
    if size and isinstance(value, int) and value > 0 and size % value:
        yield InputError(key, value, f"must divide {divisor} ({size})")
