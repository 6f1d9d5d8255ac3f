"""A search of a live study that ends since nothing else is worth a window: what is told of its winner was taken in
turns all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.offline import OfflineExecutor, build_summary
from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.executor import EndOfSearchError, EndOfTrialsError, OnStart, Ran, ShouldStop
from tuning.execution.live.windows import CONFIRM
from tuning.spec.study_file import StudyFile
from tuning.storage.study_folder import STUDIES, StudyReader
from tuning.study import run_study

ENOUGH, DEAR = "another window costs too much", "rounds cost too much"


class Windows(OfflineExecutor):
    """The machine becomes twice as fast after the baseline: every window looks as if it led by that much. Each one's
    values are faster by a quarter than those before, as the leader around it tells; there are ``searched`` windows.
    """

    def __init__(self, searched: int, rounds: bool) -> None:
        super().__init__()
        self._left, self._rounds = searched, rounds
        self._known: dict[int, float] = {}

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        if labels["purpose"] == CONFIRM and not self._rounds:
            raise EndOfTrialsError(DEAR)
        if labels["purpose"] not in (CONFIRM, "baseline"):
            if not self._left:
                raise EndOfSearchError(ENOUGH)
            self._left -= 1
        return super().__call__(config, labels, should_stop, on_start)

    def play(self, config: RunConfig, run: str) -> Ran:
        seconds = self._known.setdefault(config.batch.micro_batch, 1.25 ** -len(self._known))
        if self._number == 1:
            seconds *= 2
        told: dict[str, Any] = {}
        if 1 < self._number <= 3:
            told = {
                "leader_level": 0.5,
                "leader_ratio": 1.25,
                "leader_ratio_low": 1.2,
                "leader_ratio_high": 1.3,
            }
            told["leader_trial"] = self._number - 2
        return RunOutcome(Ending.COMPLETED), build_summary(run, config, [seconds, seconds * 1.01] * 4, **told)


def study(**more: Any) -> StudyFile:
    base = {"batch": {"global_batch": 16, "micro_batch": 1}, "train": {"steps": 12, "warmup": 2}}
    return live_study(base=base, space={"batch.micro_batch": [1, 2, 4, 8]}, confirm_repeats=8, **more)


def test_leaders_are_measured_again_though_the_search_ended_early(tmp_path: Path) -> None:
    file = study()
    found = run_study(file, tmp_path / STUDIES / file.name, Windows(2, rounds=True))
    assert found.over == ENOUGH and len(found.trials) == 3
    assert found.gain is not None and found.gain.confirmed and found.confirmation_rounds is not None
    assert found.gain.verdict == "better" and found.gain.ratio < 2, "not what the machine became faster"
    assert any(line.startswith("the search ended: ") for line in _notes(tmp_path, file))


def test_it_stays_ended_under_the_next_controller(tmp_path: Path) -> None:
    file = study()
    folder = tmp_path / STUDIES / file.name
    first = run_study(file, folder, Windows(2, rounds=True))
    again = run_study(file, folder, Windows(9, rounds=True))
    assert [row.number for row in again.trials] == [row.number for row in first.trials]
    assert again.over == ENOUGH


def test_where_rounds_are_not_worth_it_the_gain_is_that_beside_the_leader(tmp_path: Path) -> None:
    """Of two windows, each held beside the one before: 1.25 x 1.25, whatever the machine did meanwhile."""
    file = study()
    found = run_study(file, tmp_path / STUDIES / file.name, Windows(2, rounds=False))
    assert found.best is not None and found.best.trial == 2
    gain = found.gain
    assert gain is not None and gain.in_turns and not gain.confirmed and gain.low and gain.high
    assert gain.ratio == pytest.approx(1.25**2)
    assert gain.low == pytest.approx(1.25**2 * (1.2 / 1.3) ** (1 / 2**0.5))
    assert gain.low < gain.ratio < gain.high < 2
    assert gain.verdict == "better" and "in turns with the leader" in found.result_line
    assert found.over == f"{ENOUGH}; {DEAR}"


def _notes(home: Path, file: StudyFile) -> tuple[str, ...]:
    return StudyReader(home / STUDIES / file.name).view().journal.notes
