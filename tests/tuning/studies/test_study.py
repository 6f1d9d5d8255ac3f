"""The loop: a whole study on a made-up machine, failures, retries, commands, and who may run it."""

import json
import os
import signal
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.run import ownership, run_folder
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.fake import Machine, Should, run_study, study
from tuning.controllers.status import Update
from tuning.execution.signals import Interruption
from tuning.space.points import point_key
from tuning.storage import journal, study_folder
from tuning.storage.commands import send


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "studies" / "first"


def test_a_study_from_file_to_result(folder: Path) -> None:
    machine, news = Machine(), list[Update]()
    found = run_study(study(trials=10), folder, machine, news.append)
    trials = found["trials"]
    assert [trial["number"] for trial in trials] == list(range(10))
    assert trials[0]["source"] == "baseline"
    assert len({point_key(trial["config"]) for trial in trials}) == 10
    best = found["best"]["trial"]
    assert [trial["confirms"] for trial in found["confirmations"]][:6] == [0, best, best, 0, 0, best]
    assert (found["state"], found["gain"]["verdict"], found["gain"]["confirmed"]) == ("ended", "better", True)
    assert found["best"]["config"]["parallel.pp"] == 2
    assert machine.labels[0] == {"study": "first", "trial": "0", "purpose": "baseline"}
    assert run_folder.read_json(folder / "result.json") == json.loads(json.dumps(found))
    assert sum(found["importance"]["values"].values()) == pytest.approx(1)
    assert news[-1].state == "ended"
    assert (news[-1].trials_done, news[-1].phase) == (10, "done")


def test_the_folder_tells_the_page_everything(folder: Path) -> None:
    seen: list[study_folder.StudyView] = []
    machine = Machine(during=lambda number, run: seen.append(study_folder.load_study(folder)))
    run_study(study(trials=3), folder, machine)
    assert (seen[1].state, seen[1].alive) == ("running", True)
    assert seen[1].status.current_run == seen[1].journal.trials[1].run
    assert seen[1].result is not None
    view = study_folder.load_study(folder)
    assert view.state == "ended"
    assert view.file is not None
    assert view.file.fingerprint() == study().fingerprint()
    assert (folder / "study.yaml").read_text().startswith("name: first")
    assert study_folder.list_studies(folder.parent.parent) == [folder]


def test_the_machine_never_waits_long_between_trials(folder: Path) -> None:
    machine = Machine()
    run_study(study(trials=10), folder, machine)
    assert median(b - a for a, b in zip(machine.ends, machine.begins[1:], strict=False)) < 1


def test_a_small_space_ends_the_study_early(folder: Path) -> None:
    found = run_study(
        study(trials=20, space={"parallel.tp": [1, 2], "batch.micro_batch": [2, 4]}), folder, Machine()
    )
    assert len(found["trials"]) == 4
    assert found["state"] == "ended"


def test_the_same_command_again_measures_nothing_again(folder: Path) -> None:
    first = run_study(study(), folder, Machine())
    again = Machine()
    assert run_study(study(), folder, again)["trials"] == json.loads(json.dumps(first["trials"]))
    assert again.configs == []
    grown = run_study(study(trials=8), folder, again)
    assert len(grown["trials"]) == 8
    assert grown["trials"][:6] == json.loads(json.dumps(first["trials"]))


def test_failures_are_data_with_a_reason(folder: Path) -> None:
    out_of_memory = RunOutcome(Ending.OOM, "rank 1 ran out of memory", 1, "backward")
    machine = Machine(by_config=lambda config: out_of_memory if config.batch.micro_batch == 4 else None)
    found = run_study(study(trials=8), folder, machine)
    failed = [trial for trial in found["trials"] if trial["outcome"] == "oom"]
    assert failed
    for trial in failed:
        assert (trial["value"], trial["rank"], trial["phase"]) == (None, 1, "backward")
        assert trial["constraints"] == {"oom": 1.0}
    assert found["best"]["config"]["batch.micro_batch"] < 4


