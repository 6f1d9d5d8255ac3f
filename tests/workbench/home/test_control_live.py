"""``control RUN set``: refused at once where that can be known, else what ranks did; shown, exported, continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from engine.checkpoint import checkpoint_folder
from engine.config.run_config import load, parse
from engine.run import commands, progress, run_folder
from engine.run.answers import wait_for
from tests.support.engine.checkpoints import made_up
from tests.support.engine.torchrun import at_step, needs_names, of_node, on_one_host, tiny, torchrun
from tests.support.waiting import wait_until
from tests.support.workbench.live_run import at_least, going_on
from tests.workbench.commands.test_bad_input import free_port
from tests.workbench.commands.test_train import FakeSession, session
from tests.workbench.conftest import Furnished, Run
from tuning.storage.commands import pending_commands, send
from workbench.home.control import command_author
from workbench.records.live_snapshot import LiveRun

pytestmark = pytest.mark.drawn(2, of="changes from the command line")

__all__ = ["session"]

PATIENCE_SECONDS = 60.0


def alone(own_home: Furnished) -> str:
    """The live run, as nobody's trial."""
    folder = own_home.home / own_home.live
    run_folder.update_status(folder, labels={"purpose": "train"})
    return own_home.live


def test_what_can_be_known_is_refused_before_anything_is_sent(own_home: Furnished, command: Run) -> None:
    run = alone(own_home)
    ask = ("control", run, "set")
    command(*ask).refused("set", "at least one key", "compression.ratio=0.01")
    command(*ask, "overlap.bucket_mb").refused("key=value")
    command(*ask, "overlap.bucket=3").refused("overlap.bucket=3", "unknown key", "bucket_mb")
    command(*ask, "parallel.tp=2").refused("parallel.tp=2", "when a run starts", "overlap.bucket_mb")
    command(*ask, "overlap.bucket_mb=-1").refused("overlap.bucket_mb=-1")
    command(*ask, "batch.micro_batch=1000").refused("batch.micro_batch=1000", "nearest legal")
    command(*ask, "memory.recompute_layers=1").refused("memory.recompute_layers=1", "nothing is recomputed")
    command("control", "quickstart", "set", "overlap.bucket_mb=3").refused("is a study", "running trial")
    assert pending_commands(own_home.home / run, ()) == []


def test_a_trial_is_not_turned_under_its_study(own_home: Furnished, command: Run) -> None:
    done = command("control", own_home.live, "set", "overlap.bucket_mb=3")
    done.refused("overlap.bucket_mb=3", "is a trial of quickstart", "enqueue overlap.bucket_mb=3")
    assert pending_commands(own_home.home / own_home.live, ()) == []


def test_a_running_job_is_changed_shown_and_exported(command: Run, home: Path, tmp_path: Path) -> None:
    with going_on(home) as folder:
        name = folder.name
        done = command("control", name, "set", "overlap.bucket_mb=0.5", "batch.micro_batch=2")
        assert done.code == 0, done
        assert "batch.micro_batch 1 -> 2, overlap.bucket_mb 25.0 -> 0.5 from step " in done.out
        assert load(folder / run_folder.CONFIG).batch.micro_batch == 2
        again = command("control", name, "set", "batch.micro_batch=2", "--json").document
        assert (again["accepted"], "already" in again["text"]) == (True, True)
        sent = send(folder, commands.SET, {"batch.micro_batch": 3})
        refused = wait_for(folder, sent, 2, PATIENCE_SECONDS)
        assert ["nearest legal" in str(answer.problem) for answer in refused] == [True, True]
        going = command("show", name, "--json").document["changes"]
        assert [row["key"] for row in going] == ["batch.micro_batch", "overlap.bucket_mb"]
        assert {row.key for row in LiveRun(folder).read().changes} == {row["key"] for row in going}
        step = going[0]["step"]
        assert wait_until(lambda: at_least(folder, step + 8), PATIENCE_SECONDS)
    shown = command("show", name, "--json").document
    assert [(row["key"], row["by"], row["step"]) for row in shown["changes"]] == [
        ("batch.micro_batch", command_author(), step), ("overlap.bucket_mb", command_author(), step),
    ]  # fmt: skip
    assert shown["measured_from_step"] == step + 1
    assert shown["config"]["overlap"]["bucket_mb"] == 0.5
    text = command("show", name).out
    assert (
        f"from step {step:,} on: batch.micro_batch 1 → 2, overlap.bucket_mb 25 → 0.5 ({command_author()})"
        in text
    )
    assert "a step took" in text
    assert f"measured from step {step + 1:,} on" in text
    assert text.count("refused: before step") == 1
    assert command("export", name, "--to", "torchrun", "--out", tmp_path / "out").code == 0
    assert load(tmp_path / "out" / "config.json").batch.micro_batch == 2
    said = json.loads((tmp_path / "out" / "provenance.json").read_text(encoding="utf-8"))
    assert [row["new"] for row in said["changes"]] == [2, 0.5]
    ended = command("control", name, "set", "overlap.bucket_mb=2", "--json").document
    assert (ended["accepted"], "has ended" in ended["text"]) == (None, True)


