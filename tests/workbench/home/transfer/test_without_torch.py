"""A study's file is opened on a machine that has no torch: terminal, page and export, read-only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workbench.conftest import Furnished
from workbench.home.transfer import export_study

#: Imported by Python as it starts: from there on torch is not found, as where it was never installed.
NO_TORCH = """
import importlib.machinery

found = importlib.machinery.PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] == "torch" else found(name, path, target)

importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""
PAGE = """
import sys
from streamlit.testing.v1 import AppTest

page = AppTest.from_file("workbench/pages/main.py", default_timeout=60).run()
page.query_params["study"] = "quickstart"
page.switch_page("tune.py").run()
assert not page.exception, page.exception
assert "torch" not in sys.modules
print("shown:", *(row.label for row in page.metric), "winner" if "dp=" in str(page.main) else "")
"""


class Laptop:
    """Runs Python without torch, with a home of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(NO_TORCH, encoding="utf-8")
        self.home = folder / "home"
        self._environment = os.environ | {"PYTHONPATH": str(folder), "WORKBENCH_HOME": str(self.home)}

    def python(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    def workbench(self, *arguments: str | Path) -> str:
        done = self.python("-m", "workbench", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def laptop(furnished: Furnished, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    folder = tmp_path_factory.mktemp("laptop")
    packed = folder / "q.study.zip"
    export_study.pack(furnished.home, "quickstart", packed)
    there = Laptop(folder)
    there.workbench("study", "import", packed)
    return there


@pytest.mark.timeout(120)
def test_it_is_shown_and_exported_as_where_it_was_measured(
    laptop: Laptop, furnished: Furnished, tmp_path: Path
) -> None:
    told = json.loads(laptop.workbench("show", "quickstart", "--json"))
    original = subprocess.run(
        [sys.executable, "-m", "workbench", "show", "quickstart", "--json", "--home", str(furnished.home)],
        capture_output=True, check=True,
    )  # fmt: skip
    assert told["trials"] == json.loads(original.stdout)["trials"]
    assert "quickstart" in laptop.workbench("ls")
    laptop.workbench("export", "quickstart", "--to", "torchrun", "--out", tmp_path / "winner")
    assert (tmp_path / "winner" / "run.sh").is_file()


@pytest.mark.timeout(120)
def test_the_page_shows_it(laptop: Laptop) -> None:
    done = laptop.python("-c", PAGE)
    assert done.returncode == 0, done.stderr
    assert "shown:" in done.stdout


@pytest.mark.timeout(120)
@pytest.mark.parametrize("arguments", [("train", "examples/train.yaml"), ("calibrate", "--quick")])
def test_what_needs_ranks_says_so_in_one_line(laptop: Laptop, arguments: tuple[str, ...]) -> None:
    before = sorted(laptop.home.iterdir())
    done = laptop.python("-m", "workbench", *arguments)
    assert done.returncode == 2
    assert "error: torch: is not installed here" in done.stderr
    assert sorted(laptop.home.iterdir()) == before, "nothing is begun"


@pytest.mark.timeout(60)
def test_the_doctor_says_that_it_is_missing(laptop: Laptop) -> None:
    done = laptop.python("-m", "workbench", "doctor", "--json")
    checks = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert checks["torch"]["status"] == "missing"
    assert not json.loads(done.stdout)["usable"]
