"""Trains a small Llama with torchtitan's own trainer as an exported ``recipe.py`` says; each rank tells.

The recipe changes the one of ``small_titan``. Beside it stand flags that have to do with this machine alone: no CUDA
graphs, and the backend of layouts that works with this torch ("spmd_types" is refused by its FSDP, "full_dtensor"
reports losses once for each data rank). gloo has no sum that is scaled on the way: FSDP is told to sum.
"""

# ruff: noqa: I001  # what makes the first import of torchtitan possible stands before it
from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.trainers import small_llama
from tests.support.trainers.small_titan import Trainer
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.config import ConfigManager

BASE = "from torchtitan.models.llama3.config_registry import llama3_debugmodel as BASE"
FLAGS = ["--training.disable_cuda_graphs", "--parallelism.spmd_backend", "partial_dtensor"]


def built(recipe: str, folder: Path) -> Trainer:
    """torchtitan's trainer of an export, with weights of a seed whatever the layout."""
    assert BASE in recipe
    ours = recipe.replace(BASE, "from tests.support.trainers.small_titan import small as BASE")
    (folder / "recipe.py").write_text(ours)
    sys.path.insert(0, str(folder))
    config = ConfigManager().parse_args(
        ["--module", "recipe", "--config", "exported", "--dump_folder", str(folder), *FLAGS]
    )
    trainer = config.build()
    (model,) = trainer.model_parts
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                put(weight, torch.randn(weight.shape, generator=random) * 0.02)
    return trainer


def put(weight: torch.Tensor, values: torch.Tensor) -> None:
    """A whole tensor into a weight, or its part of it."""
    if isinstance(weight, DTensor):
        values = distribute_tensor(values, weight.device_mesh, weight.placements)
    weight.copy_(values)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer = built(Path(sys.argv[1]).read_text(), Path(folder))
        losses: list[float] = []
        theirs = trainer.metrics_processor.log

        def noted(step: int, mean: float, *rest: Any, **more: Any) -> None:
            """Beside what torchtitan does with a step's loss."""
            losses.append(mean)
            small_llama.step_done()
            theirs(step, mean, *rest, **more)

        trainer.metrics_processor.log = noted
        trainer.train()
        small_llama.tell(
            world=torch.distributed.get_world_size(),
            wrapper=type(trainer.model_parts[0]).__name__,
            steps=trainer.step,
            losses=losses,
            **small_llama.sharing(trainer.model_parts[0].parameters()),
        )
        trainer.close()
        torch.distributed.destroy_process_group()
