"""``doctor`` tells what there is, and why something is not."""

from __future__ import annotations

from pathlib import Path

from tests.workbench.conftest import Run
from workbench import doctor


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
