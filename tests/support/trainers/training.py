"""Three steps of a public trainer on gloo ranks, started as its export says, and what its ranks told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig, parse
from tests.support.trainers.environments import OF_FORMAT, ROOT, made, require, variables
from workbench.export.mapping.rows import Document
from workbench.export.targets import find_target

LIMIT_SECONDS, GRACE_SECONDS = 300.0, 60.0


def small(ranks: int, **values: Any) -> RunConfig:
    """Eight sequences a step on so many ranks, in micro-batches of two."""
    usual = {"parallel.dp": ranks, "batch.micro_batch": 2, "batch.global_batch": 8, "train.steps": 3,
             "train.learning_rate": 1e-3, "device": "auto", "data.sequence_length": 16}  # fmt: skip
    given = {key.replace("__", "."): value for key, value in values.items()}
    return parse({}).with_values(usual | given)


def trained(name: str, config: RunConfig, folder: Path, *words: str, **given: str) -> list[dict[str, Any]]:
    """What each rank told: world, wrapper, steps, losses, and values of the largest parameter here and in all."""
    form = find_target(name).format
    assert form is not None
    document = form.make_document(config)
    return trained_as(name, document, config.parallel.dp * config.parallel.tp, folder, *words, **given)


def trained_as(name: str, document: Document, ranks: int, folder: Path, *words: str, **given: str
               ) -> list[dict[str, Any]]:  # fmt: skip
    """As ``trained``, as a document says."""
    require(name)
    form = find_target(name).format
    assert form is not None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / form.file
    file.write_text(form.text(document), encoding="utf-8")
    command = [str(made(OF_FORMAT[name])), "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", str(ranks),
               "-m", f"tests.support.trainers.train_{name}", str(file), *words]  # fmt: skip
    environment = variables(OF_FORMAT[name]) | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | given
    code, said, complaint = _ended(command, environment)
    assert code == 0, complaint[-4000:]
    found = [json.loads(line.partition("TOLD ")[2]) for line in said.splitlines() if "TOLD " in line]
    return sorted(found, key=lambda one: one["rank"])


def _ended(command: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, output and errors; ranks of one that hangs end with their launcher, which has to be asked for that."""
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # fmt: skip
        try:
            said, complaint = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            said, complaint = process.communicate(timeout=GRACE_SECONDS)
            pytest.fail(f"no end after {LIMIT_SECONDS:g} s: {complaint[-4000:]}")
        finally:
            process.kill()
        return process.returncode, said, complaint
