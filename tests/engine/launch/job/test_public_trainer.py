"""The Trainer of transformers on two CPU ranks, in an environment that does not know this project."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.support.job import command
from tests.support.job.command import TRAINER
from tests.support.trainers import environments
from workbench.home import runs
from workbench.records import archive

_SCRIPT = TRAINER.with_name("hf_trainer.py")
#: Of an element that gloo's events count: gradients and weights are float32, both ranks gather a count in int64.
_BYTES = {"gloo:all_reduce": 4, "gloo:broadcast": 4, "gloo:all_gather": 2 * 8}
#: As the script has them.
_STEPS, _PROFILED = 24, range(6, 9)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_steps_and_bytes_are_those_of_its_own_watches(tmp_path: Path) -> None:
    environments.require("hf")
    python = environments.made("hf")
    knows = "from importlib.util import find_spec; print([find_spec(one) for one in ('profilers', 'engine')])"
    asked = subprocess.run([python, "-c", knows], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert asked.stdout == "[None, None]\n"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    home, out = tmp_path / "home", tmp_path / "out"
    out.mkdir()
    done = command.run(home, str(python), *torchrun, str(_SCRIPT), str(out))
    assert done.returncode == 0, done.stderr
    folder = command.only_run(home)
    records = archive.records(folder / "records")
    for rank in range(2):
        noted = json.loads((out / f"rank-{rank}.json").read_text())
        table = records.table(rank, "step")
        assert table.column("step").tolist() == list(range(1, _STEPS))
        wall = table.column("step_seconds").filled(0.0) + table.column("between_seconds").filled(0.0)
        theirs = np.diff(noted["ends"])
        assert wall[2:].mean() == pytest.approx(theirs[2:].mean(), rel=0.02)
        calls = records.table(rank, "comm")
        chosen = np.isin(calls.column("step"), _PROFILED)
        names = np.array(calls.column("operation").tolist())[chosen].tolist()
        ours = Counter(zip(names, calls.column("bytes").filled(0)[chosen].tolist(), strict=True))
        assert ours == Counter(
            (name.removeprefix("gloo:"), _BYTES[name] * shapes[0][0]) for name, shapes in noted["events"]
        )
        assert table.column("forward_seconds").sum() > 0
    view = runs.load(folder)
    assert view.outcome == "completed"
    assert view.summary is not None
    assert view.summary.verdicts
