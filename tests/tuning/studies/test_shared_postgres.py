"""A study in PostgreSQL: several homes share it, lose controllers and connections, and keep the password secret."""

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from engine.config.errors import InputError
from engine.run import run_folder
from tests.support.studies.controllers import Controller, check, no_controller_stays
from tests.support.studies.fake import Machine, run_study, study
from tests.support.studies.postgres import PASSWORD, Server, missing, server
from tests.support.waiting import wait_until
from tuning.storage import journal, study_folder
from tuning.storage.commands import send
from tuning.storage.postgres.database import address

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is a server"),
    pytest.mark.usefixtures("no_controller_stays"),
]
__all__ = ["no_controller_stays"]
TRIALS = 30
FEW = {"trials": 4, "confirm_repeats": 0}
OTHERS = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = '{}'"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with server() as found:
        yield found


@pytest.fixture
def storage(postgres: Server) -> str:
    return postgres.fresh()


def home(tmp_path: Path, name: str) -> Path:
    return tmp_path / name / "studies" / "first"


def database_of(storage: str) -> str:
    return storage.partition("@/")[2].partition("?")[0]


@contextlib.contextmanager
def opened(storage: str) -> Iterator[optuna.Study]:
    """The study as Optuna's tools see it."""
    known = optuna.storages.RDBStorage(address(storage).for_optuna)
    try:
        yield optuna.create_study(study_name="first", storage=known, load_if_exists=True)
    finally:
        known.remove_session()
        known.engine.dispose()


def mirrored(storage: str) -> list[int]:
    """Numbers of the trials that Optuna's tools see."""
    with opened(storage) as found:
        return [trial.user_attrs["number"] for trial in found.get_trials(deepcopy=False)]


@pytest.mark.drawn(4, of="studies in PostgreSQL")
def test_three_homes_share_a_study_and_one_is_killed(tmp_path: Path, storage: str) -> None:
    given = {"trials": TRIALS, "confirm_repeats": 1, "confirm_runners_up": 0}
    folders = [home(tmp_path, name) for name in "abc"]
    members = [Controller(folder, given, run_seconds=0.15, storage=storage) for folder in folders[:2]]
    members[0].begun()  # the baseline is measured by now, or measured by these two
    killed = Controller(folders[2], given, run_seconds=60.0, storage=storage)
    killed.begun()
    killed.kill()
    ends = [controller.end() for controller in members]
    assert [end[:2] for end in ends] == [("ended", TRIALS)] * 2
    assert min(end[2] for end in ends) > 0
    state = check(folders[0], TRIALS, lost=1)
    assert journal.load(folders[1] / "journal.jsonl") == state
    assert sum(end[2] for end in ends) == len(state.trials) - 1
    again = [trial for trial in state.trials if trial.confirms is not None]
    assert len({trial.lease.pid for trial in again if trial.lease}) == 1
    assert sorted(mirrored(storage)) == [trial.number for trial in state.trials if trial.confirms is None]
    view = study_folder.load_study(folders[1])
    assert (view.state, view.result and view.result["trials_done"]) == ("ended", TRIALS)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


@pytest.mark.drawn(4, of="studies in PostgreSQL")
def test_a_lost_connection_loses_no_trial(tmp_path: Path, storage: str, postgres: Server) -> None:
    """It is cut in the middle of a trial, once so that nobody can connect again until the trial is over."""
    folder, name, cut = home(tmp_path, "a"), database_of(storage), list[int]()

    def during(number: int, run: Path | None) -> None:
        if number in (1, 2):
            postgres.run("postgres", f"alter database {name} allow_connections {number != 2}")
            cut.append(int(str(postgres.run("postgres", OTHERS.format(name))[0][0])))

    def news(update: object) -> None:
        if "asked again" in update.note:  # type: ignore[attr-defined]
            notes.append(update.note)  # type: ignore[attr-defined]
            assert (folder / "outbox.jsonl").exists()
            postgres.run("postgres", f"alter database {name} allow_connections true")

    notes: list[str] = []
    machine = Machine(during=during, run_seconds=0.3)
    found = run_study(study(**FEW), folder, machine, news, storage=storage)
    assert (found["state"], found["trials_done"], len(machine.configs)) == ("ended", 4, 4)
    assert min(cut) >= 1
    assert all("does not answer" in note and PASSWORD not in note for note in notes)
    assert notes
    check(folder, 4)
    assert not (folder / "outbox.jsonl").exists()
    assert sorted(mirrored(storage)) == [0, 1, 2, 3]


