"""From a study to a folder that torchrun runs: the exported winner trains the same layout again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STUDY = """
name: walk
ranks: 2
trials: 2
base:
  data: {sequence_length: 32}
  batch: {global_batch: 4, micro_batch: 2}
  train: {steps: 6, warmup: 2}
  device: cpu
space:
  parallel.tp: [1, 2]
  parallel.pp: [1]
confirm_repeats: 0
"""


def workbench(*arguments: str, home: Path) -> Any:
    """Run the command line; its JSON document."""
    command = [sys.executable, "-m", "workbench", *arguments, "--home", str(home), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(240)
def test_the_exported_winner_has_the_same_first_losses(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "winner"
    (tmp_path / "study.yaml").write_text(STUDY)
    study = workbench("tune", str(tmp_path / "study.yaml"), home=home)
    exported = workbench("export", "walk", "--to", "torchrun", "--out", str(out), home=home)
    run = workbench("show", exported["run"], home=home)
    assert exported["run"] in [trial["run"] for trial in study["trials"]]

    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    again = subprocess.run([out / "run.sh"], capture_output=True, text=True, env=os.environ | path, check=False)
    assert again.returncode == 0, again.stderr
    printed = json.loads(again.stdout.strip().splitlines()[-1])
    assert printed["outcome"] == "completed"
    assert printed["losses"] == pytest.approx(run["losses"], abs=1e-5)
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["run"] == exported["run"]
