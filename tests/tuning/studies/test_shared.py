"""Several controllers on one study: they share its trials, confirm alone, obey together, and outlive each other."""

import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from engine.config.errors import InputError
from engine.run import ownership, run_folder
from engine.run.ownership import Owner
from tests.support.studies.controllers import Controller, check, no_controller_stays
from tests.support.studies.fake import Machine, run_study, study
from tuning.analysis import confirmation
from tuning.controllers.coordination import step_or_wait
from tuning.controllers.status import Update
from tuning.search.policy import Step
from tuning.storage import journal, study_folder
from tuning.storage.commands import send
from tuning.storage.controllers import StudyControllers, present_controllers
from tuning.storage.journal import Journal
from tuning.storage.state import StudyState, Trial

__all__ = ["no_controller_stays"]
pytestmark = pytest.mark.usefixtures("no_controller_stays")
TRIALS = 8
MANY = {"trials": TRIALS, "confirm_repeats": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "studies" / "first"


@pytest.mark.drawn(2, of="shared studies")
def test_two_controllers_share_the_trials_and_one_confirms(folder: Path) -> None:
    members = [Controller(folder, MANY, run_seconds=0.2) for _ in range(2)]
    members[0].begun()
    ends = [controller.end() for controller in members]
    assert [end[:2] for end in ends] == [("ended", TRIALS)] * 2
    state = check(folder, TRIALS)
    again = [trial for trial in state.trials if trial.confirms is not None]
    assert len(again) >= 2
    assert len({trial.lease.pid for trial in again if trial.lease}) == 1
    assert sum(end[2] for end in ends) == len(state.trials)
    assert min(end[2] for end in ends) > 0
    last = max(trial.ended_unix or 0.0 for trial in state.trials if trial.confirms is None)
    assert min(trial.proposed_unix for trial in again) >= last
    view = study_folder.load_study(folder)
    assert (view.state, view.status.controllers, view.status.running) == ("ended", [], [])
    assert (view.result or {})["trials_done"] == TRIALS
    assert list((folder / "controllers").iterdir()) == []


@pytest.mark.drawn(2, of="shared studies")
def test_a_killed_controller_leaves_one_lost_trial_that_the_other_settles(folder: Path) -> None:
    first = Controller(folder, MANY, run_seconds=0.3)
    first.begun()
    second = Controller(folder, MANY, run_seconds=60.0)
    second.begun()
    seen = study_folder.load_study(folder).status
    assert {member.pid for member in seen.controllers} == {first.process.pid, second.process.pid}
    assert len(seen.running) >= 1
    second.kill()
    assert first.end()[:2] == ("ended", TRIALS)
    state = check(folder, TRIALS, lost=1)
    lost = next(trial for trial in state.trials if trial.outcome == "lost")
    assert [trial.number for trial in state.trials if trial.retry_of == lost.number] != []
    assert study_folder.load_study(folder).state == "ended"


@pytest.mark.drawn(2, of="shared studies")
def test_a_command_anywhere_acts_on_all(folder: Path) -> None:
    members = [Controller(folder, {"trials": 200, "confirm_repeats": 0}, run_seconds=0.1) for _ in range(2)]
    for controller in members:
        controller.begun()
    send(folder, "pause", by="test")
    deadline = time.monotonic() + 20
    while journal.load(folder / "journal.jsonl").under_way or not _answers(folder):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    count = len(journal.load(folder / "journal.jsonl").trials)
    time.sleep(0.6)
    assert len(journal.load(folder / "journal.jsonl").trials) == count
    assert study_folder.load_study(folder).state == "paused"
    send(folder, "resume", by="test")
    while len(journal.load(folder / "journal.jsonl").trials) < count + 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    send(folder, "stop", by="test")
    assert [controller.end()[0] for controller in members] == ["ended", "ended"]
    assert _answers(folder) == ["pause", "resume", "stop"]
    again = run_study(study(trials=200, confirm_repeats=0, budget_seconds=1e-9), folder, Machine())
    assert again["state"] == "ended"
    assert study_folder.load_study(folder).state == "ended"


def _answers(folder: Path) -> list[str]:
    state = journal.load(folder / "journal.jsonl")
    return [answer.command for answer in state.answers.values() if answer.accepted]


def test_nobody_joins_without_asking_for_it(folder: Path) -> None:
    def second(number: int, run: Path | None) -> None:
        with pytest.raises(InputError, match="work on it together with --join"):
            run_study(study(trials=2), folder, Machine())

    run_study(study(trials=2), folder, Machine(during=second))


@pytest.mark.drawn(2, of="shared studies")
def test_who_joins_works_on_what_the_others_work_on(folder: Path) -> None:
    first = Controller(folder, {"trials": 4, "confirm_repeats": 0}, run_seconds=0.5)
    first.begun()
    found = run_study(study(trials=40, confirm_repeats=0), folder, Machine(), join=True)
    assert (found["trials_done"], found["trials_total"]) == (4, 4)
    first.end()
    check(folder, 4)


def test_lines_of_others_are_taken_over_in_one_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    one, other = Journal(path), Journal(path)
    one.append("proposal", number=0, config={}, source="baseline")
    assert other.state.trials == ()
    assert other.refresh()
    assert other.state == one.state
    other.append("tell", number=0, outcome="lost")
    with one.turn():
        one.append("tell", number=0, outcome="completed", value=1.0)
    assert not one.refresh()
    assert other.refresh()
    assert [each.state.trials[0].outcome for each in (one, other)] == ["lost", "lost"]
    assert one.state == other.state == journal.load(path)


def test_a_line_that_another_is_writing_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    reader = Journal(path)
    line = json.dumps({"at_unix": 1.0, "kind": "note", "text": "slow"}).encode() + b"\n"
    with path.open("ab", buffering=0) as file:
        file.write(line[:9])
        assert not reader.refresh()
        file.write(line[9:])
    assert reader.refresh()
    with path.open("ab", buffering=0) as file:
        file.write(line[:9])
    reader.append("note", text="after one that died")
    assert journal.load(path).notes == reader.state.notes == ("slow", "after one that died")
    assert reader.state.damage == ()


def lease(pid: int, host: str = "a") -> Owner:
    return Owner(pid, 1.0, host)


def trial(number: int, source: str = "sampler", **more: object) -> Trial:
    known = {"outcome": "completed", "value": 1.0, "lease": lease(1)} | more
    return Trial(number, {"n": number}, source, **known)  # type: ignore[arg-type]


SEARCH, CONFIRM, DONE = Step("search"), Step("confirm"), Step("done")


@pytest.mark.parametrize(
    ("step", "trials", "phase", "why"),
    [
        (SEARCH, [trial(0, "baseline", outcome=None)], "wait", "the baseline is measured first"),
        (SEARCH, [trial(0, "baseline"), trial(1, outcome=None)], "search", ""),
        (SEARCH, [trial(0, "baseline"), trial(1, outcome=None, confirms=0)], "wait", "alone"),
        (CONFIRM, [trial(0, "baseline"), trial(1, outcome=None)], "wait", "trial 1 must end"),
        (DONE, [trial(0, "baseline"), trial(1, outcome=None)], "wait", "trial 1 must end"),
        (CONFIRM, [trial(0, "baseline"), trial(1)], "confirm", ""),
        (CONFIRM, [trial(0, "baseline"), trial(1, confirms=0)], "wait", "another controller measures"),
        (CONFIRM, [trial(0, "baseline"), trial(1, confirms=0, lease=lease(2))], "confirm", ""),
        (DONE, [trial(0, "baseline"), trial(1, confirms=0)], "done", ""),
    ],
)
def test_what_waits_for_what(step: Step, trials: list[Trial], phase: str, why: str) -> None:
    found = step_or_wait(step, StudyState(trials=tuple(trials)), lambda of: of == lease(1))
    assert found.phase == phase
    assert why in found.why


def test_the_crew_knows_who_lives(tmp_path: Path) -> None:
    me = ownership.this_process()
    alone = StudyControllers(tmp_path, me)
    assert alone.join(3) == 3
    assert [member.pid for member in present_controllers(tmp_path)] == [me.pid]
    gone, far = replace(me, start_time=1.0), Owner(7, 5.0, "far")
    controllers = tmp_path / "controllers"
    run_folder.write_json(controllers / "gone.json", asdict(gone) | {"answered_before": 0})
    run_folder.write_json(
        controllers / "far.json", asdict(far) | {"answered_before": 2, "seen_unix": time.time()}
    )
    late = StudyControllers(tmp_path, replace(me, host="late"))
    assert late.join(9) == 2
    assert (late.has(far), late.has(me), late.has(gone), late.has(None)) == (True, True, False, False)
    assert late.may_be_gone(gone)
    late.leave()
    assert {member.host for member in present_controllers(tmp_path)} == {me.host, "far"}
    run_folder.write_json(
        controllers / "far.json", asdict(far) | {"answered_before": 2, "seen_unix": time.time() - 61}
    )
    assert {member.host for member in present_controllers(tmp_path)} == {me.host}


def test_only_runs_on_one_host_are_compared_with_each_other() -> None:
    file = study(confirm_repeats=1, confirm_runners_up=0)
    points = [file.search_space.baseline[0], file.search_space.legal_points[-1]]
    trials = [
        Trial(number, point, source, outcome="completed", value=1.0 + number, samples=(1.0 + number,) * 8)
        for number, (point, source) in enumerate(zip(points, ("baseline", "sampler"), strict=True))
    ]

    def after(*hosts: str) -> int | None:
        again = [
            replace(trials[arm], number=2 + arm, source="confirm", confirms=arm, lease=lease(1, host))
            for arm, host in enumerate(hosts)
        ]
        found = confirmation.next_window(StudyState(trials=(*trials, *again)), file)
        return found.trial.number if found else None

    assert (after(), after("a"), after("a", "a")) == (0, 1, None)
    assert after("a", "b") == 0


@pytest.mark.drawn(2, of="shared studies")
def test_a_controller_tells_of_the_last_trial_that_another_one_measured(folder: Path) -> None:
    """It waits for it, and has nothing more to do then."""
    told: list[int] = []

    def hear(news: Update) -> None:
        if news.trial is not None and news.trial.outcome is not None:
            told.append(news.trial.number)

    given = {"trials": 3, "confirm_repeats": 0}
    other = Controller(folder, given, run_seconds=1.5)
    other.begun()
    run_study(study(**given), folder, Machine(), hear, join=True)
    other.end()
    assert sorted(told) == [0, 1, 2]


def test_who_joins_clears_away_the_files_of_the_dead(tmp_path: Path) -> None:
    me = ownership.this_process()
    controllers = tmp_path / "controllers"
    controllers.mkdir()
    run_folder.write_json(controllers / "gone.json", asdict(me) | {"start_time": 1.0, "answered_before": 0})
    run_folder.write_json(controllers / "far.json", {"host": "far", "pid": 7, "start_time": 5.0})
    StudyControllers(tmp_path, me).join(3)
    assert sorted(path.name for path in controllers.glob("*.json")) == [
        "far.json",
        f"{me.host}-{me.pid}.json",
    ]
