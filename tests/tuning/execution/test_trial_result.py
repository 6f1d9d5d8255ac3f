"""A run that ended although its study died before it could write that down: the trial is not lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.lifecycle import summary_of
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from profilers.model.run_summary import RunSummary
from tests.support.studies.fake import Machine, run_study, study
from tuning.execution.executor import trial_record
from tuning.storage.state import StudyState, Trial
from tuning.storage.study_folder import JOURNAL, STUDIES

FILE = study(trials=3, confirm_repeats=0)


class Keeping(Machine):
    """Keeps a folder of each run, as the engine does."""

    def __init__(self, home: Path, **options: Any) -> None:
        super().__init__(**options)
        self.home = home

    def _summary(self, run: str, config: RunConfig, outcome: RunOutcome, number: int) -> RunSummary:
        summary = super()._summary(run, config, outcome, number)
        (self.home / run).mkdir(parents=True)
        run_folder.write_json(self.home / run / run_folder.SUMMARY, summary.as_dict())
        status = {"state": "ended", "ended_unix": 2e9, "outcome": outcome.as_dict()}
        run_folder.write_json(self.home / run / run_folder.STATUS, status)
        return summary


def cut_last_tell(folder: Path) -> dict[str, Any]:
    """Take the last tell and what follows out of the journal; returns it."""
    path = folder / JOURNAL
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if json.loads(line)["kind"] == "tell")
    path.write_bytes(b"".join(lines[:last]))
    told: dict[str, Any] = json.loads(lines[last])
    return told


TOLD = (
    "number",
    "run",
    "outcome",
    "reason",
    "rank",
    "phase",
    "value",
    "low",
    "high",
    "samples",
    "constraints",
)


@pytest.mark.parametrize("outcome", [None, RunOutcome(Ending.OOM, "rank 1 ran out of memory", 1, "forward")])
def test_the_folder_of_a_run_says_how_its_trial_ended(tmp_path: Path, outcome: RunOutcome | None) -> None:
    folder, machine = tmp_path / STUDIES / "first", Keeping(tmp_path, endings={2: outcome} if outcome else {})
    before = run_study(FILE, folder, machine)
    told = cut_last_tell(folder)
    found = run_study(FILE, folder, machine)
    assert len(machine.configs) == 3  # nothing was measured again
    last = json.loads((folder / JOURNAL).read_bytes().splitlines()[-1])
    assert {name: last[name] for name in TOLD} == {name: told[name] for name in TOLD}
    assert [row["outcome"] for row in found["trials"]] == [row["outcome"] for row in before["trials"]]
    assert found["best"]["value"] == before["best"]["value"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (run_folder.STATUS, '{"state": "running"}'),
        (run_folder.STATUS, '{"state": "ended", "outcome": {"ending": "no such"}, "ended_unix": 1}'),
        (run_folder.STATUS, '{"state": "ended", "outcome": {"ending": "lost"}, "ended_unix": 1}'),
        (run_folder.SUMMARY, '{"id": '),
        (run_folder.SUMMARY, '{"id": 3}'),
    ],
)
def test_what_cannot_be_read_is_lost_and_measured_again(tmp_path: Path, name: str, text: str) -> None:
    folder, machine = tmp_path / STUDIES / "first", Keeping(tmp_path)
    run_study(FILE, folder, machine)
    told = cut_last_tell(folder)
    (tmp_path / told["run"] / name).write_text(text)
    found = run_study(FILE, folder, machine)
    assert [row["outcome"] for row in found["trials"]] == ["completed", "completed", "lost", "completed"]
    assert len(machine.configs) == 4


@pytest.mark.parametrize(("loss", "state"), [(3.01, "satisfied"), (4.0, "violated")])
def test_a_loss_after_a_time_is_judged_however_many_steps_there_were(loss: float, state: str) -> None:
    base = {"train": {"seconds": 30.0}, "batch": {"global_batch": 16, "micro_batch": 2}}
    file = study(space={"compression.method": ["none", "topk"]}, base=base)
    usual = file.search_space.baseline[0]
    lossy = file.search_space.complete({"compression.method": "topk"})
    told = {"outcome": "completed", "constraints": {}, "samples": (1.0, 2.0), "steps": 400}
    baseline = Trial(0, usual, "baseline", value=100.0, validation_loss=3.0, **told)
    config = file.search_space.config(lossy)
    summary = summary_of(config, "late", "gloo", None)
    summary = replace(summary, losses=[loss] * 500, validation_loss=loss)
    found = trial_record(Trial(1, lossy, "sampler"), RunOutcome(Ending.COMPLETED), summary,
                         StudyState(trials=(baseline,)), file)  # fmt: skip
    assert found["validation_loss"] == loss
    assert (found["constraints"]["loss_guard"] > 0) == (state == "violated"), found
