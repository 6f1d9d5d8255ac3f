"""How often the run of a live study is started again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.run.outcome import Ending, RunOutcome
from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.executor import EndOfTrialsError
from tuning.execution.live import starter as module
from tuning.execution.live.starter import MOST_DEATHS, Starter


@dataclass
class Mortal:
    """A run that goes on for one look after each start, then it is dead at the next of these steps."""

    reached: list[int]
    starts: int = 0
    looks: list[RunOutcome | None] = field(default_factory=list)

    @property
    def step(self) -> int:
        return self.reached[min(self.starts, len(self.reached)) - 1]

    def outcome(self) -> RunOutcome | None:
        return self.looks.pop(0) if self.looks else RunOutcome(Ending.LOST, "gone")

    def started(self, *_: Any) -> Mortal:
        self.starts += 1
        self.looks = [None]
        return self


def starts_of(reached: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a run is started that dies at these steps, and at the last one for ever."""
    file, run = live_study(), Mortal(reached)
    assert file.live is not None
    starter = Starter(folder, folder, file.name, file.live)
    monkeypatch.setattr(module.Starter, "_start_run", run.started)
    with pytest.raises(EndOfTrialsError, match="gone"):
        for _ in range(200):
            starter.run(file.config)
    return run.starts


def test_a_run_that_comes_no_further_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert starts_of([-1], tmp_path, monkeypatch) == MOST_DEATHS + 1
    assert starts_of([40], tmp_path, monkeypatch) == MOST_DEATHS + 1


def test_a_run_that_comes_further_each_time_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert starts_of(list(range(0, 100, 10)), tmp_path, monkeypatch) == 10 + MOST_DEATHS


def noted(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """What runs are begun with from here on, and none is."""
    begun: list[RunConfig] = []

    def launched(_: Starter, config: RunConfig, lock: int) -> str:
        begun.append(config)
        return "run"

    monkeypatch.setattr(module.Starter, "_launch_run", launched)
    return begun


def test_the_time_limit_of_a_trial_does_not_end_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """240 steps in windows of 12: twenty times the limit, and no more when the run is started again."""
    begun = noted(monkeypatch)
    file = live_study()
    assert file.live is not None
    Starter(tmp_path, tmp_path, file.name, file.live).run(file.config)
    assert begun[0].train.timeout_seconds == pytest.approx(20 * file.config.train.timeout_seconds)
    Starter(tmp_path, tmp_path / "again", file.name, file.live).run(begun[0])
    assert begun[1].train.timeout_seconds == begun[0].train.timeout_seconds


def test_a_run_beside_a_frozen_model_begins_with_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other begins anew, whatever its base went on from."""
    begun = noted(monkeypatch)
    file = live_study()
    assert file.live is not None
    for kind in ("none", "lora"):
        config = file.config.with_values({"train.resume": "a-run", "train.adapt": kind})
        Starter(tmp_path, tmp_path / kind, file.name, file.live).run(config)
    assert [config.train.resume for config in begun] == [None, "a-run"]
