"""Kubeflow Trainer's own types of a TrainJob, asked what they say against one."""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.trainers.packages import Environment

ENVIRONMENT = Environment("k8s", ("kubeflow-trainer-api==2.3.0",))
#: Its types read it, and have no such key.
WRONG = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: a}
spec: {runtimeRef: {name: torch-distributed}, trainer: {numNode: 2}}
"""


def problems(files: list[dict[str, Any]]) -> list[str]:
    """What is said against each: a field of another type, or one that the types do not know."""
    return [_problem(yaml.safe_load(file["text"])) for file in files]


def _problem(job: dict[str, Any]) -> str:
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
    from pydantic import ValidationError

    try:
        read = TrainerV1alpha1TrainJob.from_dict(job)
    except ValidationError as error:
        return str(error)
    assert read is not None
    kept = read.to_dict()
    return "" if kept == job else f"unknown to its types: {kept} is left of {job}"
