"""A study that has ended, with its leaders measured again: each trial is a made-up run whose step follows from its
values, so that what is said of the winner can be read off its runs.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from profilers.model.run_summary import RunSummary
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tuning.execution.executor import OnStart, Ran, ShouldStop
from tuning.spec.study_file import parse
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study

NAME, RANKS, STEPS = "decided", 4, 24
#: What a value makes of a step of 0.3 s, and the point that so is the fastest.
FASTER = {
    ("parallel.tp", 2): 0.9,
    ("parallel.tp", 4): 1.3,
    ("batch.micro_batch", 2): 0.85,
    ("batch.micro_batch", 4): 0.8,
    ("memory.recompute", "full"): 1.25,
}
WINNER = {"parallel.tp": 2, "batch.micro_batch": 4, "memory.recompute": "none"}
_STEP_SECONDS = 0.3


def seconds_of(config: RunConfig) -> float:
    """Of a step."""
    flat, found = config.flat(), _STEP_SECONDS
    for (key, value), factor in FASTER.items():
        found *= factor if flat[key] == value else 1.0
    return found


class _Runs:
    """Writes a run for each trial; they follow each other."""

    def __init__(self, home: Path) -> None:
        self._home, self._clock, self._number = home, time.time() - 1_800, itertools.count(0x100)

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._clock))
        seconds = seconds_of(config)
        run = FakeRun(
            f"{stamp}-{next(self._number):04x}", config.flat(), seconds, config.train.steps,
            started_unix=self._clock,
        )  # fmt: skip
        run.config = config
        self._clock += run.steps * seconds + 2
        written = RunFolder(self._home, run)
        run_folder.update_status(written.folder, labels=labels)
        if on_start is not None:
            on_start(written.folder)
        written.write(run.steps)
        told = run_folder.read_json(written.folder / run_folder.SUMMARY) or {}
        return RunOutcome(Ending.COMPLETED), RunSummary.from_dict(told)


def write_decided(home: Path) -> str:
    """Writes it into a home; returns its name."""
    file = parse(
        {
            "name": NAME,
            "ranks": RANKS,
            "trials": 10,
            "confirm_repeats": 3,
            "base": {
                "model": {"preset": "tiny"},
                "data": {"sequence_length": 128},
                "batch": {"global_batch": 16, "micro_batch": 1},
                "train": {"steps": STEPS, "warmup": 4},
                "device": "cpu",
            },
            "space": {key: _values(key) for key in WINNER},
        }
    )
    folder = home / STUDIES / NAME
    folder.mkdir(parents=True)
    run_study(file, folder, _Runs(home))
    return NAME


def _values(key: str) -> list[object]:
    plain: object = {"memory.recompute": "none"}.get(key, 1)
    return [plain, *(value for known, value in FASTER if known == key)]
