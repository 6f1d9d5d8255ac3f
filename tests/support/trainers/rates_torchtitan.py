"""Reads exported recipes, a JSON list of texts, on stdin; prints the learning rates of each one in torchtitan."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

import torch
from torchtitan.config import ConfigManager


def rates_of(text: str, folder: Path) -> list[float]:
    """Those that its scheduler gives steps."""
    (folder / "recipe.py").write_text(text)
    sys.modules.pop("recipe", None)
    config = ConfigManager().parse_args(["--module", "recipe", "--config", "exported"])
    (group,) = config.optimizer.param_groups
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=group.optimizer_kwargs["lr"])
    schedule = config.lr_scheduler.build(optimizers=[optimizer], training_steps=config.training.steps)
    rates = []
    for _ in range(config.training.steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        sys.path.insert(0, folder)
        found = [rates_of(text, Path(folder)) for text in json.load(sys.stdin)]
    print(json.dumps(found))
