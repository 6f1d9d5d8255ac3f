"""``train`` without ranks: what becomes of an ending, and of a second Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.lifecycle import finish
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from engine.run.ownership import this_process
from tests.workbench.conftest import Run


class FakeSession:
    """Makes the folder of a run and ends it as it is told to."""

    outcome = RunOutcome(Ending.COMPLETED)
    during: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, home: Path) -> None:
        self._home = home

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def execute(
        self,
        config: RunConfig,
        labels: dict[str, str],
        should_stop: Callable[[], bool],
        on_start: Callable[[Path], None],
    ) -> Any:
        folder = run_folder.create(self._home, config, labels)
        run_folder.update_status(folder, state="running", owner=this_process(), backend="gloo", world_size=1)
        on_start(folder)
        self.during()
        outcome = RunOutcome(Ending.STOPPED, "on request") if should_stop() else self.outcome
        return outcome, finish(folder, config, "gloo", outcome)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeSession]:
    """Stands in for the engine's; the configuration to give is in ``run.yaml``."""
    monkeypatch.setattr("engine.session.Session", FakeSession)
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("model: {preset: tiny}\ntrain: {learning_rate: 1e-3}\n")
    return FakeSession


def test_a_completed_run_is_0_and_any_other_1(
    command: Run, session: type[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = command("train", "run.yaml", "--json")
    assert (done.code, done.document["outcome"], done.document["labels"]) == (
        0,
        "completed",
        {"purpose": "train"},
    )
    lines = ("first line", "last line [of all]")
    outcome = RunOutcome(Ending.OOM, "rank 1 ran out of [memory]", 1, "forward", lines)
    monkeypatch.setattr(session, "outcome", outcome)
    done = command("train", "run.yaml", "--json")
    assert (done.code, done.document["outcome"], done.document["rank"]) == (1, "oom", 1)
    done = command("train", "run.yaml")
    assert (done.code, done.err) == (1, "")
    assert "out of memory: rank 1 ran out of [memory]" in done.out
    assert "| last line [of all]" in done.out


def test_ctrl_c_once_and_twice(
    command: Run, session: type[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(times: int) -> Callable[[], None]:
        return staticmethod(lambda: [signal.raise_signal(signal.SIGINT) for _ in range(times)])  # type: ignore[return-value]

    monkeypatch.setattr(session, "during", press(1))
    done = command("train", "run.yaml", "--json")
    assert (done.code, done.document["outcome"], done.document["reason"]) == (1, "stopped", "on request")
    assert "Ctrl-C again kills the run" in done.err
    monkeypatch.setattr(session, "during", press(2))
    done = command("train", "run.yaml", "--json")
    assert (done.code, done.document["outcome"]) == (1, "stopped")
    assert "second Ctrl-C" in done.document["reason"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_was_asked_is_what_runs(
    command: Run, session: type[FakeSession], tmp_path: Path, home: Path
) -> None:
    Path("text.txt").write_text("to be or not to be " * 100)
    done = command(
        "train", "run.yaml", "--data", "text.txt", "--set", "parallel.dp=2", "memory.recompute=true",
        "--device", "cpu", "--json",
    )  # fmt: skip
    config = done.document["config"]
    assert config["data"]["path"] == str(tmp_path / "text.txt")
    assert (config["parallel"]["dp"], config["memory"]["recompute"], config["device"]) == (2, "full", "cpu")
    assert config["train"]["learning_rate"] == 0.001
    again = command("train", home / done.document["id"] / "config.json", "--json")
    assert again.document["config"] == config
