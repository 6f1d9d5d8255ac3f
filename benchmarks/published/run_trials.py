"""Run folders as trials, from their records, and trials as what a calibration fits to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, load
from engine.run import run_folder
from profilers.analysis.memory import memory_rows, peak
from profilers.analysis.steps import join_steps
from profilers.records.reader import Archive, RunRecords
from tuning.predict.fit.calibrate import TrialMeasurements
from tuning.predict.fit.finished_runs import Trial, is_complete, join_machines, layout
from tuning.predict.model.cases import cases_of
from tuning.predict.model.step_time import Machine


def trial_of(folder: Path, archive: Archive | None = None) -> Trial:
    """The measured steps of a run; ``archive`` opens records that were compacted.

    Raises:
        InputError: it was changed as it went, or a rank left no measured step.
    """
    if (folder / run_folder.STARTED).exists():
        raise InputError("run", folder.name, "was changed as it went; take one that kept its configuration")
    records = RunRecords(folder / run_folder.RECORDS, archive)
    steps = join_steps({rank: records.table(rank, "step") for rank in records.ranks()}).select_measured()
    if not len(steps.steps):
        raise InputError(
            "run", folder.name, "has no measured step; take one that has train.steps above warmup"
        )
    slowest = np.max(steps.values["step_seconds"], axis=0)
    cpu = [float(np.median(one.compressed())) for one in steps.values["cpu_seconds"]]
    known = peak(memory_rows(records)).get("peak_memory_bytes")
    return Trial(load(folder / run_folder.CONFIG), float(np.median(slowest.compressed())), tuple(cpu), known)


def trials(folders: Iterable[Path], archive: Archive | None = None) -> list[Trial]:
    """Those of the run folders that ran to their end and can be used, in their order."""
    found = list[Trial]()
    for folder in folders:
        if not is_completed(folder):
            continue
        try:
            found.append(trial_of(folder, archive))
        except InputError:
            continue
    return found


def is_completed(folder: Path) -> bool:
    """Whether a folder is that of a run whose ranks came to their end; nobody simulated it."""
    return is_complete(run_folder.RunStatus.from_folder(folder))


def measured(
    known: Sequence[Trial], machine: Callable[[RunConfig], Machine], devices_per_node: int = 8
) -> TrialMeasurements:
    """What ``calibrate`` fits to: layouts are groups, so that errors are of layouts that were held out.

    Of one configuration that ran more than once the median counts. ``machine`` is what each ran on.

    Raises:
        InputError: there is no trial.
    """
    if not known:
        raise InputError("trials", 0, "there is no finished run with measured steps; run some layouts first")
    alike = dict[str, list[Trial]]()
    for trial in known:
        alike.setdefault(what_ran(trial.config), []).append(trial)
    configs = [same[0].config for same in alike.values()]
    seconds = np.array([np.median([one.seconds for one in same]) for same in alike.values()])
    groups = np.array([layout(one) for one in configs])
    return TrialMeasurements(
        cases_of(configs, devices_per_node),
        join_machines([machine(one) for one in configs]),
        seconds,
        groups,
    )


def what_ran(config: RunConfig) -> str:
    """The same for two configurations whose steps are alike, however many they take."""
    tree = config.model_dump(mode="json", exclude={"checkpoint", "profile", "train"})
    return json.dumps(tree, sort_keys=True)
