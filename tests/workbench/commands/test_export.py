"""Export: the exact configuration, a script that runs, where it comes from; a whole folder or none."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.config import run_config
from engine.config.errors import InputError
from engine.run import run_folder
from engine.session import Session
from tests.support.runs import execute, small
from tests.workbench.conftest import Furnished, Run
from workbench.export import bundle
from workbench.export.launchers import torchrun
from workbench.export.launchers.torchrun import note
from workbench.export.targets import find_target
from workbench.home import runs

FEW_ARENAS = {"environment__MALLOC_ARENA_MAX": 2}
FILES = ["README.md", "config.json", "provenance.json", "run.sh"]


def run_named(furnished: Furnished, end: str) -> Path:
    return next(path for path in furnished.home.iterdir() if path.name.endswith(end))


def test_a_run(command: Run, furnished: Furnished, tmp_path: Path) -> None:
    run, out = run_named(furnished, "-a7e2"), tmp_path / "deep" / "out"
    done = command("export", run.name, "--to", "torchrun", "--out", out, "--home", furnished.home)
    assert done.code == 0
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert run_config.load(out / "config.json") == run_config.load(run / run_folder.CONFIG)
    said = json.loads((out / "provenance.json").read_text())
    assert said["run"] == run.name
    assert said["study"] is None
    assert said["config_sha256"] == hashlib.sha256((out / "config.json").read_bytes()).hexdigest()
    assert said["measured"]["tokens_per_second"] > 0
    assert said["measured"]["tokens_per_second_interval"]["low"] > 0
    assert said["measured_on"]["backend"] == (run_folder.read_json(run / run_folder.STATUS) or {})["backend"]
    assert set(said["versions"]) == {"python", "torch", "training-workbench"}
    assert "4 ranks" in (out / "README.md").read_text()
    assert stat.S_IMODE((out / "run.sh").stat().st_mode) == 0o755


def test_a_placement_is_told_with_who_sees_to_it(tmp_path: Path) -> None:
    """The engine numbers its ranks by itself; what other trainers need is said in the notes."""
    folder = run_folder.create(tmp_path, small(parallel__dp=2, parallel__placement=[1, 0]), {})
    readme = torchrun.render(runs.load(folder)).files["README.md"]
    assert "- Placement: rank r works on device placement[r] of [1, 0]" in readme
    assert "host file or rank file" in readme
    assert "no key of this trainer says so" in str(note(small(parallel__dp=2, parallel__placement=[1, 0])))
    assert note(small(parallel__dp=2)) is None
    plain = run_folder.create(tmp_path, small(parallel__dp=2), {})
    assert "Placement" not in torchrun.render(runs.load(plain)).files["README.md"]


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("saddle", "the workload `saddle`, which comes with the package\n- Data: the workload's own\n"),
        ("driving", "package `training-workbench[driving]`"),
        ("llama", "package `training-workbench[huggingface]`"),
        ("llama", "- Text: the text that comes with Python"),
        ("masked_text", "- Text: the text that comes with Python"),
        ("masked_text", "package `training-workbench`"),
        ("mine/model.py:factory", "`mine/model.py` is not in this folder"),
    ],
)
def test_another_model_says_what_it_needs_and_which_targets_know_it(
    workload: str, said: str, tmp_path: Path
) -> None:
    folder = run_folder.create(tmp_path, small(model__workload=workload), {})
    assert said in torchrun.render(runs.load(folder)).files["README.md"]
    refused = "model.workload='.*: is a model of this project's engine.* export it to torchrun, slurm or k8s"
    for name in ("hf", "megatron", "deepspeed"):
        with pytest.raises(InputError, match=refused):
            find_target(name).render(runs.load(folder), None)


def test_the_script_sets_what_the_run_asked_for(tmp_path: Path) -> None:
    asked = FEW_ARENAS | {"environment__allocator_max_split_size_mb": 64}
    folder = run_folder.create(tmp_path, small(**asked), {})
    script = torchrun.render(runs.load(folder)).files["run.sh"]
    assert (
        "\nexport MALLOC_ARENA_MAX=2\nexport PYTORCH_ALLOC_CONF=max_split_size_mb:64\nunset PYTORCH_CUDA"
        in script
    )
    assert 'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"' in script
    threads = run_folder.create(tmp_path, small(environment__OMP_NUM_THREADS=2), {})
    assert "\nexport OMP_NUM_THREADS=2\n" in torchrun.render(runs.load(threads)).files["run.sh"]


def test_a_study_is_its_best_run(command: Run, furnished: Furnished, tmp_path: Path) -> None:
    study = command("show", "quickstart", "--json", "--home", furnished.home).document
    done = command("export", "quickstart", "--to", "torchrun", "--out", tmp_path / "out", "--json",
                   "--home", furnished.home)  # fmt: skip
    assert f"best run {study['best']['run']}" in done.err
    assert done.document["files"] == FILES
    said = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert said["is_best_of_study"]
    assert (said["run"], said["study"]) == (study["best"]["run"], "quickstart")
    assert said["study_result"]["gain"] == study["gain"]
    assert said["turned"] == study["best"]["config"]


def test_what_cannot_be_exported(command: Run, own_home: Furnished, tmp_path: Path) -> None:
    run = run_named(own_home, "-a7e2")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    command("export", run.name, "--to", "tarball", "--out", tmp_path / "o").refused(
        "--to='tarball'", "unknown"
    )
    command("export", run.name, "--to", "torchrun", "--out", tmp_path / "full").refused(
        "--out", "not an empty"
    )
    file = tmp_path / "full" / "mine.txt"
    command("export", run.name, "--to", "torchrun", "--out", file).refused("--out")
    command("export", run.name, "--to", "torchrun", "--out", file / "o").refused("--out")
    (run / run_folder.CONFIG).unlink()
    command("export", run.name, "--to", "torchrun", "--out", tmp_path / "o").refused("config")
    assert file.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "home"]


def test_an_empty_folder_may_be_there(command: Run, furnished: Furnished, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    run = run_named(furnished, "-a7e2").name
    assert (
        command("export", run, "--to", "torchrun", "--out", tmp_path / "out", "--home", furnished.home).code
        == 0
    )


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "chmod", full)
    with pytest.raises(bundle.InputError, match="No space left"):
        bundle.write(bundle.Bundle("x", {"a": "text"}), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_download_unpacks_to_the_same(furnished: Furnished, tmp_path: Path) -> None:
    made = torchrun.render(runs.load(run_named(furnished, "-a7e2")))
    with zipfile.ZipFile(io.BytesIO(bundle.zip_bytes(made))) as archive:
        assert {
            name.partition("/")[2]: archive.read(name).decode() for name in archive.namelist()
        } == made.files
        script = archive.getinfo(f"{made.name}/run.sh")
        assert script.external_attr >> 16 & 0o111


def test_the_script_asks_torchrun_for_the_right_ranks(furnished: Furnished, tmp_path: Path) -> None:
    out = tmp_path / "with space"
    bundle.write(torchrun.render(runs.load(run_named(furnished, "-a7e2"))), out)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\npwd\necho "$@"\n')
    python.chmod(0o755)

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        known = {"PATH": os.environ["PATH"], "PYTHON": str(python)} | environment
        return subprocess.run(
            [out / "run.sh", "--out", "x"], env=known, capture_output=True, text=True, check=False
        )

    here, asked = run().stdout.splitlines()
    assert here == str(out)
    assert asked == (
        "-m torch.distributed.run --standalone --nproc-per-node 4 -m engine.launch.torchrun config.json --out x"
    )
    two = run(NNODES="2", NODE_RANK="1", MASTER_ADDR="first").stdout.splitlines()[1]
    assert "--nnodes 2 --node-rank 1 --master-addr first --master-port 29500 --nproc-per-node 2" in two
    assert run(NNODES="3").returncode == 2
    assert "NODE_RANK" in run(NNODES="2").stderr


@pytest.mark.drawn(1, of="commands that end early")
def test_a_continued_run_leaves_as_a_fresh_start(command: Run, home: Path, tmp_path: Path) -> None:
    """It trains where neither the runs nor the checkpoint are."""
    with Session(home) as session:
        _, saved = execute(session, small(train__steps=2, checkpoint__every_steps=2, model__layers=1))
        resume = str(home / saved.id)
        outcome, continued = execute(session, small(train__resume=resume, model__layers=1))
        assert outcome.good, outcome
    assert command("export", continued.id, "--to", "torchrun", "--out", tmp_path / "out").code == 0
    shutil.rmtree(home)
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert run_config.load(tmp_path / "out" / "config.json") == small(model__layers=1)
    assert [name for name, text in files.items() if resume in text or "step-000002" in text] == []
    said = json.loads(files["provenance.json"])
    assert said["continued"] == {"run": saved.id, "step": 2}
    assert said["config_sha256"] == hashlib.sha256(files["config.json"].encode()).hexdigest()
    assert f"the run continued `{saved.id}` after 2 steps" in files["README.md"]
    (tmp_path / "out" / "config.json").write_text(small(model__layers=1, **FEW_ARENAS).dumps())
    here = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([tmp_path / "out" / "run.sh", "--out", tmp_path / "runs"], env=here, check=True)
    (run,) = (tmp_path / "runs").iterdir()
    summary = run_folder.read_json(run / run_folder.SUMMARY) or {}
    assert summary["losses"] == [*saved.losses, *continued.losses]
    # The script was made without this variable, which malloc reads at its start: the rank began again to have it.
    (row,) = summary["environment"]
    assert (row["name"], row["proven"]) == ("MALLOC_ARENA_MAX", "yes")


def test_a_run_that_never_ended_tells_where_it_began(own_home: Furnished) -> None:
    run = run_named(own_home, "-a7e2")
    checkpoint = "/elsewhere/20250101-000000-abcd/checkpoints/step-000012"
    begun = run_config.load(run / run_folder.CONFIG).with_values({"train.resume": checkpoint})
    (run / run_folder.CONFIG).write_text(begun.dumps())
    made = torchrun.render(runs.load(run))
    assert "/elsewhere" not in "".join(made.files.values())
    said = json.loads(made.files["provenance.json"])
    assert said["continued"] == {"run": "20250101-000000-abcd", "step": None}
