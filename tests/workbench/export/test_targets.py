"""An export target is one entry: a made-up one is offered on the page, written by the command, and named in errors; a
made-up trainer is read, documented and asked by its name, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.run import run_folder
from tests import reference
from tests.support.runs import small
from tests.support.trainers import environments
from tests.workbench.conftest import Furnished, Run
from tests.workbench.pages.test_pages import visit
from workbench.analysis.studies import StudyDocument
from workbench.export import importing, targets
from workbench.export.bundle import Bundle
from workbench.export.formats.hf import HF
from workbench.export.launchers.torchrun import Launcher
from workbench.export.mapping import documents
from workbench.export.targets import TARGETS, Target
from workbench.home import runs
from workbench.home.runs import RunView
from workbench.services import doctor


def render(run: RunView, study: StudyDocument | None) -> Bundle:
    return Bundle(run.id, {"go.txt": f"train {run.id}\n", "provenance.json": "{}"})


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("abacus", "a trainer that counts by hand", render, "go.txt", package="abacus-trainer")
    monkeypatch.setattr(targets, "TARGETS", (*TARGETS, target))


@pytest.mark.usefixtures("made_up")
def test_the_command_writes_it_and_says_how_to_start(
    command: Run, own_home: Furnished, tmp_path: Path
) -> None:
    run = next(path.name for path in own_home.home.iterdir() if path.name.startswith("20"))
    done = command("export", run, "--to", "abacus", "--out", tmp_path / "out")
    assert done.code == 0
    assert str(tmp_path / "out" / "go.txt") in done.out
    assert (tmp_path / "out" / "go.txt").read_text() == f"train {run}\n"
    command("export", run, "--to", "sundial", "--out", tmp_path / "o").refused("--to='sundial'", "abacus")


@pytest.mark.usefixtures("made_up")
def test_the_page_offers_it(own_home: Furnished) -> None:
    app = visit("export")
    (chooser,) = [box for box in app.selectbox if box.key == "target"]
    assert chooser.options == [*(target.name for target in TARGETS), "abacus"]
    assert "a trainer that counts by hand" in chooser.help
    chooser.select("abacus").run()
    assert not app.exception
    assert any("--to abacus" in code.value for code in app.code)


@pytest.mark.usefixtures("made_up")
def test_doctor_says_whether_its_trainer_is_installed(tmp_path: Path) -> None:
    checks = {check.name: check for check in doctor.examine(tmp_path)}
    assert (checks["export torchrun"].status, checks["export torchrun"].value) == ("ok", "built in")
    assert checks["export abacus"].status == "note"
    assert "abacus-trainer is not installed" in checks["export abacus"].why
    assert doctor.usable(list(checks.values()))


def _count(bundle: Bundle, config: RunConfig) -> str:
    return f"#!/bin/sh\n# {bundle.name}\nexec count --hands {layout_of(config).world_size}\n"


HANDS = Launcher("count.sh", _count, "`./count.sh` counts again", executable=True)


def test_a_launcher_says_its_own_file_alone(
    command: Run, own_home: Furnished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = targets.own_launcher("hands", "this trainer by hand", HANDS)
    monkeypatch.setattr(targets, "TARGETS", (*TARGETS, target))
    run = next(path.name for path in own_home.home.iterdir() if path.name.startswith("20"))
    out, usual = tmp_path / "out", tmp_path / "usual"
    assert command("export", run, "--to", "hands", "--out", out).code == 0
    assert command("export", run, "--to", "torchrun", "--out", usual).code == 0
    names = {path.name for path in usual.iterdir()} - {"run.sh"} | {"count.sh"}
    assert {path.name for path in out.iterdir()} == names
    assert "exec count --hands" in (out / "count.sh").read_text()
    assert os.access(out / "count.sh", os.X_OK)
    assert "| `count.sh` | `./count.sh` counts again |" in (out / "README.md").read_text("utf-8")
    assert (out / "config.json").read_text() == (usual / "config.json").read_text()
    foreign = run_folder.create(tmp_path, small().with_values({"trainer.hook": "none"}), {})
    with pytest.raises(InputError, match=r"--to='hands'.*give trainer"):
        target.render(runs.load(foreign), None)


ABACUS = replace(HF, name="abacus", title="a trainer's beads", file="beads.abacus", own_suffixes=(".abacus",))


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A made-up public trainer that writes and reads as another one does, and knows the same keys."""
    known = json.loads(documents.KNOWN.read_text("utf-8"))
    with_it = tmp_path / "known_keys.json"
    with_it.write_text(json.dumps(known | {"abacus": known["hf"] | {"package": "abacus 1.0"}}))
    monkeypatch.setattr(documents, "KNOWN", with_it)
    for module in (targets, reference):
        monkeypatch.setattr(module, "TARGETS", (*TARGETS, targets.public_trainer(ABACUS)))
    documents.read_format.cache_clear()
    yield
    documents.read_format.cache_clear()


