"""Three steps of a public trainer on gloo ranks, started as its export says, and what its ranks told."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from engine.config.run_config import RunConfig, parse
from tests.support.trainers.environments import OF_FORMAT, ROOT, made, require
from workbench.export.targets import target_named

LIMIT_SECONDS = 300.0


def small(ranks: int, **values: Any) -> RunConfig:
    """Eight sequences a step on so many ranks, in micro-batches of two."""
    usual = {"parallel.dp": ranks, "batch.micro_batch": 2, "batch.global_batch": 8, "train.steps": 3,
             "train.learning_rate": 1e-3, "device": "auto", "data.sequence_length": 16}  # fmt: skip
    given = {key.replace("__", "."): value for key, value in values.items()}
    return parse({}).with_values(usual | given)


def trained(
    name: str, config: RunConfig, folder: Path, *words: str, **variables: str
) -> list[dict[str, Any]]:
    """What each rank told: world, wrapper, steps, losses, and values of the largest parameter here and in all."""
    require(name)
    form = target_named(name).format
    assert form is not None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / form.file
    file.write_text(form.text(form.written(config)), encoding="utf-8")
    ranks = config.parallel.dp * config.parallel.tp
    command = [made(OF_FORMAT[name]), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
               "-m", f"tests.support.trainers.train_{name}", file, *words]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
        | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line.partition("TOLD ")[2]) for line in done.stdout.splitlines() if "TOLD " in line]
    return sorted(found, key=lambda one: one["rank"])