@pytest.mark.drawn(4, of="studies in PostgreSQL")
def test_a_study_moves_into_a_database_and_on_to_another_home(tmp_path: Path, storage: str) -> None:
    first, second = home(tmp_path, "a"), home(tmp_path, "b")
    run_study(study(**FEW | {"trials": 2}), first, Machine())
    found = run_study(study(**FEW), first, Machine(), storage=storage)
    assert found["trials_done"] == 4
    with pytest.raises(InputError, match="is kept in postgresql://bench@/d") as refused:
        run_study(study(**FEW), first, Machine())
    assert PASSWORD not in str(refused.value)
    again = Machine()
    assert run_study(study(**FEW), second, again, storage=storage)["trials_done"] == 4
    assert again.configs == []
    copied = [(folder / "journal.jsonl").read_bytes() for folder in (first, second)]
    assert copied[0] == copied[1]
    other = home(tmp_path, "c")
    run_study(study(**FEW | {"trials": 2, "seed": 3}), other, Machine())
    with pytest.raises(InputError, match="holds another study first than"):
        run_study(study(**FEW), other, Machine(), storage=storage)
    with pytest.raises(InputError, match="asks another question"):
        run_study(study(**FEW, ranks=2), second, Machine(), storage=storage)


@pytest.mark.drawn(4, of="studies in PostgreSQL")
def test_commands_act_on_controllers_of_other_homes(tmp_path: Path, storage: str) -> None:
    folders = [home(tmp_path, name) for name in "ab"]
    many = {"trials": 200, "confirm_repeats": 0}
    members = [Controller(folder, many, run_seconds=0.2, storage=storage) for folder in folders]
    for controller in members:
        controller.begun()
    send(folders[1], "widen", {"batch.global_batch": "3"}, "test")
    send(folders[1], "stop", by="test")
    assert [controller.end()[0] for controller in members] == ["ended", "ended"]
    answers = [list(journal.load(folder / "journal.jsonl").answers.values()) for folder in folders]
    assert answers[0] == answers[1]
    assert [(answer.command, answer.accepted) for answer in answers[0]] == [("widen", False), ("stop", True)]


@pytest.mark.drawn(4, of="studies in PostgreSQL")
def test_a_widened_study_goes_on_in_the_database_in_every_home(tmp_path: Path, storage: str) -> None:
    """Two homes go over while they run; one that was away, and one that comes later, find the way by the first file."""
    folders = [home(tmp_path, name) for name in "abcd"]
    run_study(study(**FEW | {"trials": 1}), folders[2], Machine(), storage=storage)
    many = {"trials": 12, "confirm_repeats": 0}
    members = [Controller(folder, many, run_seconds=0.15, storage=storage) for folder in folders[:2]]
    for controller in members:
        controller.begun()
    send(folders[1], "widen", {"batch.micro_batch": "8"}, "test")
    ends = [controller.end() for controller in members]
    assert [end[:2] for end in ends] == [("ended", 12)] * 2
    assert sum(end[2] for end in ends) == 11
    state = check(folders[0].parent / "first.2", 12)
    assert state.continues == ("first",)
    assert 8 in {trial.config["batch.micro_batch"] for trial in state.trials}
    late = Machine()
    for folder in folders[2:]:
        found = run_study(study(**many | {"trials": 13}), folder, late, storage=storage)
        assert (found["study"], found["trials_done"]) == ("first.2", 13)
    assert len(late.configs) == 1
    for folder in folders:
        assert study_folder.latest(folder).name == "first.2"
        assert study_folder.list_studies(folder.parent.parent) == [folder.parent / "first.2"]
        assert study_folder.history(folder.parent.parent, "first") == {"first", "first.2"}
    for name in ("first", "first.2"):
        kept = {(folder.parent / name / "journal.jsonl").read_bytes() for folder in folders[2:]}
        assert len(kept) == 1
    with pytest.raises(InputError, match="is kept in postgresql://bench@/d"):
        run_study(study(**many), folders[0], Machine())


@pytest.mark.drawn(4, of="studies in PostgreSQL")
def test_a_pause_holds_where_a_widened_study_goes_on(tmp_path: Path, storage: str) -> None:
    folder = home(tmp_path, "a")
    controller = Controller(folder, {"trials": 6, "confirm_repeats": 0}, run_seconds=0.3, storage=storage)
    controller.begun()
    send(folder, "widen", {"batch.micro_batch": "8"}, "test")
    send(folder, "pause", by="test")
    successor = folder.parent / "first.2"
    assert wait_until(
        lambda: (run_folder.read_json(successor / run_folder.STATUS) or {}).get("state") == "paused", 20.0
    )
    done = len(journal.load(successor / "journal.jsonl").trials)
    time.sleep(0.5)
    assert len(journal.load(successor / "journal.jsonl").trials) == done < 6
    send(study_folder.latest(folder), "resume", by="test")
    assert controller.end()[:2] == ("ended", 6)


