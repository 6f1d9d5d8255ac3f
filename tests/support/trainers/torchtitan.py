"""torchtitan, asked beside torchtitan: the keys of its ``Trainer.Config``, and what it says against recipes.

A recipe is run and merged by torchtitan's own manager, and its degrees are laid out over the ranks. What it understood
has to be what the recipe says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import tempfile
import types
import typing
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.support.trainers.packages import Environment

#: Megatron's trainer is asked here, too.
ENVIRONMENT = Environment(
    "torchtitan",
    ("torchtitan==0.3.0", "triton==3.9.0", "omegaconf==2.4.0"),
    newer=("megatron-core==0.19.2", "3.12"),
)
WRONG = "def exported():\n    raise ValueError('no recipe')\n"


def known(used: list[str]) -> dict[str, Any]:
    """Its version, its keys with their types, and usual values of those that are used."""
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    found = fields(llama3_debugmodel())
    keys = {key: how for key, (how, _) in found.items()}
    keys |= {"activation_checkpoint": ["none", "full", "selective"], "optimizer.lr": "float", "optimizer.betas": "any",
             "optimizer.eps": "float", "optimizer.weight_decay": "float", "optimizer.fused": "bool"}  # fmt: skip
    keys.pop("optimizer", None)
    usual = {key: value for key, (_, value) in found.items()
             if key in used and isinstance(value, bool | int | float | str)}  # fmt: skip
    return {"package": f"torchtitan {version('torchtitan')}", "keys": keys, "usual": usual}


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


def problems(files: list[dict[str, Any]]) -> list[str]:
    """What it says against each. Each manager adds its rules to those of all: a thousand of them would be asked of
    every field.
    """
    from torchtitan.config import ConfigManager

    sys.dont_write_bytecode = True
    manager = ConfigManager()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        sys.path.insert(0, folder)
        return [problem(one["text"], one["ranks"], Path(folder), manager) for one in files]


def problem(text: str, ranks: int, folder: Path, manager: Any) -> str:
    """What is wrong with a file."""
    from torchtitan.distributed.parallel_dims import ParallelDims

    from workbench.export.formats import torchtitan as ours

    (folder / "recipe.py").write_text(text, encoding="utf-8")
    sys.modules.pop("recipe", None)
    try:
        config = manager.parse_args(["--module", "recipe", "--config", "exported"])
        ParallelDims.from_config(config.parallelism, ranks)
    except (Exception, SystemExit) as error:
        return repr(error)
    for key, value in ours.read(text).items():
        found = found_of(config, key)
        if found != value:
            return f"{key}: {found!r} is not {value!r}"
    return ""


def found_of(config: Any, key: str) -> Any:
    """What it understood of a key."""
    section, _, name = key.partition(".")
    if section == "optimizer":
        (group,) = config.optimizer.param_groups
        value = group.optimizer_kwargs[name]
        return list(value) if isinstance(value, tuple) else value
    if key == "activation_checkpoint":
        kinds = {"FullAC.Config": "full", "SelectiveAC.Config": "selective", "NoneType": "none"}
        return kinds[type(config.activation_checkpoint).__qualname__]
    return getattr(getattr(config, section), name)
