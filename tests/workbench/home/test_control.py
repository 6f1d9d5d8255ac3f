"""``stop`` and ``control``: what is sent, what is answered, and what a dead owner means."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from engine.run import run_folder
from engine.run.ownership import this_process
from tests.workbench.conftest import Furnished, Run
from tuning.controllers.open_study import STORAGE
from tuning.execution.live.ongoing_run import RUNS
from tuning.storage.commands import Command, pending_commands
from tuning.storage.journal import Journal
from workbench.home import control
from workbench.home.resolve import resolve


def study(furnished: Furnished) -> Path:
    return furnished.home / "studies" / "quickstart"


@pytest.fixture
def answering(own_home: Furnished) -> Callable[[bool, str], threading.Thread]:
    """An owner that answers the next command."""

    def start(accepted: bool, reason: str) -> threading.Thread:
        def answer() -> None:
            found: list[Command] = []
            while not found:
                time.sleep(0.02)
                found = pending_commands(study(own_home), ())
            said = found[0]
            journal = Journal(study(own_home) / "journal.jsonl")
            journal.append("command", id=said.id, command=said.command, arguments=said.arguments, by=said.by,
                           accepted=accepted, reason=reason)  # fmt: skip
            journal.close()

        thread = threading.Thread(target=answer)
        thread.start()
        return thread

    return start


def test_an_accepted_command(
    own_home: Furnished, command: Run, answering: Callable[..., threading.Thread]
) -> None:
    owner = answering(True, "next: dp=4")
    done = command(
        "control", "quickstart", "enqueue", "batch.micro_batch=2", "compression.ratio=1e-2", "--json"
    )
    owner.join()
    assert done.code == 0
    assert done.document["accepted"] is True
    assert done.document["arguments"] == {"batch.micro_batch": 2, "compression.ratio": 0.01}
    assert done.document["text"] == "next: dp=4"


def test_the_journal_can_say_who_asked(
    own_home: Furnished, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = run_folder.read_json(study(own_home) / "status.json") or {}
    run_folder.write_json(study(own_home) / "status.json", status | {"state": "interrupted"})
    monkeypatch.setenv("LOGNAME", "ada")
    command("control", "quickstart", "pause")
    (sent,) = pending_commands(study(own_home), ())
    assert sent.by == f"ada@{socket.gethostname()}, command line"


def test_a_refused_command(
    own_home: Furnished, command: Run, answering: Callable[..., threading.Thread]
) -> None:
    owner = answering(False, "trial=3: is not running")
    done = command("control", "quickstart", "kill", 3)
    owner.join()
    assert (done.code, done.out, done.err) == (2, "", "refused: trial=3: is not running\n")


def test_no_answer_in_time(own_home: Furnished, command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control.ask, "__defaults__", ("command line", 0.2))
    done = command("control", "quickstart", "pause", "--json")
    assert done.code == 0
    assert done.document["accepted"] is None
    assert "no answer within 0.2 s" in done.document["text"]
    assert [sent.command for sent in pending_commands(study(own_home), ())] == ["pause"]


def test_nobody_runs_the_study(own_home: Furnished, command: Run) -> None:
    status = run_folder.read_json(study(own_home) / "status.json") or {}
    run_folder.write_json(study(own_home) / "status.json", status | {"state": "interrupted"})
    done = command("control", "quickstart", "enqueue", "batch.micro_batch=2")
    assert done.code == 0
    assert "no process runs quickstart now; it is applied once the study is started again" in done.out
    run_folder.write_json(study(own_home) / STORAGE, {"storage": "postgresql://db/one"})
    elsewhere = command("control", "quickstart", "enqueue", "batch.micro_batch=4")
    assert "no process runs quickstart in this home now" in elsewhere.out
    assert [sent.command for sent in pending_commands(study(own_home), ())] == ["enqueue"] * 2
    done = command("stop", "quickstart")
    assert (done.code, done.out) == (0, "quickstart is not running; it is interrupted\n")


def test_a_live_study_answers_while_its_run_trains_on(
    own_home: Furnished, command: Run, answering: Callable[..., threading.Thread]
) -> None:
    """Its search is over; the process that runs it watches over the run. Once that is gone nobody answers."""
    path = study(own_home) / "status.json"
    status = (run_folder.read_json(path) or {}) | {"state": "ended", "owner": asdict(this_process())}
    run_folder.write_json(path, status)
    run_folder.write_json(study(own_home) / RUNS, {"runs": [own_home.live]})
    owner = answering(True, "checks trial 3")
    assert command("control", "quickstart", "check", "steps=8").out == "checks trial 3\n"
    owner.join()
    stopped = command("stop", "quickstart")
    assert (stopped.code, own_home.live in stopped.out) == (0, True)
    run_folder.write_json(path, status | {"owner": asdict(this_process()) | {"start_time": 0.0}})
    assert "no process runs quickstart now" in command("control", "quickstart", "check").out


@pytest.mark.parametrize("words", ["now", "steps=0", "steps=many", "steps=3 more=2"])
def test_what_a_check_takes(own_home: Furnished, command: Run, words: str) -> None:
    command("control", "quickstart", "check", *words.split()).refused("steps")
    assert not pending_commands(study(own_home), ())


def test_stop_of_a_run(own_home: Furnished, command: Run) -> None:
    folder = own_home.home / own_home.live

    def owner() -> None:
        while not list((folder / run_folder.COMMANDS).glob("*.json")):
            time.sleep(0.02)
        run_folder.update_status(folder, state="ended", outcome={"ending": "stopped", "reason": "on request"})

    thread = threading.Thread(target=owner)
    thread.start()
    done = command("stop", own_home.live)
    thread.join()
    assert (done.code, done.out) == (0, f"{own_home.live} ended: stopped\n")
    done = command("stop", own_home.live)
    assert (done.code, done.out) == (0, f"{own_home.live} has ended already: stopped\n")


def test_what_makes_no_sense(own_home: Furnished, command: Run) -> None:
    command("control", own_home.live, "pause").refused("is a run", "stop, snapshot")
    command("control", own_home.live, "snapshot", "steps=x").refused("snapshot='steps=x'", "steps=N")
    command("control", own_home.live, "snapshot", "steps=1001").refused("from 0 to 1,000")
    command("control", "quickstart", "snapshot").refused("is a study", "running trial")
    command("control", "quickstart", "kill").refused("kill", "number of one trial")
    command("control", "quickstart", "kill", "x").refused("kill='x'")
    command("control", "quickstart", "enqueue").refused("enqueue", "at least one key")
    command("control", "quickstart", "enqueue", "tp").refused("enqueue='tp'", "key=value")
    command("control", own_home.live, "set", "nonsense").refused("set='nonsense'", "key=value")
    command("control", "quickstart", "pause", "now").refused("pause='now'", "takes no arguments")
    assert pending_commands(study(own_home), ()) == []


@pytest.mark.parametrize(
    ("typed", "arguments"),
    [
        (("pin", "parallel.tp=2"), {"parallel.tp": 2}),
        (("narrow", "batch.micro_batch=1,2", "compression.ratio=0.01..0.1"),
         {"batch.micro_batch": "1,2", "compression.ratio": "0.01..0.1"}),
        (("unpin", "parallel.tp"), {"parallel.tp": "all"}),
        (("widen", "batch.micro_batch=8"), {"batch.micro_batch": 8}),
        (("budget", "trials=40"), {"trials": 40}),
        (("sampler", "gp"), {"name": "gp"}),
    ],
)  # fmt: skip
def test_what_is_typed_to_steer(
    own_home: Furnished,
    command: Run,
    answering: Callable[..., threading.Thread],
    typed: tuple[str, ...],
    arguments: dict[str, object],
) -> None:
    owner = answering(True, "as you say")
    done = command("control", "quickstart", *typed, "--json")
    owner.join()
    assert (done.code, done.document["arguments"]) == (0, arguments)


@pytest.mark.parametrize(
    "typed", [("pin",), ("unpin", "parallel.tp=2"), ("sampler", "luck"), ("sampler",), ("budget", "trials")]
)
def test_a_command_that_makes_no_sense_is_not_sent(
    own_home: Furnished, command: Run, typed: tuple[str, ...]
) -> None:
    done = command("control", "quickstart", *typed)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert pending_commands(study(own_home), ()) == []


def test_all_names_of_a_study_mean_the_one_that_goes_on(own_home: Furnished, command: Run) -> None:
    old = study(own_home)
    shutil.copytree(old, old.with_name("quickstart.2"))
    status = run_folder.read_json(old / "status.json") or {}
    run_folder.write_json(
        old / "status.json", status | {"state": "continued", "continued_in": "quickstart.2"}
    )
    new = run_folder.read_json(old.with_name("quickstart.2") / "status.json") or {}
    run_folder.write_json(old.with_name("quickstart.2") / "status.json", new | {"continues": ["quickstart"]})
    for name in ("quickstart", "quickstart.2", "quick"):
        assert resolve(own_home.home, name).id == "quickstart.2"
    listed = command("ls", "--json").document
    assert [row["name"] for row in listed["studies"]] == ["quickstart.2"]
    assert command("ls", "--study", "quickstart.2", "--json").document["runs"] != []
