"""A batch file that starts our launcher on each node: run with stand-ins for srun and scontrol, its ranks train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import run_config
from engine.run import run_folder
from tests.support.runs import small
from workbench.export import bundle
from workbench.export.launchers import slurm
from workbench.export.targets import find_target
from workbench.home import runs


def exported(tmp_path: Path, **values: object) -> Path:
    folder = run_folder.create(tmp_path, small(**values), {})
    bundle.write(find_target("slurm").render(runs.load(folder), None), tmp_path / "out")
    return tmp_path / "out"


def test_nodes_have_up_to_eight_ranks() -> None:
    assert slurm.nodes_of(small(parallel__dp=2)) == (1, 2)
    assert slurm.nodes_of(small(parallel__dp=12, batch__global_batch=48)) == (2, 6)
    assert slurm.nodes_of(small(parallel__dp=16, batch__global_batch=48)) == (2, 8)


def test_the_file_says_what_slurm_is_asked_for(tmp_path: Path) -> None:
    out = exported(tmp_path, parallel__dp=2, device="cuda", environment__OMP_NUM_THREADS=3)
    job = (out / "job.sbatch").read_text()
    assert "#SBATCH --nodes=1\n" in job
    assert "#SBATCH --gpus-per-node=2\n" in job
    assert "export OMP_NUM_THREADS=3" in job
    assert subprocess.run(["bash", "-n", out / "job.sbatch"], check=False).returncode == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "config.json",
        "job.sbatch",
        "provenance.json",
    ]
    assert "job.sbatch" in (out / "README.md").read_text()
    assert "run.sh" not in (out / "README.md").read_text()
    assert run_config.load(out / "config.json").parallel.dp == 2


@pytest.mark.slow
def test_it_trains(tmp_path: Path) -> None:
    out = exported(tmp_path, parallel__dp=2, device="cpu", train__steps=4)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/bash\nshift\nSLURM_NODEID=0 exec "$@"\n')
    (tools / "scontrol").write_text("#!/bin/bash\necho localhost\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    variables = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "localhost",
                 "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(out), "PYTHON": sys.executable}  # fmt: skip
    done = subprocess.run(["bash", out / "job.sbatch", "--out", tmp_path / "runs"], env=os.environ | variables,
                          cwd=Path(__file__).parents[4], capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").glob("*-*-*")
    summary = json.loads((folder / run_folder.SUMMARY).read_text())
    assert len(summary["losses"]) == 4
    uneven = subprocess.run(["bash", out / "job.sbatch"], env=os.environ | variables | {"SLURM_JOB_NUM_NODES": "3"},
                            capture_output=True, text=True, check=False)  # fmt: skip
    assert uneven.returncode == 2
    assert "must divide the 2 ranks" in uneven.stderr
