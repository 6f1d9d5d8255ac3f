"""Hugging Face's Trainer, asked beside transformers: the keys of ``TrainingArguments``, and what it says against files.

What it understood has to be what a file says, key by key.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import tempfile
import typing
import warnings
from pathlib import Path
from typing import Any

from tests.support.trainers.packages import Environment

ENVIRONMENT = Environment("hf", ("transformers==5.23.0", "accelerate==1.15.0"))
WRONG = '{"max_stepz": 1}'
_CHOICES = {"bool", "int", "float", "str"}


def known(used: list[str]) -> dict[str, Any]:
    """Its version, its keys with their types, and their usual values."""
    import transformers
    from transformers import TrainingArguments

    fields = dataclasses.fields(TrainingArguments)
    hints = typing.get_type_hints(TrainingArguments)
    keys = {field.name: kind(field, hints[field.name]) for field in fields if field.init}
    keys |= {f"fsdp_config.{name}": "any" for name in sharding(TrainingArguments)}
    keys["fsdp"] = "any"  # true, or the older words
    keys |= dict.fromkeys(("fsdp_config.version", "fsdp_config.min_num_params"), "int")
    return {"package": f"transformers {transformers.__version__}", "keys": keys, "usual": usual(fields)}


def kind(field: dataclasses.Field[Any], hint: Any) -> str | list[str]:
    """The type of a field's plain values, or a list of all that it takes; "any" where it takes several types."""
    for one in typing.get_args(hint):
        if isinstance(one, type) and issubclass(one, enum.Enum):
            return [choice.value for choice in one]
    names = set(re.findall(r"\b(bool|int|float|str|dict|list)\b", str(field.type)))
    return names.pop() if len(names) == 1 and names <= _CHOICES else "any"


def sharding(arguments: Any) -> list[str]:
    """Keys of ``fsdp_config`` that its code asks for."""
    text = inspect.getsource(arguments._process_fsdp_args)
    asked = re.findall(r"""fsdp_config(?:\.get\(|\.setdefault\(|\[)["'](\w+)["']""", text)
    return sorted({*asked, *re.findall(r"""["'](\w+)["'] in self\.fsdp_config""", text)})


def usual(fields: tuple[dataclasses.Field[Any], ...]) -> dict[str, object]:
    """Plain values of fields that are left out."""
    found = {field.name: getattr(field.default, "value", field.default) for field in fields}
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}


def problems(files: list[dict[str, Any]]) -> list[str]:
    """What it says against each; a GPU that has bf16 is stood in for."""
    from transformers import training_args

    warnings.simplefilter("ignore")
    training_args.is_torch_bf16_gpu_available = lambda: True
    with tempfile.TemporaryDirectory() as folder:
        return [problem(one["text"], Path(folder)) for one in files]


def problem(text: str, folder: Path) -> str:
    """What is wrong with a file."""
    from transformers import HfArgumentParser, TrainingArguments

    file = folder / "training_args.json"
    file.write_text(text, encoding="utf-8")
    try:
        (parsed,) = HfArgumentParser(TrainingArguments).parse_json_file(str(file))
    except Exception as error:
        return repr(error)
    for key, value in json.loads(text).items():
        found = getattr(parsed, key)
        found = getattr(found, "value", found)
        if isinstance(value, dict) and not isinstance(found, dict):
            found = {name: getattr(found, name) for name in value}
        if isinstance(value, dict):
            found = {name: found[name] for name in value}
        if key == "report_to":
            found = "none" if found == [] else found
        if found != value:
            return f"{key}: {found!r} is not {value!r}"
    return ""
