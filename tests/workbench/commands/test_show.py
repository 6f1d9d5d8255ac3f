"""``ls``, ``show`` and how an ID is understood."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.config.errors import InputError
from engine.run import run_folder
from tests.workbench.conftest import Furnished, Run
from workbench.home.resolve import resolve

RUN_KEYS = {
    "id", "outcome", "reason", "layout", "losses", "step_seconds", "tokens_per_second", "phases", "communication",
    "wire_bytes_per_step", "peak_memory_bytes", "mfu", "verdicts",
}  # fmt: skip
STUDY_KEYS = {"study", "objective", "best", "baseline", "gain", "trials"}


def test_an_empty_home_is_no_error(command: Run, home: Path) -> None:
    done = command("ls")
    assert (done.code, done.out) == (0, "")
    assert "workbench train" in done.err
    assert command("ls", "--json").document == {"home": str(home), "runs": [], "studies": []}
    assert command("ls", "--home", home / "not-there").code == 0
    assert not (home / "not-there").exists()


def test_ls_lists_runs_and_studies(command: Run, furnished: Furnished) -> None:
    document = command("ls", "--json", "--home", furnished.home).document
    outcomes = [row["outcome"] for row in document["runs"]]
    assert len(outcomes) == 11
    assert outcomes.count("oom") == 1
    created = [row["created_unix"] for row in document["runs"]]
    assert created == sorted(created, reverse=True)
    live = next(row for row in document["runs"] if row["id"] == furnished.live)
    assert (live["state"], live["study"], live["trial"]) == ("running", "quickstart", "7")
    assert [row["name"] for row in document["studies"]] == ["quickstart"]

    text = command("ls", "--home", furnished.home).out
    assert furnished.live in text
    assert "quickstart #7" in text
    only = command("ls", "--json", "--study", "quickstart", "--home", furnished.home).document
    assert len(only["runs"]) == 8


def test_home_stands_before_or_after_the_command(command: Run, furnished: Furnished) -> None:
    before = command("--home", furnished.home, "ls", "--json").document
    assert before == command("ls", "--json", "--home", furnished.home).document


def test_show_of_a_finished_run(command: Run, furnished: Furnished) -> None:
    run = next(path.name for path in furnished.home.iterdir() if path.name.endswith("-3c01"))
    document = command("show", run, "--json", "--home", furnished.home).document
    assert set(document) >= RUN_KEYS
    assert (document["id"], document["outcome"], len(document["losses"])) == (run, "completed", 40)
    assert sum(document["phases"].values()) + document["between_seconds"] == pytest.approx(
        document["step_seconds"]["mean"]
    )
    text = command("show", run, "--home", furnished.home).out
    assert "tokens/s" in text
    assert "dp=1 tp=1 pp=1" in text


def test_show_of_a_failed_run_has_its_last_words(command: Run, furnished: Furnished) -> None:
    done = command("show", "9f10", "--home", furnished.home)
    assert done.code == 0
    assert "crashed: rank 2 raised ValueError: token 311" in done.out
    assert "DefaultCPUAllocator" in done.out


def test_show_of_a_live_run_has_the_numbers_so_far(command: Run, furnished: Furnished) -> None:
    document = command("show", furnished.live, "--json", "--home", furnished.home).document
    assert (document["state"], document["outcome"]) == ("running", None)
    assert len(document["losses"]) == 12
    assert document["tokens_per_second"] > 0
    assert not (furnished.home / furnished.live / run_folder.SUMMARY).exists()


def test_show_of_a_study(command: Run, furnished: Furnished) -> None:
    document = command("show", "quick", "--json", "--home", furnished.home).document
    assert set(document) >= STUDY_KEYS
    assert set(document["best"]) >= {"trial", "run", "config", "value", "low", "high"}
    assert set(document["gain"]) >= {"ratio", "low", "high", "verdict"}
    assert len(document["trials"]) == 8
    assert document["state"] == "running"
    text = command("show", "quickstart", "--home", furnished.home).out
    assert "out of memory" in text
    assert document["best"]["run"] in text


def test_a_run_whose_owner_is_gone_is_lost(command: Run, own_home: Furnished) -> None:
    folder = own_home.home / own_home.live
    status = run_folder.read_json(folder / run_folder.STATUS) or {}
    run_folder.write_json(
        folder / run_folder.STATUS, status | {"owner": status["owner"] | {"start_time": 1.0}}
    )
    document = command("show", own_home.live, "--json").document
    assert (document["state"], document["outcome"]) == ("ended", "lost")
    row = next(row for row in command("ls", "--json").document["runs"] if row["id"] == own_home.live)
    assert (row["state"], row["outcome"]) == ("ended", "lost")


def test_a_damaged_run_is_still_listed_and_shown(command: Run, own_home: Furnished) -> None:
    run = next(path for path in own_home.home.iterdir() if path.name.endswith("-3c01"))
    (run / run_folder.SUMMARY).write_text("{half")
    (run / run_folder.CONFIG).write_text("nonsense")
    assert command("show", run.name, "--json").document["tokens_per_second"] is None
    assert len(command("ls", "--json").document["runs"]) == 11


def test_what_an_id_can_be(furnished: Furnished) -> None:
    home, live = furnished.home, furnished.live
    assert resolve(home, live).id == live
    assert resolve(home, live.rpartition("-")[2]).id == live
    assert resolve(home, "q").kind == "study"
    for text in ("", "zzz", "../" + home.name, "."):
        with pytest.raises(InputError, match="the newest are quickstart"):
            resolve(home, text)


def test_an_id_that_names_several_or_nothing(command: Run, furnished: Furnished) -> None:
    year = time.strftime("%Y", time.gmtime())
    command("show", year, "--home", furnished.home).refused(f"id='{year}'", "more characters", "11 of them")
    command("show", "nope", "--home", furnished.home).refused("id='nope'", "quickstart")
    command("stop", "nope").refused("no runs or studies")
    command("export", "nope", "--to", "torchrun", "--out", "x").refused("nope")


def test_json_never_holds_what_json_cannot(command: Run, own_home: Furnished) -> None:
    run = next(path for path in own_home.home.iterdir() if path.name.endswith("-3c01"))
    summary = json.loads((run / run_folder.SUMMARY).read_text())
    (run / run_folder.SUMMARY).write_text(json.dumps(summary | {"validation_loss": float("nan")}))
    done = command("show", run.name, "--json")
    assert "NaN" not in done.out
    assert done.document["validation_loss"] is None


def test_a_closed_pipe_is_no_crash(furnished: Furnished) -> None:
    shell = f"{sys.executable} -m workbench ls --json --home '{furnished.home}' | head -1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_a_run_has_what_it_reached_of_its_machine(command: Run, furnished: Furnished) -> None:
    run = next(path for path in furnished.home.iterdir() if path.name.endswith("-a7e2"))
    asked = ("show", run.name, "--home", furnished.home)
    told = command(*asked, "--json").document
    reached = told["roofline"]
    assert reached["reason"] == "recorded without a reference to a calibration"
    names = {one["name"] for one in reached["collectives"]}
    assert names == {
        f"{row['operation']} · {row['axis']}" for row in told["communication"] if row["bus_bandwidth"]
    }
    printed = command(*asked).out
    assert "percent of peak: the calibration does not have all_reduce" in printed
    assert "no roof" not in printed.lower(), "why there is none stands in --json, not a second time here"


def test_a_note_and_tags_from_the_command_line(command: Run, own_home: Furnished) -> None:
    run = next(path.name for path in own_home.home.iterdir() if path.name.endswith("-a7e2"))
    nothing = command("note", "a7e2", "--json").document
    assert nothing == {"id": run, "kind": "run", "note": "", "tags": []}
    told = command("note", "a7e2", "slow [link]?", "--tag", "look", "--tag", "keep", "--json").document
    assert told == {"id": run, "kind": "run", "note": "slow [link]?", "tags": ["keep", "look"]}
    assert command("note", "quickstart", "--tag", "keep").out == "quickstart\n  tags  keep\n"

    assert "tags         keep, look\n  note         slow [link]?" in command("show", "a7e2").out
    assert "  tags  keep\n" in command("show", "quickstart").out
    shown = command("show", "a7e2", "--json").document
    assert (shown["note"], shown["tags"]) == ("slow [link]?", ["keep", "look"])
    assert command("show", "quickstart", "--json").document["tags"] == ["keep"]

    tagged = command("ls", "--tag", "keep", "--json").document
    assert [row["id"] for row in tagged["runs"]] == [run]
    assert [row["name"] for row in tagged["studies"]] == ["quickstart"]
    both = command("ls", "--tag", "keep", "--tag", "look", "--json").document
    assert ([row["note"] for row in both["runs"]], both["studies"]) == (["slow [link]?"], [])
    assert "#keep #look slow [link]?" in command("ls", "--tag", "look").out
    assert "nothing in" in command("ls", "--tag", "none").err

    assert "   #keep #look slow [link]?\n" in command("compare", "a7e2", "3c01").out
    sides = command("compare", "a7e2", "3c01", "--json").document["runs"]
    assert [(side["note"], side["tags"]) for side in sides] == [("slow [link]?", ["keep", "look"]), ("", [])]

    command("note", "a7e2", "--untag", "nope").refused("--untag='nope'", "it has keep, look")
    command("note", "a7e2", "--tag", "a,b").refused("--tag='a,b'", "no comma")
    assert command("note", "a7e2", "", "--untag", "keep", "--untag", "look", "--json").document == nothing
