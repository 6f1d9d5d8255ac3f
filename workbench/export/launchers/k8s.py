"""Export as a TrainJob of Kubeflow Trainer 2: this project's trainer, with the exact configuration in its environment.

The runtime ``torch-distributed`` tells torchrun of each node where the others are.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from engine.config import environment
from engine.config.errors import several
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from workbench.export.bundle import Bundle
from workbench.export.launchers import torchrun
from workbench.export.launchers.slurm import nodes_of

_HEAD = """\
# Trains config.json again on {on_ranks}: kubectl create -f trainjob.yaml
# Set image to one that has Python with the package training-workbench. The run folder is in /tmp/runs of the first pod:
# mount a volume there to keep it. Needs Kubeflow Trainer 2 and its runtime torch-distributed.
"""
_CONFIG = "WORKBENCH_CONFIG"
_FILE = f'printf "%s" "${_CONFIG}" >/tmp/config.json'
_COMMAND = f"{_FILE} && exec torchrun -m engine.launch.torchrun /tmp/config.json --out /tmp/runs"
_LONGEST_NAME = 50


def _train_job(bundle: Bundle, config: RunConfig) -> str:
    nodes, ranks_per_node = nodes_of(config)
    variables = {"OMP_NUM_THREADS": "1"} | environment.variables(config.environment)
    trainer: dict[str, Any] = {
        "image": "training-workbench:latest",
        "numNodes": nodes,
        "numProcPerNode": ranks_per_node,
        "command": ["bash", "-c", _COMMAND],
        "env": [{"name": name, "value": value} for name, value in variables.items()]
        + [{"name": _CONFIG, "value": bundle.files["config.json"]}],
    }
    if config.device != "cpu":
        trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": ranks_per_node}}
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": _name(bundle.name)},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
    }
    head = _HEAD.format(on_ranks=several(layout_of(config).world_size, "ranks"))
    return head + yaml.safe_dump(job, sort_keys=False)


def _name(text: str) -> str:
    """A name that Kubernetes takes: lower case, digits and hyphens, a letter first."""
    return f"wb-{re.sub(r'[^a-z0-9]+', '-', text.lower())}"[:_LONGEST_NAME].strip("-")


K8S = torchrun.Launcher(
    "trainjob.yaml",
    _train_job,
    "`kubectl create -f trainjob.yaml` trains it again",
    parsed_by="kubeflow-trainer-api 2.3.0",
)
