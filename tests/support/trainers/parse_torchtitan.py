"""Reads exports, a JSON list of {"text", "ranks"}, on stdin; prints what torchtitan says against each, "" if nothing.

The recipe is run and merged by torchtitan's own manager, and its degrees are laid out over the ranks. What it
understood has to be what the recipe says.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from torchtitan.config import ConfigManager
from torchtitan.distributed.parallel_dims import ParallelDims

from workbench.export.formats import torchtitan as ours

#: Each one adds its rules to those of all: a thousand of them would be asked of every field.
MANAGER = ConfigManager()


def problem(text: str, ranks: int, folder: Path) -> str:
    """What is wrong with a file."""
    (folder / "recipe.py").write_text(text, encoding="utf-8")
    sys.modules.pop("recipe", None)
    try:
        config = MANAGER.parse_args(["--module", "recipe", "--config", "exported"])
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


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        sys.path.insert(0, folder)
        found = [problem(one["text"], one["ranks"], Path(folder)) for one in json.load(sys.stdin)]
    print(json.dumps(found))
