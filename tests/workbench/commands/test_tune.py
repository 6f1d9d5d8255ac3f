"""``tune`` without ranks: what it prints, how it ends, and that the same command goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.fake import Machine
from tests.support.studies.fake import study as fake_study
from tests.workbench.conftest import Run
from tuning.controllers.status import Update
from tuning.storage.state import Trial
from workbench.terminal.progress import StudyProgress

STUDY: dict[str, Any] = {
    "name": "first",
    "ranks": 4,
    "trials": 3,
    "confirm_repeats": 0,
    "base": {"batch": {"global_batch": 16, "micro_batch": 2}, "device": "cpu"},
    "space": {"parallel.tp": [1, 2, 4], "parallel.pp": [1, 2, 4], "batch.micro_batch": [1, 2, 4]},
}


class FakeSession:
    """Has the machine in place of ranks."""

    machine = Machine()

    def __init__(self, home: Path) -> None:
        self.execute = self.machine

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        return


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine on which every study of the test runs."""
    monkeypatch.setattr(FakeSession, "machine", Machine())
    monkeypatch.setattr("engine.session.Session", FakeSession)
    return FakeSession.machine


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., Path]:
    def write(**changes: Any) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text("# mine\n" + yaml.safe_dump(STUDY | changes))
        return path

    return write


def test_json_is_the_study(command: Run, machine: Machine, study: Callable[..., Path]) -> None:
    machine.during = lambda number, run: print("what a library prints") if number == 0 else None
    done = command("tune", study(), "--json")
    assert done.code == 0
    assert done.document["study"] == "first"
    assert [trial["outcome"] for trial in done.document["trials"]] == ["completed"] * 3
    assert "what a library prints" in done.err
    assert done.err.count("tokens/s") == 3
    shown = command("show", "first", "--json").document
    assert shown["best"] == done.document["best"]


def test_the_result_line_is_all_there_is_on_stdout(
    command: Run, machine: Machine, study: Callable[..., Path], home: Path
) -> None:
    done = command("tune", study())
    first, second = done.out.splitlines()
    assert first.startswith("best: ") and "tokens/s" in first
    assert "plain data parallel" in second
    assert (home / "studies" / "first" / "study.yaml").read_text().startswith("# mine\n")


def test_the_same_command_goes_on(command: Run, machine: Machine, study: Callable[..., Path]) -> None:
    command("tune", study())
    assert len(machine.configs) == 3
    again = command("tune", study(), "--json")
    assert (again.code, len(machine.configs)) == (0, 3)
    more = command("tune", study(), "--trials", 5, "--json")
    assert len(more.document["trials"]) == len(machine.configs) == 5
    command("tune", study(ranks=2)).refused("name='first'", "ranks", "another name")
    assert len(machine.configs) == 5


def test_ctrl_c_interrupts_and_says_how_to_go_on(
    command: Run, machine: Machine, study: Callable[..., Path]
) -> None:
    import signal

    machine.during = lambda number, run: signal.raise_signal(signal.SIGINT) if number == 1 else None
    done = command("tune", study(), "--json")
    assert (done.code, done.document["state"]) == (1, "interrupted")
    assert "the same command continues study first" in done.err
    machine.during = lambda number, run: None
    assert command("tune", study(), "--json").document["state"] == "ended"


def test_a_study_in_which_nothing_ran_ended_badly(
    command: Run, machine: Machine, study: Callable[..., Path]
) -> None:
    machine.by_config = lambda _: RunOutcome(Ending.OOM, "too large")
    done = command("tune", study(), "--json")
    assert (done.code, done.document["best"]) == (1, None)
    assert "out of memory, too large" in done.err


SIMULATED: dict[str, Any] = {"simulate": {"cluster": "frontier"}}
TOO_LARGE = SIMULATED | {
    "ranks": 8,
    "trials": 30,
    "base": {"model": {"preset": "175b"}, "batch": {"global_batch": 16, "micro_batch": 1}},
    "space": {"parallel.tp": [1, 2, 4, 8], "parallel.pp": [1, 2, 4, 8], "batch.micro_batch": [1, 2]},
}