@pytest.mark.parametrize(("steps", "winner"), [(24, "none"), (120, "topk")])
def test_a_lossy_setting_needs_proof(folder: Path, steps: int, winner: str) -> None:
    base = {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": steps}}
    space = {"compression.method": ["none", "topk"], "batch.micro_batch": [1, 2, 4], "parallel.tp": [1, 2]}
    found = run_study(study(trials=8, base=base, space=space), folder, Machine())
    lossy = [trial for trial in found["trials"] if trial["config"]["compression.method"] == "topk"]
    assert found["best"]["config"]["compression.method"] == winner
    assert found["fastest_lossy"]["faster_than_best_exact"]
    assert 1 <= len(lossy) <= (2 if winner == "none" else 6)
    assert all(trial["value"] is not None for trial in lossy)


def test_bad_luck_is_tried_again_and_counts_once(folder: Path) -> None:
    machine = Machine(endings={1: RunOutcome(Ending.HANG, "rank 2 was silent", 2)})
    found = run_study(study(), folder, machine)
    hung, retry = found["trials"][1:3]
    assert (hung["outcome"], hung["constraints"]) == ("hang", {})
    assert (retry["source"], retry["retry_of"], retry["outcome"]) == ("retry", 1, "completed")
    assert (retry["config"], found["trials_done"], len(found["trials"])) == (hung["config"], 6, 7)


def test_the_baseline_is_the_baseline_when_it_is_tried_again(folder: Path) -> None:
    """Whoever runs trials does other things for it, by its purpose."""
    machine = Machine(endings={0: RunOutcome(Ending.HANG, "rank 2 was silent", 2)})
    found = run_study(study(), folder, machine)
    assert [trial["source"] for trial in found["trials"][:2]] == ["baseline", "retry"]
    assert [labels["purpose"] for labels in machine.labels[:2]] == ["baseline", "baseline"]


def test_what_fails_twice_is_a_constraint(folder: Path) -> None:
    crashed = RunOutcome(Ending.CRASHED, "an assertion")
    found = run_study(study(), folder, Machine(endings={1: crashed, 2: crashed}))
    assert [trial["constraints"] for trial in found["trials"][1:3]] == [{}, {"crashed": 1.0}]
    assert found["trials"][3]["source"] == "sampler"


def test_a_killed_rank_is_nobodys_fault(folder: Path) -> None:
    killed = RunOutcome(Ending.CRASHED, "SIGKILL", 0, killed_from_outside=True)
    found = run_study(study(), folder, Machine(endings={0: killed}))
    assert [trial["outcome"] for trial in found["trials"][:2]] == ["crashed", "completed"]
    assert found["baseline"]["trial"] == 1


def test_another_question_under_the_same_name_is_refused(folder: Path) -> None:
    run_study(study(trials=2), folder, Machine())
    before = (folder / "journal.jsonl").read_bytes()
    other = study(space=study().resolve()["space"] | {"parallel.tp": [1, 2]})
    with pytest.raises(
        InputError, match=r"another question: space.parallel.tp \(\[1, 2, 4\] before, now \[1, 2\]\)"
    ):
        run_study(other, folder, Machine())
    assert (folder / "journal.jsonl").read_bytes() == before


def test_a_study_has_one_owner(folder: Path) -> None:
    def second(number: int, run: Path | None) -> None:
        with pytest.raises(InputError, match=f"already being run by process {os.getpid()}") as caught:
            run_study(study(), folder, Machine())
        assert "\n" not in str(caught.value)

    found = run_study(study(trials=2), folder, Machine(during=second))
    assert found["state"] == "ended"


@pytest.mark.drawn(3, of="studies that are steered")
def test_a_dead_owner_is_replaced(folder: Path) -> None:
    folder.mkdir(parents=True)
    dead = asdict(replace(ownership.this_process(), start_time=1.0))
    run_folder.write_json(folder / "status.json", {"state": "running", "owner": dead})
    assert study_folder.load_study(folder).state == "interrupted"
    assert run_study(study(trials=2), folder, Machine())["state"] == "ended"


def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "studies").write_text("not a folder")
    with pytest.raises(InputError, match="cannot be written"):
        run_study(study(), tmp_path / "studies" / "first", Machine())


def test_a_mistake_found_late_costs_no_trial(folder: Path) -> None:
    def refuse(number: int, run: Path | None) -> None:
        raise InputError("data.path", "missing.txt", "no such file")

    with pytest.raises(InputError, match="no such file"):
        run_study(study(), folder, Machine(during=refuse))
    assert study_folder.load_study(folder).state == "interrupted"
    found = run_study(study(), folder, Machine())
    assert [trial["outcome"] for trial in found["trials"]] == ["completed"] * 6


@pytest.mark.drawn(3, of="studies that are steered")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_study_goes_on(folder: Path, number: signal.Signals) -> None:
    machine = Machine(during=lambda count, run: os.kill(os.getpid(), number) if count == 2 else None)
    found = run_study(study(), folder, machine)
    assert (found["state"], found["trials"][2]["outcome"]) == ("interrupted", "stopped")
    assert number.name in found["trials"][2]["reason"]
    assert signal.getsignal(number) is not None
    found = run_study(study(), folder, Machine())
    assert (found["trials"][3]["source"], found["trials"][3]["config"]) == (
        "retry",
        found["trials"][2]["config"],
    )
    assert (found["trials_done"], len(machine.configs)) == (6, 3)