@pytest.mark.usefixtures("trainer")
def test_a_trainer_is_its_table_its_entry_and_the_module_that_asks_it(
    command: Run, own_home: Furnished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = next(path.name for path in own_home.home.iterdir() if path.name.startswith("20"))
    assert command("export", run, "--to", "abacus", "--out", tmp_path / "out").code == 0
    assert "Keys are those of abacus 1.0" in (tmp_path / "out" / "README.md").read_text("utf-8")
    imported = importing.read(tmp_path / "out" / "beads.abacus")
    assert (imported.format, imported.package) == ("abacus", "abacus 1.0")
    assert "## abacus\n" in reference.exports()
    asking = ModuleType("tests.support.trainers.abacus")
    monkeypatch.setitem(sys.modules, asking.__name__, asking)
    assert environments.trainers()["abacus"] is asking


@pytest.mark.parametrize("name", environments.TRAINERS)
def test_what_a_trainer_refuses_an_import_refuses_too(name: str) -> None:
    form = targets.find_target(name).format
    assert form is not None
    with pytest.raises(InputError):
        form.settings(form.document(environments.TRAINERS[name].WRONG), 2)


#: Of a trainer whose keys nobody took yet: who knows the others, and what is said of it.
SCRIPT = """
import sys
from pathlib import Path

from workbench.export.launchers.torchrun import Launcher
from workbench.export.mapping import documents

documents.KNOWN = Path(sys.argv[1])
from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.run import run_folder
from workbench.export.targets import find_target

print(find_target("torchrun").required_package(), find_target("accelerate").required_package())
try:
    find_target("hf").required_package()
except InputError as error:
    print(error)
"""


def test_a_trainer_whose_keys_are_not_known_yet_leaves_the_others_alone(
    own_home: Furnished, tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = json.loads(documents.KNOWN.read_text("utf-8"))
    lacking = tmp_path / "known_keys.json"
    lacking.write_text(json.dumps({name: keys for name, keys in known.items() if name != "hf"}))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, lacking], capture_output=True, text=True, check=False
    )
    others, said = done.stdout.splitlines()
    assert others == "None accelerate"
    assert said.startswith(
        "known_keys.json='hf': is not in it: python -m tests.support.trainers.environments hf"
    )

    monkeypatch.setattr(documents, "KNOWN", lacking)
    documents.read_format.cache_clear()
    try:
        checks = {check.name: check for check in doctor.examine(tmp_path)}
        assert (checks["export hf"].status, checks["export hf"].why) == ("missing", said)
        assert checks["export accelerate"].status != "missing"
        run = next(path.name for path in own_home.home.iterdir() if path.name.startswith("20"))
        command("export", run, "--to", "hf", "--out", tmp_path / "hf").refused(said)
        assert command("export", run, "--to", "accelerate", "--out", tmp_path / "accelerate").code == 0
        imported = importing.read(tmp_path / "accelerate" / "accelerate.yaml")
        assert imported.format == "accelerate"
    finally:
        documents.read_format.cache_clear()
