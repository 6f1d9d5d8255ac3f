"""``live attach RUN``: a run that is going already is tuned, and left with what was found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from engine.config.run_config import load
from engine.run import run_folder
from tests.support.engine.torchrun import at_step, tiny
from tests.support.waiting import wait_until
from tests.tuning.execution.live.test_live_study import live_study
from tests.workbench.conftest import Furnished, Run
from tuning.execution.live import exploitation
from workbench.home import runs

pytestmark = pytest.mark.drawn(1, of="live tuning from the command line")


def test_what_cannot_be_attached_to_is_refused(own_home: Furnished, command: Run) -> None:
    command("live", "attach", "quickstart").refused("quickstart", "is a study", "run")
    command("live", "attach", own_home.live).refused(own_home.live, "is a trial of quickstart")
    ended = own_home.home / own_home.live
    run_folder.update_status(
        ended, labels={"purpose": "train"}, state="ended", outcome={"ending": "completed"}
    )
    command("live", "attach", own_home.live).refused(own_home.live, "has ended already", "completed")
    run_folder.update_status(ended, labels={"live": "other"}, state="running", outcome=None)
    command("live", "attach", own_home.live).refused(own_home.live, "tuned by other already")


def test_what_takes_several_controllers_is_refused(command: Run, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(live_study()._dump_given()), encoding="utf-8")
    command("tune", "--live", file, "--join").refused("join", "one controller turns it")
    command("tune", file, "--storage", "postgresql://a@localhost/b").refused("storage", "leave it out")


@pytest.mark.timeout(240)
def test_a_run_that_is_going_is_tuned_and_left_with_the_best(
    command: Run, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    config = tiny(batch__global_batch=8, batch__micro_batch=1, train__steps=5_000)
    file.write_text(yaml.safe_dump(json.loads(config.dumps())), encoding="utf-8")
    asked = [sys.executable, "-m", "workbench", "train", str(file), "--home", str(home)]
    process = subprocess.Popen(
        asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        folder = at_step(home, 5)
        done = command("live", "attach", folder.name, "--trials", "2", "--json")
        assert done.code == 0, done
        found = done.document
        assert found["state"] == "ended" and len(found["trials"]) == 2
        assert found["live"]["run"] == folder.name and len(found["live"]["windows"]) >= 2
        assert runs.load(folder).state == "running"
        now = load(folder / run_folder.CONFIG).flat()
        best = found["best"]["config"]
        assert {key: now[key] for key in best} == best
        assert command("live", "attach", folder.name, "--json").document["trials_done"] == 2
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    assert wait_until(lambda: runs.load(folder).state == "ended", 30)


@pytest.mark.timeout(240)
def test_where_conditions_change_it_looks_again_on_the_same_run(
    command: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed and asked again, it goes on with the search that followed."""
    told = ["a step takes 50 % longer than when the search ended"]
    monkeypatch.setattr(exploitation, "drift_words", lambda seconds, share: told.pop() if told else "")
    monkeypatch.setattr(exploitation, "LOOK_SECONDS", 0.2)
    file = tmp_path / "study.yaml"
    tree = live_study(trials=2, live={"steps": 260, "checkpoint_every": 20})._dump_given()
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    done = command("tune", "--live", file, "--json")
    assert done.code == 0, done
    assert "50 % longer than when the search ended: looking again, as study live-look-1" in done.err
    found = done.document
    assert (found["study"], found["state"], found["live"]["step"]) == ("live-look-1", "ended", 260)
    first = command("show", "live", "--json").document
    assert first["live"]["runs"] == found["live"]["runs"] and len(first["live"]["runs"]) == 1
    assert max(row["end"] for row in first["live"]["windows"]) <= found["live"]["windows"][0]["first"]
    assert command("tune", "--live", file, "--json").document["study"] == "live-look-1"