@pytest.mark.parametrize(("ending", "told"), [(Ending.CRASHED, "stopped"), (Ending.OOM, "oom")])
def test_ranks_that_the_same_signal_killed_did_not_crash(folder: Path, ending: Ending, told: str) -> None:
    class Dying(Machine):
        """Its ranks end as they do, whoever wants the run to stop."""

        def _outcome(self, number: int, config: RunConfig, should_stop: Should) -> RunOutcome:
            return RunOutcome(ending) if number == 1 else RunOutcome(Ending.COMPLETED)

    machine = Dying(during=lambda count, run: os.kill(os.getpid(), signal.SIGTERM) if count == 1 else None)
    assert run_study(study(), folder, machine)["trials"][1]["outcome"] == told


def test_nohup_is_obeyed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interruption.seen
    finally:
        signal.signal(signal.SIGHUP, before)


def answers(folder: Path) -> list[tuple[str, bool, str]]:
    state = journal.load(folder / "journal.jsonl")
    return [(answer.command, answer.accepted, answer.reason) for answer in state.answers.values()]


def commanded(folder: Path, *orders: tuple[int, str, dict[str, Any]], trials: int = 4) -> dict[str, Any]:
    """A study that gets each order during the execution of its number."""
    sent: list[str] = []

    def during(number: int, run: Path | None) -> None:
        for at, command, arguments in orders:
            if at == number:
                sent.append(send(folder, command, arguments, "test"))

    def heard() -> bool:
        return journal.load(folder / study_folder.JOURNAL).answers.keys() >= set(sent)

    return run_study(study(trials=trials), folder, Machine(during=during, run_seconds=0.25, heard=heard))


def test_stop_ends_the_study_with_its_result(folder: Path) -> None:
    found = commanded(folder, (1, "stop", {}))
    assert [trial["outcome"] for trial in found["trials"]] == ["completed", "stopped"]
    assert (found["state"], found["best"]["trial"]) == ("ended", 0)
    assert answers(folder) == [("stop", True, "the study ends with what it has")]
    assert run_study(study(trials=3), folder, Machine())["trials_done"] == 3


@pytest.mark.drawn(3, of="studies that are steered")
def test_kill_stops_only_the_running_trial(folder: Path) -> None:
    found = commanded(folder, (1, "kill", {"trial": 1}), (2, "kill", {"trial": 0}))
    assert (found["trials"][1]["outcome"], found["trials"][1]["reason"]) == ("stopped", "killed by command")
    assert [trial["source"] for trial in found["trials"]].count("retry") == 0
    assert answers(folder)[1][1:] == (False, "trial=0: is not running; trial 2 is")


@pytest.mark.drawn(3, of="studies that are steered")
def test_a_point_by_hand_comes_next(folder: Path) -> None:
    by_hand = {"parallel.tp": 4, "batch.micro_batch": 4}
    illegal = {"parallel.tp": 2, "parallel.pp": 4}
    found = commanded(
        folder, (0, "enqueue", by_hand), (0, "enqueue", illegal), (0, "enqueue", by_hand), (1, "dance", {})
    )
    assert (found["trials"][1]["source"], found["trials"][1]["config"]["parallel.tp"]) == ("enqueued", 4)
    first, second, third, unknown = answers(folder)
    assert first[1:] == (True, "next: dp=1 tp=4 pp=1 zero=0 micro_batch=4")
    assert "must be the study's 4 ranks" in second[2]
    assert "is already waiting" in third[2]
    assert (unknown[1], "unknown; a study obeys pause" in unknown[2]) == (False, True)


@pytest.mark.drawn(3, of="studies that are steered")
def test_pause_holds_after_the_running_trial(folder: Path) -> None:
    def news(update: Update) -> None:
        if update.state == "paused":
            send(folder, "resume", {}, "test")

    machine = Machine(
        during=lambda number, run: send(folder, "pause") and None if number == 1 else None, run_seconds=0.25
    )
    found = run_study(study(trials=3), folder, machine, news)
    assert [trial["outcome"] for trial in found["trials"]] == ["completed"] * 3
    assert [command for command, accepted, _ in answers(folder) if accepted] == ["pause", "resume"]
    assert machine.begins[2] - machine.ends[1] > 0.1


def test_commands_survive_a_dead_owner_and_are_applied_once(folder: Path) -> None:
    send(folder, "enqueue", {"parallel.pp": 2, "batch.micro_batch": 4}, "test")
    found = run_study(study(trials=3), folder, Machine())
    assert [trial["source"] for trial in found["trials"]] == ["baseline", "enqueued", "sampler"]
    found = run_study(study(trials=5), folder, Machine())
    assert [trial["source"] for trial in found["trials"]].count("enqueued") == 1