def test_a_simulated_study_in_which_nothing_can_run_says_so_and_ends(
    command: Run, study: Callable[..., Path]
) -> None:
    found = command("tune", study(**TOO_LARGE), "--json")
    assert found.document["budget"]["stopped_by"] == "nothing_runs"
    assert 3 <= len(found.document["trials"]) <= 12
    assert {row["source"] for row in found.document["trials"]} <= {"baseline", "sampler"}
    assert found.document["prior"] is None
    assert "note: nothing runs: all" in found.err


#: Ordered numbers alone.
NUMBERS = {"overlap.bucket_mb": {"low": 1.0, "high": 64.0}, "batch.micro_batch": [1, 2, 4]}
UNFIT = {
    "a sampler": (
        SIMULATED | {"sampler": "cmaes", "space": {"memory.recompute": ["none", "full"]}},
        "sampler='cmaes'",
    ),
    "a sampler of one objective": (
        SIMULATED
        | {"sampler": "cmaes", "objectives": ["tokens_per_second", "peak_memory_bytes"], "space": NUMBERS},
        "sampler='cmaes': takes one objective, and there are 2; take tpe or nsga2",
    ),
    "a sampler without constraints": (
        SIMULATED | {"sampler": "cmaes", "constraints": {"peak_memory_bytes": 1e12}, "space": NUMBERS},
        "sampler='cmaes': would not keep away from what breaks constraints; take tpe",
    ),
    "no such study": ({"inherit": ["nobody"]}, "inherit='nobody'"),
    "itself": ({"inherit": ["first"]}, "inherit='first': is this study itself"),
    "a loss": (
        SIMULATED | {"objective": {"time_to_loss": 3.0}, "base": {"train": {"validate_every": 2}}},
        "does not predict losses",
    ),
    "joules": (SIMULATED | {"constraints": {"joules_per_token": 1.0}}, "constraints.joules_per_token=1.0"),
    "free memory": (SIMULATED | {"constraints": {"memory_headroom": 0.1}}, "constrain peak_memory_bytes"),
    "seconds of different steps": (
        SIMULATED | {"objective": "step_seconds", "space": {"batch.accumulation": [1, 2]}},
        "a smaller step is no faster",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_no_trial_could_answer_leaves_the_name_free(
    name: str, command: Run, machine: Machine, study: Callable[..., Path], home: Path
) -> None:
    changes, words = UNFIT[name]
    command("tune", study(**changes)).refused(words)
    assert not (home / "studies" / "first").exists()


def test_a_bug_is_one_line_and_a_log(
    command: Run, machine: Machine, study: Callable[..., Path], home: Path
) -> None:
    def bug(*_: object) -> None:
        raise KeyError("surprise")

    machine.during = bug
    done = command("tune", study())
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("error: KeyError: 'surprise' (not your mistake; details in ")
    log = Path(last.rpartition("details in ")[2].removesuffix(")"))
    assert log.is_relative_to(home)
    assert "Traceback" in log.read_text()
    assert "Traceback" not in done.err


def test_what_is_set_beside_the_file(
    command: Run, machine: Machine, study: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be " * 100)
    options = ("--data", tmp_path / "text.txt", "--set", "space.batch.micro_batch=[1]", "name=second")
    done = command("tune", study(), *options, "--json")
    assert done.code == 0
    assert done.document["study"] == "second"
    assert machine.configs[0].data.path == str(tmp_path / "text.txt")
    assert {config.batch.micro_batch for config in machine.configs} <= {1, 2}


def test_a_pruned_trial_is_said_to_have_ended_early_once(capfd: pytest.CaptureFixture[str]) -> None:
    behind = "could not reach the leader, after 5 steps"
    ended = {"number": 1, "config": {}, "source": "sampler", "value": 700.0}
    for outcome, reason, last in (
        ("pruned", f"stopped early: {behind}", f"700 tokens/s, pruned: {behind}"),
        ("completed", "settled after 9 steps", "700 tokens/s; settled after 9 steps"),
        ("completed", "", "700 tokens/s"),
    ):
        trial = Trial(**ended, outcome=outcome, reason=reason)
        StudyProgress(fake_study()).update(Update("running", "search", 1, 3, trial))
        assert capfd.readouterr().err.splitlines()[-1].endswith(last)
