"""Steering a study while it runs: the mask, the budget, the sampler, and a successor where the space grows."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.fake import Machine, run_study, study
from tuning.controllers import commands
from tuning.sampling.optuna_export import Mirror
from tuning.space.points import point_key
from tuning.spec.study_file import StudyFile
from tuning.storage import journal, study_folder
from tuning.storage.commands import send
from tuning.storage.state import StudyState

pytestmark = pytest.mark.drawn(12, of="steering")

Order = tuple[int, str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent during an execution is obeyed before it ends, however short it is."""
    monkeypatch.setattr(commands, "POLL_SECONDS", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "studies" / "first"


def steered(folder: Path, file: StudyFile, *orders: Order, **machine: Any) -> dict[str, Any]:
    """A study that gets each order during the execution of its number."""

    def during(number: int, run: Path | None) -> None:
        for at, command, arguments in orders:
            if at == number:
                send(study_folder.latest(folder), command, arguments, "test")

    return run_study(file, folder, Machine(during=during, run_seconds=0.01, **machine))


def answers(found: dict[str, Any]) -> list[tuple[str, bool, str]]:
    return [(event["command"], event["accepted"], event["reason"]) for event in found["steering"]]


def rows(found: dict[str, Any], source: str = "sampler") -> list[dict[str, Any]]:
    return [row["config"] for row in found["trials"] if row["source"] == source]


def test_proposals_keep_to_what_is_pinned_and_nothing_fails(folder: Path) -> None:
    found = steered(folder, study(trials=8), (0, "pin", {"parallel.pp": 2, "memory.recompute": "none"}))
    assert {(point["parallel.pp"], point["memory.recompute"]) for point in rows(found)} == {(2, "none")}
    assert {row["outcome"] for row in found["trials"]} == {"completed"}
    assert found["mask"] == {"parallel.pp": [2], "memory.recompute": ["none"]}
    assert answers(found) == [
        ("pin", True, "the search is limited to parallel.pp: 2; memory.recompute: none")
    ]
    event = found["steering"][0]
    assert (event["by"], event["arguments"]) == ("test", {"parallel.pp": 2, "memory.recompute": "none"})
    assert event["at_unix"] > 0
    assert {0, found["best"]["trial"]} <= {row["confirms"] for row in found["confirmations"]}


def test_a_mask_outlives_its_owner_and_can_be_lifted(folder: Path) -> None:
    steered(folder, study(trials=3), (0, "narrow", {"batch.micro_batch": "1,2"}))
    found = run_study(study(trials=7), folder, Machine())
    assert {point["batch.micro_batch"] for point in rows(found)} <= {1, 2}
    send(folder, "unpin", {"batch.micro_batch": "all"}, "test")
    send(folder, "pin", {"batch.micro_batch": 4}, "test")
    found = run_study(study(trials=9), folder, Machine())
    assert [row["config"]["batch.micro_batch"] for row in found["trials"][7:]] == [4, 4]
    send(folder, "widen", {"batch.micro_batch": "2,4"}, "test")
    send(folder, "widen", {"parallel.tp": 2}, "test")
    found = run_study(study(trials=10), folder, Machine())
    assert found["mask"] == {"batch.micro_batch": [2, 4]}
    assert answers(found)[-1][1:] == (False, answers(found)[-1][2])
    assert "is not narrowed" in answers(found)[-1][2]


@pytest.mark.parametrize(
    ("command", "arguments", "reason"),
    [
        ("pin", {"parallel.tp": 4, "parallel.pp": 4}, "leaves no legal point"),
        ("pin", {"parallel.tp": "1,2"}, "pin takes one value"),
        ("narrow", {"parallel.tp": "1,3"}, "was not declared"),
        ("narrow", {"model.preset": "tiny"}, "is not turned by this study"),
        ("narrow", {}, "needs at least one key"),
        ("unpin", {"parallel.tp": "all"}, "is not pinned or narrowed; now: nothing"),
        ("widen", {"parallel.tp": 3}, "no legal point of 4 ranks has it"),
        ("widen", {"batch.global_batch": 3}, "set it in base"),
        ("budget", {"trials": 0}, "at least 1"),
        (
            "budget",
            {"weather": 3},
            "known: trials, confirm_repeats, confirm_runners_up, equal_within, seconds",
        ),
        ("sampler", {"name": "luck"}, "sampler"),
        ("sampler", {"name": "cmaes"}, "is a category"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    folder: Path, command: str, arguments: dict[str, Any], reason: str
) -> None:
    send(folder, command, arguments, "test")
    found = run_study(study(trials=1, confirm_repeats=0), folder, Machine())
    ((said, accepted, why),) = answers(found)
    assert (said, accepted, found["mask"], found["budget_settings"]["trials"]) == (command, False, {}, 1)
    assert reason in why
    assert "\n" not in why


def test_a_mask_that_runs_out_ends_the_search_and_can_be_lifted(folder: Path) -> None:
    send(folder, "pin", {"parallel.tp": 4, "memory.recompute": "none", "parallel.zero_stage": 0}, "test")
    found = run_study(study(trials=12), folder, Machine())
    assert {point["batch.micro_batch"] for point in rows(found)} == {1, 2, 4}
    assert found["state"] == "ended"
    assert found["trials_done"] == 4
    notes = journal.load(folder / study_folder.JOURNAL).notes
    assert notes == ("every legal point inside the mask (parallel.tp: 4; memory.recompute: none;"
                     " parallel.zero_stage: 0) was measured",)  # fmt: skip
    send(folder, "unpin", {"memory.recompute": "all"}, "test")
    assert run_study(study(trials=12), folder, Machine())["trials_done"] == 7


def test_a_point_by_hand_may_lie_outside(folder: Path) -> None:
    orders = [(0, "pin", {"parallel.tp": 1}), (1, "enqueue", {"parallel.tp": 4})]
    found = steered(folder, study(trials=4), *orders)
    assert [point["parallel.tp"] for point in rows(found, "enqueued")] == [4]
    assert "parallel.tp=4 is masked (1), measured nevertheless" in answers(found)[1][2]


def test_the_budget_grows_and_shrinks(folder: Path) -> None:
    found = steered(folder, study(trials=3), (1, "budget", {"trials": 5}))
    assert (found["trials_done"], found["trials_total"], found["budget_settings"]["trials"]) == (5, 5, 5)
    assert run_study(study(trials=3), folder, Machine())["trials_done"] == 5
    send(folder, "budget", {"trials": 2, "seconds": 600}, "test")
    found = run_study(study(trials=3), folder, Machine())
    assert (
        answers(found)[-1][2]
        == "the budget is trials=2, seconds=600 from here on; 5 are done, so the search ends"
    )
    assert found["budget_settings"]["seconds"] == 600
    grown = run_study(study(trials=6), folder, Machine())
    assert (grown["trials_done"], grown["budget_settings"]["trials"]) == (6, 6)


def test_money_without_a_price_is_no_budget(folder: Path) -> None:
    found = steered(folder, study(trials=3), (1, "budget", {"money": 3}), (2, "budget", {"gpu_hours": 9.0}))
    (_, money, reason), (_, hours, _) = answers(found)
    assert (money, hours) == (False, True)
    assert "needs a price" in reason
    assert found["budget_settings"]["gpu_hours"] == 9.0


def test_the_sampler_changes_and_says_why(folder: Path) -> None:
    file = study(trials=10, space={"parallel.tp": [1, 2, 4], "batch.micro_batch": [1, 2, 4]})
    found = steered(folder, file, (1, "sampler", {"name": "random"}))
    assert found["sampler"] == {"name": "random", "reason": "asked for"}
    assert answers(found) == [("sampler", True, "random from here on: asked for")]
    assert len({point_key(row["config"]) for row in found["trials"]}) == len(found["trials"])


def test_ctrl_c_while_a_widened_study_goes_over_is_heard(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the first study has nothing more to ask."""
    check = Mirror.check

    def interrupted(mirror: Mirror, state: StudyState) -> str:
        if state.successor is not None:
            signal.raise_signal(signal.SIGINT)
        return check(mirror, state)

    monkeypatch.setattr(Mirror, "check", interrupted)
    found = steered(folder, study(trials=6), (1, "widen", {"batch.micro_batch": 8}))
    assert (found["study"], found["state"], found["trials_done"]) == ("first.2", "interrupted", 2)
    assert run_study(study(trials=6), folder, Machine())["trials_done"] == 6


def test_widening_opens_a_successor_with_every_trial(folder: Path) -> None:
    out_of_memory = RunOutcome(Ending.OOM, "rank 1 ran out of memory", 1, "backward")
    found = steered(
        folder, study(trials=7), (1, "pin", {"memory.recompute": "none"}), (3, "widen", {"batch.micro_batch": 8}),
        endings={2: out_of_memory},
    )  # fmt: skip
    assert (found["study"], found["continues"], found["state"]) == ("first.2", ["first"], "ended")
    assert [row["number"] for row in found["trials"]] == list(range(len(found["trials"])))
    assert found["trials_done"] == 7
    assert found["trials"][2]["outcome"] == "oom"
    assert len({point_key(row["config"]) for row in found["trials"]}) == 7
    assert [event["command"] for event in found["steering"]] == ["pin", "widen"]
    assert found["mask"] == {"memory.recompute": ["none"]}
    old = study_folder.load_study(folder)
    assert (old.state, old.result and old.result["continued_in"]) == ("continued", "first.2")
    assert old.result is not None
    assert old.result["result_line"].endswith("continued in first.2")
    assert study_folder.latest(folder).name == "first.2"
    assert study_folder.list_studies(folder.parent.parent) == [folder.parent / "first.2"]
    assert study_folder.history(folder.parent.parent, "first") == {"first", "first.2"}


def test_the_first_file_goes_on_with_the_successor(folder: Path) -> None:
    steered(folder, study(trials=4), (2, "widen", {"batch.micro_batch": 8, "overlap.bucket_mb": "1,25"}))
    before = (folder / study_folder.JOURNAL).read_bytes()
    machine = Machine()
    found = run_study(study(trials=9), folder, machine)
    searched = [labels for labels in machine.labels if labels["purpose"] != "confirm"]
    assert (found["study"], found["trials_done"], len(searched)) == ("first.2", 9, 5)
    assert {row["config"]["overlap.bucket_mb"] for row in found["trials"][:4]} == {25.0}
    assert {config.batch.micro_batch for config in machine.configs} & {8}
    assert (folder / study_folder.JOURNAL).read_bytes() == before
    assert run_study(study(trials=9), folder, Machine())["trials"] == json.loads(json.dumps(found["trials"]))
    with pytest.raises(InputError, match="asks another question"):
        run_study(study(ranks=2), folder, Machine())
    send(study_folder.latest(folder), "widen", {"batch.micro_batch": 16}, "test")
    found = run_study(study(trials=10), folder, Machine())
    assert (found["study"], found["continues"]) == ("first.3", ["first", "first.2"])


def test_a_crash_between_the_answer_and_the_successor_loses_nothing(folder: Path) -> None:
    found = steered(folder, study(trials=5), (2, "widen", {"batch.micro_batch": 8}))
    successor = folder.parent / "first.2"
    for path in sorted(successor.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    again = run_study(study(trials=5), folder, Machine())
    assert (again["study"], again["trials_done"]) == ("first.2", 5)
    assert again["trials"][:3] == json.loads(json.dumps(found["trials"][:3]))


def test_a_journal_that_knows_nothing_of_steering_reads_as_before(folder: Path) -> None:
    found = run_study(study(trials=2), folder, Machine())
    assert (found["steering"], found["mask"], found["continues"], found["continued_in"]) == ([], {}, [], None)
    document = journal.load(folder / study_folder.JOURNAL).file
    assert document is not None
    assert {"sampler", "inherit"}.isdisjoint(document)
