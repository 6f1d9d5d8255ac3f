"""Prints the keys of ``TrainingArguments`` with their types, for ``known_keys.json``; run beside transformers."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import typing

import transformers
from transformers import TrainingArguments

_CHOICES = {"bool", "int", "float", "str"}


_HINTS = typing.get_type_hints(TrainingArguments)


def kind(field: dataclasses.Field) -> str | list[str]:
    """The type of a field's plain values, or a list of all that it takes; "any" where it takes several types."""
    for one in typing.get_args(_HINTS[field.name]):
        if isinstance(one, type) and issubclass(one, enum.Enum):
            return [choice.value for choice in one]
    names = set(re.findall(r"\b(bool|int|float|str|dict|list)\b", str(field.type)))
    return names.pop() if len(names) == 1 and names <= _CHOICES else "any"


def sharding() -> list[str]:
    """Keys of ``fsdp_config`` that its code asks for."""
    text = inspect.getsource(TrainingArguments._process_fsdp_args)
    asked = re.findall(r"""fsdp_config(?:\.get\(|\.setdefault\(|\[)["'](\w+)["']""", text)
    return sorted({*asked, *re.findall(r"""["'](\w+)["'] in self\.fsdp_config""", text)})


def usual() -> dict[str, object]:
    """Plain values of fields that are left out."""
    fields = dataclasses.fields(TrainingArguments)
    found = {field.name: getattr(field.default, "value", field.default) for field in fields}
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}


if __name__ == "__main__":
    keys: dict[str, str | list[str]] = {
        field.name: kind(field) for field in dataclasses.fields(TrainingArguments) if field.init
    }
    keys |= {f"fsdp_config.{name}": "any" for name in sharding()}
    keys["fsdp"] = "any"  # true, or the older words
    keys |= dict.fromkeys(("fsdp_config.version", "fsdp_config.min_num_params"), "int")
    print(json.dumps({"package": f"transformers {transformers.__version__}", "keys": keys, "usual": usual()}))
