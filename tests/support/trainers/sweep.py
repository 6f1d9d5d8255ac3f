"""W&B's own code for sweeps, asked beside ours: what it says against a file, the points that it tries, and the command
that its agent starts for one of them.
"""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace
from typing import Any
from unittest import mock

import yaml

from tests.support.trainers.packages import Environment

ENVIRONMENT = Environment("sweep", ("sweeps==0.3.0", "wandb==0.31.0"))
WRONG = "method: grid\nparameters: {a: {valeus: [1, 2]}}\n"


def problems(files: list[dict[str, Any]]) -> list[str]:
    """What its schema has against each."""
    from sweeps.config import schema_violations_from_proposed_config

    return ["; ".join(schema_violations_from_proposed_config(yaml.safe_load(file["text"]))) for file in files]


def points(asked: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The first ``many`` points that each ``sweep`` tries: fewer if it has no more."""
    import numpy as np
    from sweeps import next_runs

    found = []
    for one in asked:
        np.random.seed(one["seed"])
        runs = next_runs(one["sweep"], [], n=one["many"])
        values = [run.config for run in runs if run is not None]
        found.append([{name: entry["value"] for name, entry in config.items()} for config in values])
    return found


def words(asked: list[dict[str, Any]]) -> list[list[str]]:
    """The command that its agent starts for the ``values`` of each ``command`` and ``program``, without starting it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        return [_words(**one) for one in asked]


def _words(command: list[Any], program: str, values: dict[str, Any]) -> list[str]:
    from wandb import wandb_agent

    agent = wandb_agent.Agent(api=None, queue=None, in_jupyter=False)
    agent._sweep_command = list(command)
    args = {name: {"value": value} for name, value in values.items()}
    with mock.patch.object(wandb_agent, "AgentProcess", return_value=SimpleNamespace()) as started:
        agent._command_run({"args": args, "run_id": "one", "program": program})
    return list(started.call_args.kwargs["command"])
