"""The search that follows on the same run once conditions changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.offline import OfflineExecutor, build_summary
from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.executor import Ran
from tuning.execution.live.ongoing_run import RUNS
from tuning.execution.live.pinned_values import BY
from tuning.execution.live.starter import Starter
from tuning.spec.study_file import StudyFile
from tuning.storage import commands as inbox
from tuning.storage.study_folder import STUDIES, StudyReader
from tuning.study import run_study
from workbench.commands import tune


class Steady(OfflineExecutor):
    """Every step takes a second."""

    def play(self, config: RunConfig, run: str) -> Ran:
        return RunOutcome(Ending.COMPLETED), build_summary(run, config, [1.0] * 4)


def test_what_was_set_by_hand_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A searched key is pinned there, another one is told to it, too; both are in what it begins with."""
    file = live_study(confirm_repeats=0)
    assert file.live is not None
    folder = tmp_path / STUDIES / file.name
    folder.mkdir(parents=True)
    given = {"memory.recompute": "full", "overlap.bucket_mb": 1.0}
    for key, value in given.items():
        inbox.send(folder, "pin", {key: value}, BY)
    result = run_study(file, folder, Steady())
    run_folder.write_json(folder / RUNS, {"runs": ["some-run"]})
    searched: list[StudyFile] = []

    def search(_: Path, following: StudyFile, attached: str | None) -> Any:
        searched.append(following)
        return run_study(following, tmp_path / STUDIES / following.name, Steady())

    monkeypatch.setattr(tune, "_search_live", search)
    tune._look_again(tmp_path, file, result, "slower", Starter(tmp_path, folder, file.name, file.live))
    [following] = searched
    assert following.name == "live-look-1"
    flat = following.search_space.config(following.search_space.baseline[0]).flat()
    assert {key: flat[key] for key in given} == given
    after = tmp_path / STUDIES / following.name
    state = StudyReader(after).view().journal
    assert all(trial.config["memory.recompute"] == "full" for trial in state.trials), [
        trial.config for trial in state.trials
    ]
    told = {key for answer in state.answers.values() if answer.by == BY for key in answer.arguments}
    assert told == set(given)
    assert (run_folder.read_json(after / RUNS) or {})["runs"] == ["some-run"]
