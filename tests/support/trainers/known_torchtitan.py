"""Prints the keys of torchtitan's ``Trainer.Config``, as ``known_keys.json`` has them; run beside torchtitan."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from importlib.metadata import version
from typing import Any

from torchtitan.models.llama3.config_registry import llama3_debugmodel


def kind(hint: Any) -> Any:
    """How a field's plain value is written."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    arguments = [one for one in typing.get_args(hint) if one is not types.NoneType]
    if len(arguments) == 1 and typing.get_origin(hint) in (typing.Union, types.UnionType):
        return kind(arguments[0])
    return hint.__name__ if hint in (int, float, bool, str) else "any"


def fields(config: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Each field that is no section: its kind and its usual value."""
    found: dict[str, tuple[Any, Any]] = {}
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and field.name not in (
            "model_spec",
            "optimizer",
            "activation_checkpoint",
        ):
            found |= fields(value, f"{prefix}{field.name}.")
        else:
            usual = field.default if field.default is not dataclasses.MISSING else None
            found[f"{prefix}{field.name}"] = (kind(hints[field.name]), usual)
    return found


if __name__ == "__main__":
    wanted = set(json.loads(sys.argv[1])) if len(sys.argv) > 1 else set()
    found = fields(llama3_debugmodel())
    keys = {key: how for key, (how, _) in found.items()}
    keys |= {"activation_checkpoint": ["none", "full", "selective"], "optimizer.lr": "float", "optimizer.betas": "any",
             "optimizer.eps": "float", "optimizer.weight_decay": "float", "optimizer.fused": "bool"}  # fmt: skip
    keys.pop("optimizer", None)
    usual = {key: value for key, (_, value) in found.items()
             if key in wanted and isinstance(value, bool | int | float | str)}  # fmt: skip
    print(json.dumps({"package": f"torchtitan {version('torchtitan')}", "keys": keys, "usual": usual}))
