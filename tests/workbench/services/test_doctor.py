"""``doctor`` tells what there is, and why something is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gpu.nvml_library import build
from tests.support.gpu.nvml_library.scenario import Scenario
from tests.workbench.conftest import Run
from workbench.services import doctor


def test_doctor_of_this_machine(command: Run, home: Path) -> None:
    done = command("doctor", "--json")
    assert done.code == 0
    checks = {check["name"]: check for check in done.document["checks"]}
    assert checks.keys() >= {"python", "torch", "gloo", "nccl", "gpu", "cpu", "memory", "c++ compiler",
                             "network namespaces", "chromium", "home", "streamlit", "optuna"}  # fmt: skip
    assert done.document["usable"]
    assert [name for name, check in checks.items() if check["status"] == "missing" and not check["why"]] == []
    text = command("doctor").out
    assert all(name in text for name in checks)


def test_a_home_that_cannot_be_used_makes_the_machine_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = doctor._home(tmp_path / "file" / "runs")
    assert check.status == "missing"
    assert not doctor.usable([check])


def test_a_home_that_does_not_exist_yet_is_not_made(tmp_path: Path) -> None:
    assert doctor._home(tmp_path / "a" / "b").status == "ok"
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(build.WHY_NONE is not None, reason=str(build.WHY_NONE))
def test_gpus_are_told_with_what_is_amiss(tmp_path: Path) -> None:
    """Of eight one is lost and one divided, by the real nvidia-ml-py on a library of our own."""
    driver = Scenario(tmp_path)
    driver.change(2, lost=15)
    driver.divide(7, 3)
    asked = "from workbench.services.doctor import _gpus; a = next(_gpus()); print(a.status, a.value, a.why, sep='|')"
    done = subprocess.run(
        [sys.executable, "-c", asked], env=driver.environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().split("|") == [
        "note",
        "6 x NVIDIA H100 80GB HBM3, 1 x unknown GPU, 1 x a part of a GPU (MIG)",
        "driver 570.86.15; GPU 7 is divided into parts (MIG); GPU 2: GPU is lost",
    ]
