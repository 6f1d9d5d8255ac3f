"""What a plan is asked for, from a form or a command, and how predictions of this machine held. No torch."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, parse
from tuning.predict.cluster import catalogue, cluster_file
from tuning.predict.cluster.csv_table import DATA
from tuning.predict.fit import finished_runs
from tuning.predict.plan.track_record import Record, record_of
from tuning.predict.target import Target, cluster_target
from workbench.home.calibrations import find_calibration, target_of
from workbench.home.inputs import assignments, set_dotted
from workbench.home.runs import run_folders

#: Of a model without a file: mixed precision, and sequences as the papers on its sizes take them.
BATCH, SEQUENCE = 1024, 2048
TYPED = "cluster"


def model_config(sets: list[str]) -> RunConfig:
    """The configuration of a named model on which a plan is made.

    Raises:
        InputError: a key is not known, or a value does not fit.
    """
    tree: dict[str, Any] = {
        "data": {"sequence_length": SEQUENCE},
        "batch": {"global_batch": BATCH},
        "precision": "bf16",
        "memory": {"parameters": "bf16"},
    }
    for key, value in assignments(sets).items():
        set_dotted(tree, key, value)
    return parse(tree)


def parse_target(text: str) -> Target:
    """A cluster that a person wrote into a form, with the keys of a cluster's file.

    Raises:
        InputError: it is not TOML, a key is unknown or missing, or it names a file.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(TYPED, None, f"is not valid TOML ({error})") from None
    for key in ("measured", "links"):
        if key in values:  # a form never becomes a path
            remedy = "names a file: save both and use `workbench plan --cluster FILE`"
            raise InputError(key, values[key], remedy)
    return cluster_target(cluster_file.build(cluster_file.parse(values), catalogue.accelerator, DATA, None))


def record_of_home(home: Path) -> Record:
    """How predictions of this machine held for the runs of a home; the reason where nothing can be compared."""
    calibration = find_calibration(home)
    if calibration.calibration is None:
        return Record([], reason=f"this machine has no calibration that holds: {calibration.reason}")
    target = target_of(home, None, None, None, with_runs=False)
    runs = finished_runs.read_finished_runs(run_folders(home), home / finished_runs.KEPT)
    return record_of(runs, target, calibration.calibration.fingerprint)