def train(home: Path, file: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "workbench", "train", str(file), *more, "--home", str(home)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


@pytest.mark.drawn(1, of="commands that end early")
def test_killed_after_a_change_it_is_resumed_with_the_last_values(
    command: Run, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    config = tiny(checkpoint__every_steps=5, compression__method="topk", compression__ratio=0.5)
    file.write_text(yaml.safe_dump(json.loads(config.dumps())), encoding="utf-8")
    process = train(home, file)
    try:
        folder = at_step(home, 10)
        done = command("control", folder.name, "set", "compression.ratio=0.25", "overlap.bucket_mb=0.01")
        assert done.code == 0, done
        (step, *_) = {row["step"] for row in command("show", folder.name, "--json").document["changes"]}
        assert wait_until(lambda: at_least(folder, step + 7), PATIENCE_SECONDS)
    finally:
        ranks = [rank.pid for rank in progress.read(folder)]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), 20)
    last = checkpoint_folder.last_of(folder)
    assert last is not None
    manifest = checkpoint_folder.read_manifest(last)
    assert manifest is not None
    assert manifest.step >= step
    assert manifest.config["compression.ratio"] == 0.25
    asked = (
        "train",
        file,
        "--resume",
        folder.name,
        f"train.steps={manifest.step + 3}",
        "overlap.bucket_mb=2.0",
    )
    done = command(*asked, "--json")
    assert done.code == 0, done
    assert done.document["config"]["compression"]["ratio"] == 0.25
    assert done.document["config"]["overlap"]["bucket_mb"] == 2.0
    assert f"compression.ratio=0.25, as {folder.name} was changed to" in done.err
    assert list(done.document["resumed"]["changed"]) == []
    assert done.document["changes"] == []


def test_a_value_of_the_file_or_beside_it_goes_before_an_inherited_one(
    command: Run, session: type[FakeSession], home: Path
) -> None:
    first = parse({"parallel": {"dp": 2}})
    run = run_folder.create(home, first, {})
    made_up(run, first, 4, a="x")
    run_folder.change_config(run, first.with_values({"batch.micro_batch": 4, "memory.recompute": "full"}))
    ask = ("train", "run.yaml", "parallel.dp=2", "--resume", run.name)
    found = command(*ask, "--json").document["config"]
    assert (found["batch"]["micro_batch"], found["memory"]["recompute"]) == (4, "full")
    found = command(*ask, "memory.recompute=none", "batch.micro_batch=2", "--json").document["config"]
    assert (found["batch"]["micro_batch"], found["memory"]["recompute"]) == (2, "none")
    command(*ask, "batch.global_batch=4").refused(
        "batch.micro_batch=4", f"{run.name} was changed to batch.micro_batch=4, memory.recompute=full"
    )


@pytest.mark.drawn(1, of="runs under torchrun")
def test_a_torchrun_run_is_changed_on_all_ranks(command: Run, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    with on_one_host(tiny(), out) as process:
        folder = at_step(out, 5)
        done = command("control", folder.name, "set", "batch.micro_batch=4", "--home", out, "--json").document
        assert done["accepted"], done
        command("control", folder.name, "stop", "--home", out)
        assert process.wait(PATIENCE_SECONDS) == 0, process.stdout and process.stdout.read()
    check_changed(command, out, folder)


@pytest.mark.drawn(1, of="runs under torchrun")
@needs_names
def test_several_hosts_are_changed_at_the_same_step(command: Run, tmp_path: Path) -> None:
    out, port = tmp_path / "runs", free_port()
    with (
        torchrun(tiny(), out, of_node(0, port), "first") as one,
        torchrun(tiny(), out, of_node(1, port), "second") as other,
    ):
        folder = at_step(out, 5)
        done = command("control", folder.name, "set", "batch.micro_batch=4", "--home", out, "--json").document
        assert done["accepted"], done
        command("control", folder.name, "stop", "--home", out)
        codes = [process.wait(PATIENCE_SECONDS) for process in (one, other)]
        assert codes == [0, 0], [process.stdout and process.stdout.read() for process in (one, other)]
    check_changed(command, out, folder)


def check_changed(command: Run, out: Path, folder: Path) -> None:
    shown = command("show", folder.name, "--home", out, "--json").document
    (change,) = shown["changes"]
    assert (change["key"], change["old"], change["new"]) == ("batch.micro_batch", 1, 4)
    assert {(row["rank"], row["step"]) for row in shown["orders"]} == {
        (0, change["step"]),
        (1, change["step"]),
    }
    assert shown["outcome"] == "stopped"


@pytest.mark.parametrize("kind", ["topk", "fp16"])
def test_a_method_can_be_changed_for_one_without_error_memory(command: Run, home: Path, kind: str) -> None:
    with going_on(home, compression__method="topk", compression__ratio=0.1) as folder:
        asked = (
            "control",
            folder.name,
            "set",
            "compression.ratio=0.05",
            f"compression.method={kind}",
            "--json",
        )
        done = command(*asked).document
        assert done["accepted"], done
        back = command("control", folder.name, "set", "compression.method=none", "--json").document
        assert back["accepted"], back
    shown = command("show", folder.name, "--json").document
    assert shown["config"]["compression"]["method"] == "none"
    assert shown["outcome"] == "stopped"
