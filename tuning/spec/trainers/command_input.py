"""What somebody wrote of a command and what to turn of it, looked at before a study is made of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from engine.config.errors import InputError

#: How a study names what it turns.
PREFIX = "trainer."
#: Of a section ``trainer``, the kinds of values; parts of a base that are filled in are sections.
_SHAPE: Mapping[str, type] = {
    "command": str,
    "directory": str,
    "arguments": dict,
    "documents": dict,
    "steps": dict,
}
_PARTS = ("trainer", "train", "batch", "data")
_OTHERS = re.compile(r"[^A-Za-z0-9_]")


def is_shaped(document: Mapping[str, Any]) -> bool:
    """Whether a study has values of the right kind where they are looked at before all of it is checked."""
    section, base, space = document["trainer"], document.get("base") or {}, document.get("space")
    if not all(isinstance(part, dict) for part in (section, base, {} if space is None else space)):
        return False
    options = section.get("arguments")
    return (
        isinstance(section.get("command"), str)
        and all(section.get(key) is None or isinstance(section[key], kind) for key, kind in _SHAPE.items())
        and all(isinstance(base.get(name) or {}, dict) for name in _PARTS)
        and all(isinstance(option, str) for option in (options or {}).values())
    )


def name_values(space: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values to try by names without hyphens and dots, and the options of those that had some.

    Raises:
        InputError: a key names nothing that a command has, or its values are none.
    """
    named, options = dict[str, Any](), dict[str, str]()
    for key, values in space.items():
        option = str(key).removeprefix(PREFIX)
        name = _OTHERS.sub("_", option)
        if not str(key).startswith(PREFIX):
            remedy = f"is turned inside a trainer, as {PREFIX}NAME; here the command is all that there is"
            raise InputError(f"space.{key}", values, remedy)
        if not name.isidentifier():
            raise InputError(
                f"space.{key}", values, f"names no option; write {PREFIX}NAME, which begins with a letter"
            )
        if f"{PREFIX}{name}" in named:
            raise InputError(f"space.{key}", values, f"is {name} here, as another one is; rename one of them")
        _check_values(f"space.{key}", values)
        named[f"{PREFIX}{name}"] = values
        if name != option:
            options[name] = option
    return named, options


def _check_values(key: str, values: Any) -> None:
    if not values or not (isinstance(values, list) or (isinstance(values, dict) and "low" in values)):
        raise InputError(key, values, "give a list of values to try, or a range: {low: .., high: ..}")
    for value in values if isinstance(values, list) else ():
        if not isinstance(value, bool | int | str) and not (isinstance(value, float) and isfinite(value)):
            raise InputError(key, value, "is no plain value; a study turns numbers, words, true and false")
