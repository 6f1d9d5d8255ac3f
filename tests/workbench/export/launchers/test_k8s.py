"""A TrainJob whose command, run as its runtime would, has our launcher read the exact configuration."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config import run_config
from engine.run import run_folder
from tests.support.runs import small
from tests.support.trainers.environments import OTHERS, problems, require
from tests.support.trainers.results import noted
from tests.support.workbench.drawn_configs import legal
from workbench.export.targets import find_target
from workbench.home import runs


def job(tmp_path: Path, **values: object) -> tuple[dict[str, Any], str]:
    folder = run_folder.create(tmp_path, small(**values), {"study": "Mine & yours"})
    files = find_target("k8s").render(runs.load(folder), None).files
    return yaml.safe_load(files["trainjob.yaml"]), files["config.json"]


def test_it_asks_for_nodes_ranks_and_devices(tmp_path: Path) -> None:
    made, _ = job(tmp_path, parallel__dp=16, batch__global_batch=48, device="cuda")
    trainer = made["spec"]["trainer"]
    assert (made["apiVersion"], made["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert made["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 8}
    name = made["metadata"]["name"]
    assert name.startswith("wb-mine-yours-")
    assert name == name.lower()
    assert len(name) <= 50
    assert "resourcesPerNode" not in job(tmp_path, device="cpu")[0]["spec"]["trainer"]


def test_what_read_it_is_told(tmp_path: Path) -> None:
    target, folder = find_target("k8s"), run_folder.create(tmp_path, small(), {})
    facts = target.facts(target.render(runs.load(folder), None))
    (package,) = OTHERS["k8s"].ENVIRONMENT.packages
    assert facts["checked_against"] == package.replace("==", " ")
    assert facts["levels"] == {"parsed": f"by {facts['checked_against']}"}


def test_its_command_gets_the_exact_configuration(tmp_path: Path) -> None:
    made, config = job(tmp_path, parallel__dp=2, environment__OMP_NUM_THREADS=3)
    trainer = made["spec"]["trainer"]
    (tmp_path / "torchrun").write_text('#!/bin/bash\ncp "$3" "$SEEN"\necho "$@" threads $OMP_NUM_THREADS\n')
    (tmp_path / "torchrun").chmod(0o755)
    variables = {entry["name"]: entry["value"] for entry in trainer["env"]}
    seen = tmp_path / "seen.json"
    command = [part.replace("/tmp/config.json", str(tmp_path / "given.json")) for part in trainer["command"]]
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SEEN": str(seen)}
    done = subprocess.run(command, env=path | variables, capture_output=True, text=True, check=True)
    assert done.stdout.split()[:2] == ["-m", "engine.launch.torchrun"]
    assert "threads 3" in done.stdout
    assert seen.read_text() == config
    assert run_config.load(seen).parallel.dp == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kubeflows_own_types_read_every_job(tmp_path: Path) -> None:
    require("k8s")
    many = 1000
    folders = (run_folder.create(tmp_path, config, {"study": "s"}) for config in legal(many, "parsed k8s"))
    exports = (find_target("k8s").render(runs.load(folder), None) for folder in folders)
    jobs = [{"text": export.files["trainjob.yaml"]} for export in exports]
    *said, wrong = problems("k8s", [*jobs, {"text": OTHERS["k8s"].WRONG}])
    assert "numNode" in wrong, "what reads a thousand jobs says no to a key that there is not"
    assert Counter(said) == {"": many}
    noted("k8s", "parsed", "random legal configurations", f"{many:,} of {many:,} read by its types, whole")