@pytest.mark.drawn(4, of="studies in PostgreSQL")
def test_a_crash_between_the_answer_and_the_successor_loses_nothing(
    tmp_path: Path, storage: str, postgres: Server
) -> None:
    folder, few = home(tmp_path, "a"), FEW | {"trials": 3}
    run_study(study(**few), folder, Machine(), storage=storage)
    send(folder, "widen", {"batch.micro_batch": "8"}, "test")
    found = run_study(study(**few), folder, Machine(), storage=storage)
    postgres.run(database_of(storage), "delete from workbench_journal where study = 'first.2'")
    shutil.rmtree(folder.parent / "first.2")
    send(folder, "enqueue", {"batch.micro_batch": "8"}, "test")  # nobody answered it: it is the successor's
    again = run_study(study(**few | {"trials": 4}), folder, Machine(), storage=storage)
    assert (again["study"], again["trials_done"]) == ("first.2", 4)
    assert again["trials"][:3] == found["trials"]
    assert again["trials"][3]["config"]["batch.micro_batch"] == 8


@pytest.mark.drawn(4, of="studies in PostgreSQL")
def test_a_name_that_is_taken_is_not_gone_over_to(tmp_path: Path, storage: str) -> None:
    """In the database the command is refused; in another home its controller ends with a line, and others go on."""
    first, second = home(tmp_path, "a"), home(tmp_path, "b")
    run_study(study(name="first.2", **FEW), second.parent / "first.2", Machine())
    run_study(study(**FEW), first, Machine(), storage=storage)
    send(first, "widen", {"batch.micro_batch": "8"}, "test")
    found = run_study(study(**FEW | {"trials": 5}), first, Machine(), storage=storage)
    assert (found["study"], found["trials_done"]) == ("first.2", 5)
    with pytest.raises(InputError, match=r"asks another question|holds another study") as refused:
        run_study(study(**FEW), second, Machine(), storage=storage)
    assert "\n" not in str(refused.value)
    assert len(journal.load(second.parent / "first.2" / "journal.jsonl").trials) == 4
    run_study(
        study(name="other.2", **FEW), home(tmp_path, "c").parent / "other.2", Machine(), storage=storage
    )
    other = first.parent / "other"
    run_study(study(name="other", **FEW), other, Machine(), storage=storage)
    send(other, "widen", {"batch.micro_batch": "8"}, "test")
    answers = run_study(study(name="other", **FEW), other, Machine(), storage=storage)["steering"]
    assert [(answer["accepted"], "other.2" in answer["reason"]) for answer in answers] == [(False, True)]


def test_another_kind_of_machine_is_refused(tmp_path: Path, storage: str, postgres: Server) -> None:
    run_study(study(**FEW | {"trials": 1}), home(tmp_path, "a"), Machine(), storage=storage)
    line = postgres.run(database_of(storage), "select line from workbench_journal where seq = 1")[0][0]
    moved = json.dumps(json.loads(str(line)) | {"machine": "elsewhere"})
    postgres.run(database_of(storage), f"update workbench_journal set line = '{moved}' where seq = 1")
    with pytest.raises(InputError, match="is measured on machines of kind elsewhere"):
        run_study(study(**FEW), home(tmp_path, "b"), Machine(), storage=storage)
    assert study_folder.load_study(home(tmp_path, "b")).state == "interrupted"


@pytest.mark.drawn(4, of="studies in PostgreSQL")
def test_a_study_of_somebody_else_in_optuna_is_left_alone(tmp_path: Path, storage: str) -> None:
    with opened(storage) as theirs:
        theirs.add_trial(optuna.create_trial(value=1.0))
    found = run_study(study(**FEW), home(tmp_path, "a"), Machine(), storage=storage)
    assert found["trials_done"] == 4
    notes = journal.load(home(tmp_path, "a") / "journal.jsonl").notes
    assert any("was not made from this journal" in note for note in notes)
    with opened(storage) as theirs:
        assert len(theirs.get_trials(deepcopy=False)) == 1


def test_a_database_that_does_not_answer_is_one_line(tmp_path: Path, postgres: Server) -> None:
    began = time.monotonic()
    for url in (postgres.url("nothing"), postgres.url("postgres", "wr0ng-secret")):
        with pytest.raises(InputError, match="does not answer") as refused:
            run_study(study(**FEW), home(tmp_path, "a"), Machine(), storage=url)
        assert "\n" not in str(refused.value)
        assert not any(secret in str(refused.value) for secret in (PASSWORD, "wr0ng-secret"))
    assert time.monotonic() - began < 10
