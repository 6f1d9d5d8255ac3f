"""A study that tuned a made-up run while it went: its windows are steps of that run, and it has ended."""

from __future__ import annotations

from pathlib import Path

from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.executor import OnStart, Ran, ShouldStop, played_summary
from tuning.execution.live.ongoing_run import RUNS
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study

RUN, NAME = "20260101-000000-5e1f", "live"
STEPS, WINDOW, STEP_SECONDS = 160, 12, 0.2
_SPACE = {"batch.micro_batch": [1, 2], "compression.method": ["none", "int8"]}


class _Windows:
    """Each trial covers the next steps of the run; int8 is the fastest, and learns a fifth less."""

    def __init__(self, home: Path) -> None:
        self.home, self.number = home, 0

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        folder = run_folder.create(self.home, config, labels)
        if on_start:
            on_start(folder)
        first, lossy = self.number * (WINDOW + 4), config.compression.method != "none"
        self.number += 1
        covered = {"run": RUN, "first": first, "end": first + WINDOW, "seconds": 2.4, "settling": 2}
        run_folder.update_status(folder, state="ended", window=covered)
        told = {
            "leader_level": 1.02, "leader_ratio": 1.2 if lossy else 0.97, "leader_ratio_low": 1.1 if lossy else 0.9,
            "leader_ratio_high": 1.3 if lossy else 1.04, "loss_before": 4.0, "steps_before": first + 1,
            "validation_loss": 3.6 if lossy else 3.5, "reference_loss": 3.5,
            "losses": [3.6] * WINDOW,
        }  # fmt: skip
        seconds = [STEP_SECONDS * (0.8 if lossy else 1.0) * (1 + 0.01 * (at % 3)) for at in range(WINDOW - 2)]
        return RunOutcome(Ending.COMPLETED), played_summary(folder.name, config, seconds, **told)


def write_live(home: Path) -> str:
    """Writes it into a home; returns its name."""
    run = FakeRun(RUN, {"parallel.dp": 2}, STEP_SECONDS, STEPS)
    RunFolder(home, run).write(STEPS)
    run_folder.update_status(home / RUN, labels={"live": NAME, "purpose": "train"})
    study = home / STUDIES / NAME
    study.mkdir(parents=True)
    run_study(live_study(trials=4, confirm_repeats=0, space=_SPACE), study, _Windows(home))
    run_folder.write_json(study / RUNS, {"runs": [RUN]})
    return NAME
