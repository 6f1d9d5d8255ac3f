"""The exported command runs as it stands, from anywhere, with the files that hold its values."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.run import run_folder
from tests.support.runs import small
from tuning.spec.study_file import StudyFile, parse
from tuning.storage.study_folder import STUDIES, STUDY_GIVEN
from workbench.export.launchers import command as export
from workbench.export.targets import find_target
from workbench.home import runs

#: Prints each argument on a line of its own.
ECHO = '#!/usr/bin/env bash\nprintf "%s\\n" "$THREADS" "$@"\n'


def exported(home: Path, file: StudyFile, values: dict[str, Any], out: Path) -> list[str]:
    """What a trainer gets from the exported script."""
    folder = home / STUDIES / file.name
    folder.mkdir(parents=True)
    (folder / STUDY_GIVEN).write_text(file.text)
    config = file.config.with_values({f"trainer.{name}": value for name, value in values.items()})
    run = run_folder.create(home, config, {"study": file.name, "trial": "1"})
    out.mkdir()
    for name, text in export.render(runs.load(run)).files.items():
        (out / name).write_text(text)
    done = subprocess.run(
        ["bash", str(out / "run.sh"), "--more"], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def trainer(place: Path) -> Path:
    place.mkdir()
    path = place / "deepspeed"
    path.write_text(ECHO)
    path.chmod(0o755)
    return path


def test_values_in_a_json_file_are_exported_with_it(tmp_path: Path) -> None:
    work, out = tmp_path / "it's work", tmp_path / "an export"
    program = trainer(work)
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 1},
    }
    (work / "ds.json").write_text(json.dumps(settings))
    command = f"THREADS='2 3' ./{program.name} --num_gpus 2 'a train.py' --deepspeed_config=ds.json"
    file = parse({"name": "ds", "trainer": {"command": command, "directory": str(work)}})
    told = exported(tmp_path / "home", file, {"zero_stage": 3, "micro_batch": 8}, out)
    assert told == ["2 3", "--num_gpus", "2", "a train.py", f"--deepspeed_config={out}/ds.json", "--more"]
    assert json.loads((out / "ds.json").read_text()) == {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 3},
    }
    assert json.loads((work / "ds.json").read_text()) == settings


def test_the_arguments_file_of_a_sweep_is_exported(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    program = trainer(work)
    file = parse(
        {
            "name": "s",
            "trainer": {
                "command": f"THREADS=1 {program} t.py --config ${{args_json_file}}",
                "kind": "generic",
            },
            "space": {"trainer.lr": [0.1, 0.2]},
        }
    )
    told = exported(tmp_path / "home", file, {"lr": 0.2}, out)
    assert told == ["1", "t.py", "--config", f"{out}/arguments.json", "--more"]
    assert json.loads((out / "arguments.json").read_text()) == {"lr": 0.2}


@pytest.mark.parametrize("name", ["torchrun", "k8s", "hf", "trainer"])
def test_a_trial_of_a_command_goes_to_no_other_target(tmp_path: Path, name: str) -> None:
    """A script for ``trainer`` would start nothing, as no trial reads values from a file."""
    section = {"command": "python t.py --lr 0.1", "directory": str(tmp_path)}
    file = parse({"name": "s", "trainer": section, "space": {"trainer.lr": [0.1, 0.2]}})
    folder = tmp_path / "home" / STUDIES / "s"
    folder.mkdir(parents=True)
    (folder / STUDY_GIVEN).write_text(file.text)
    run = run_folder.create(tmp_path / "home", file.config, {"study": "s", "trial": "1"})
    with pytest.raises(InputError, match=rf"--to='{name}'.*give command"):
        find_target(name).render(runs.load(run), None)


def test_a_run_of_something_else_is_refused(tmp_path: Path) -> None:
    file = parse({"name": "s", "ranks": 1})
    run = run_folder.create(tmp_path, file.config, {})
    with pytest.raises(InputError, match=r"--to='command'.*give torchrun"):
        export.render(runs.load(run))


@pytest.mark.parametrize("name", ["torchrun", "slurm", "k8s"])
def test_a_run_of_another_trainer_is_refused_by_the_name_that_was_asked_for(
    name: str, tmp_path: Path
) -> None:
    folder = run_folder.create(tmp_path, small().with_values({"trainer.hook": "none"}), {})
    with pytest.raises(InputError, match=rf"--to='{name}'.*give trainer"):
        find_target(name).render(runs.load(folder), None)
