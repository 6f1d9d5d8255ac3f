"""The cluster that a prediction is for, from what a person names: a cluster, its nodes, or nothing for this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.config.errors import InputError

if TYPE_CHECKING:
    from engine.run.calibration.fingerprint import Fingerprint
    from tuning.predict.target import Target


def target_of(
    home: Path, cluster: str | None, nodes: int | None, ranks: int | None, with_runs: bool = True
) -> Target:
    """A cluster by name or file; without one this machine, if it is calibrated.

    ``with_runs``: what finished runs of the home tell of this machine counts.

    Raises:
        InputError: it is not known, lacks a figure, or there is neither a name nor a calibration.
    """
    from tuning.predict import target

    if cluster is not None:
        return target.named(cluster, nodes, ranks)
    if nodes is not None:
        raise InputError("--nodes", nodes, "says how many of a cluster's: name it with --cluster")
    from workbench.calibrations import found_here

    found = found_here(home)
    if found.calibration is None:
        remedy = f"{found.reason}, or name a cluster, such as --cluster {_example()}"
        raise InputError("--cluster", None, remedy)
    here = target.measured_here(found.calibration)
    return _with_runs(home, here, found.calibration.fingerprint) if with_runs else here


def _with_runs(home: Path, here: Target, machine: Fingerprint) -> Target:
    from tuning.predict.learn import finished_runs, learn
    from workbench.runs import run_folders

    return learn.learned(here, finished_runs.finished(run_folders(home), home / finished_runs.KEPT), machine)


def _example() -> str:
    from tuning.predict.cluster import catalogue

    return catalogue.names()[0]
