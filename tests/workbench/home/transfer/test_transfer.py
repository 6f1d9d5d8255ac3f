"""A study as one file: there and back, in another home or under another name, and nothing half whatever happens."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engine.config.errors import InputError
from engine.run import run_folder
from tests.support.studies.fake import Machine, run_study, study
from tests.workbench.commands.test_tune import machine  # noqa: F401
from tests.workbench.conftest import Furnished, Run
from tuning.storage import journal
from tuning.storage.commands import send
from workbench.home.store import Store
from workbench.home.transfer import atomic_import, export_study, import_study
from workbench.home.transfer.manifest import MANIFEST

NAME = "quickstart"
JOURNAL = f"studies/{NAME}/journal.jsonl"


class Away(NamedTuple):
    """A study's file, the home it came from, and a home that it has not seen."""

    file: Path
    came_from: Path
    home: Path


@pytest.fixture
def away(furnished: Furnished, tmp_path: Path) -> Away:
    file = tmp_path / "q.study.zip"
    export_study.pack(furnished.home, NAME, file)
    return Away(file, furnished.home, tmp_path / "elsewhere")


def changed(file: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    """The same file with other members."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    out = file.with_name("changed.study.zip")
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out


def manifest(held: dict[str, bytes], /, **changes: Any) -> None:
    held[MANIFEST] = json.dumps(json.loads(held[MANIFEST]) | changes).encode()


def everything(home: Path) -> list[str]:
    """What a home holds; the room for imports is none of it."""
    found = (path.relative_to(home).as_posix() for path in home.rglob("*") if home.exists())
    return sorted(name for name in found if name not in (".imports", ".imports/.lock", "studies", "index.db"))


def test_there_and_back_is_the_same_study_and_it_goes_on(
    command: Run,
    away: Away,
    machine: Machine,  # noqa: F811
) -> None:
    before = command("show", NAME, "--json", "--home", away.came_from).document
    done = command("study", "import", away.file, "--home", away.home, "--json").document
    assert (done["study"], done["trials"], done["runs"], done["notes"]) == (NAME, 8, 8, [])
    there = (away.home / JOURNAL).read_bytes()
    assert there == (away.came_from / JOURNAL).read_bytes()
    after = command("show", NAME, "--json", "--home", away.home).document
    now = {"state": "", "budget": {}, "running": []}  # whoever ran it is not here
    assert after | now == before | now
    assert (after["state"], after["running"]) == ("interrupted", [])
    listed = command("ls", "--json", "--home", away.home).document
    assert {row["outcome"] for row in listed["runs"]} == {"completed", "pruned", "oom", "lost"}
    out = away.home.parent / "winner"
    assert command("export", NAME, "--to", "torchrun", "--out", out, "--home", away.home).code == 0
    given = away.home / "studies" / NAME / "study.yaml"
    on = command("tune", given, "--home", away.home, "--set", "confirm_repeats=0", "--json").document
    assert (away.home / JOURNAL).read_bytes().startswith(there)
    assert [row["outcome"] for row in on["trials"]][7] == "lost"
    assert on["trials_done"] == 12
    assert (away.home / "studies" / NAME / "optuna.db").is_file()


def test_records_come_along_when_asked_for(command: Run, furnished: Furnished, tmp_path: Path) -> None:
    small, large = tmp_path / "small.zip", tmp_path / "large.zip"
    told = command("study", "export", NAME, "--file", small, "--home", furnished.home, "--json").document
    assert "records and logs of its runs" in told["left_out"][0]
    more = command(
        "study", "export", NAME, "--file", large, "--with-records", "--home", furnished.home, "--json"
    ).document
    assert not more["left_out"]
    assert more["bytes"] > 3 * told["bytes"]
    import_study.unpack(tmp_path / "b", large)
    for run in Store(furnished.home).runs(NAME):
        records = list((furnished.home / run.id / "records").iterdir())
        assert records
        for path in records:
            assert (tmp_path / "b" / run.id / "records" / path.name).read_bytes() == path.read_bytes()
    command("study", "export", NAME, "--file", small, "--home", furnished.home).refused("--file", "exists")
    command("study", "export", "9f10", "--home", furnished.home).refused("is a run")


def test_a_study_that_goes_on_is_taken_as_far_as_it_is(own_home: Furnished, tmp_path: Path) -> None:
    whole = (own_home.home / JOURNAL).read_bytes()
    with (own_home.home / JOURNAL).open("ab") as file:
        file.write(b'{"at_unix": 1.0, "kind": "propo')
    send(own_home.home / "studies" / NAME, "pause", by="test")
    packed = export_study.pack(own_home.home, NAME, tmp_path / "q.zip")
    assert packed.left_out[-1] == "1 command that nobody has answered yet"
    import_study.unpack(tmp_path / "b", tmp_path / "q.zip")
    assert (tmp_path / "b" / JOURNAL).read_bytes() == whole
    status = run_folder.read_json(tmp_path / "b" / "studies" / NAME / "status.json") or {}
    assert (status["state"], status["owner"], status["current_run"]) == ("interrupted", None, None)


def test_another_name_is_its_name_everywhere(
    command: Run,
    home: Path,
    tmp_path: Path,
    machine: Machine,  # noqa: F811
) -> None:
    folder = home / "studies" / "first"

    def widen(number: int, run: Path | None) -> None:
        if number == 1:
            send(folder, "widen", {"overlap.bucket_mb": "1,5"}, "test")

    file = study(trials=3, confirm_repeats=0)
    before = run_study(file, folder, Machine(during=widen, run_seconds=0.1))
    assert before["study"] == "first.2"
    command("study", "export", "first", "--file", tmp_path / "f.zip")
    command("study", "import", tmp_path / "f.zip").refused("name='first'", "--name")
    command("study", "import", tmp_path / "f.zip", "--name", "../up").refused("--name", "must begin")
    done = command("study", "import", tmp_path / "f.zip", "--name", "other")
    assert done.code == 0, done
    assert 'the name is "other" from now on' in done.err
    text = b"".join(path.read_bytes() for path in (home / "studies").glob("other*/*.json*"))
    assert b'"first"' not in text and b'"first.2"' not in text
    after = command("show", "other", "--json").document
    assert after["study"] == "other.2" and after["continues"] == ["other"]
    same = ("trials", "best", "gain", "budget", "mask")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    given = tmp_path / "own.yaml"
    given.write_text(file.text.replace("name: first", "name: other").replace("trials: 3", "trials: 4"))
    on = command("tune", given, "--json").document
    assert (on["study"], on["trials_done"]) == ("other.2", 4)


def test_a_large_study_is_left_to_tune(command: Run, away: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import does not stand still; what it left is said, and made by the next one who asks for it."""
    monkeypatch.setattr("tuning.sampling.optuna_export.MOMENT", 7)
    database = away.home / "studies" / NAME / "optuna.db"
    done = command("study", "import", away.file, "--home", away.home)
    assert (
        "note: optuna.db lacks 8 trials: they are added while the study runs, or by `workbench reindex`"
        in done.err
    )
    assert not database.exists()
    assert "optuna.db lacks 8 trials" in command("show", NAME, "--home", away.home).out
    assert command("reindex", "--home", away.home, "--json").document["notes"] == []
    assert database.is_file()
    assert command("show", NAME, "--home", away.home, "--json").document["optuna_lag"] == ""


DAMAGE: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "a changed journal": (lambda members: members.update({JOURNAL: members[JOURNAL][:-2] + b"]\n"}), "checksum"),
    "a longer journal": (lambda members: members.update({JOURNAL: members[JOURNAL] * 2}), "checksum"),
    "a missing member": (lambda members: members.pop(JOURNAL), "does not match its manifest.json"),
    "one too many": (lambda members: members.update({"../../evil": b"x"}), "does not match its manifest.json"),
    "no manifest": (lambda members: members.pop(MANIFEST), "holds no manifest"),
    "half a manifest": (lambda members: manifest(members, members=None), "is not complete"),
    "another format": (lambda members: manifest(members, format="x"), "is not that of a study"),
    "a newer version": (lambda members: manifest(members, version=2), "install a newer"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_what_cannot_be_trusted_is_refused(name: str, away: Away) -> None:
    change, words = DAMAGE[name]
    with pytest.raises(InputError, match=words):
        import_study.unpack(away.home, changed(away.file, change))
    assert everything(away.home) == []


@pytest.mark.parametrize("evil", ["../x", "/tmp/x", "runs/../../x", "studies/quickstart/../../x", "runs/a\\..\\b",
                                  "runs/20260101-000000-beef/records/../../x", "studies/other/status.json",
                                  "runs/studies/status.json", "index.db"])  # fmt: skip
def test_no_member_lands_outside(evil: str, away: Away) -> None:
    def add(members: dict[str, bytes]) -> None:
        listed = json.loads(members[MANIFEST])["members"]
        manifest(members, members=listed | {evil: {"bytes": 0, "sha256": ""}})
        members[evil] = b""

    with pytest.raises(InputError, match="does not belong to a study"):
        import_study.unpack(away.home, changed(away.file, add))
    assert everything(away.home) == []


def test_a_file_that_is_cut_off_or_none_is_one_line(command: Run, away: Away) -> None:
    data = away.file.read_bytes()
    for length in (len(data) - 10, len(data) // 2, 0):
        away.file.write_bytes(data[:length])
        command("study", "import", away.file).refused("file=", "is truncated")
    command("study", "import", away.file.with_name("no")).refused("cannot be read")


def test_a_home_that_is_full_or_cannot_be_written_keeps_nothing(
    away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        usage = shutil.disk_usage(away.file)._replace(free=10)
        patched.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(InputError, match="free space"):
            import_study.unpack(away.home, away.file)
    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "write_json", refuse)
        with pytest.raises(InputError, match="No space left on device"):
            import_study.unpack(away.home, away.file)
    assert everything(away.home) == []
    with pytest.raises(InputError, match="cannot be written"):
        import_study.unpack(away.file, away.file)
    with pytest.raises(InputError, match="cannot be written"):
        export_study.pack(away.came_from, NAME, away.file / "q.zip")


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


KILLED = """
import os, sys
from pathlib import Path
from workbench.home.transfer import atomic_import; from workbench.home.transfer import import_study as unpacking
calls = []
def deadly(module, name, at):
    real = getattr(module, name)
    def call(*given):
        calls.append(name)
        if len(calls) == at:
            os.kill(os.getpid(), 9)
        return real(*given)
    setattr(module, name, call)
module = {"atomic_import": atomic_import, "unpacking": unpacking}[sys.argv[1]]
deadly(module, sys.argv[2], int(sys.argv[3]))
unpacking.unpack(Path(sys.argv[4]), Path(sys.argv[5]))
"""


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("module", "function", "at", "there"),
    [
        ("unpacking", "_make_at_home", 1, False),
        ("atomic_import", "_put", 1, True),
        ("atomic_import", "_put", 4, True),
    ],
)
def test_a_kill_in_the_middle_leaves_all_of_it_or_nothing(
    away: Away, module: str, function: str, at: int, there: bool
) -> None:
    arguments = [module, function, str(at), str(away.home), str(away.file)]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [row.name for row in Store(away.home).studies()] == ([NAME] if there else [])
    assert len(Store(away.home).runs(NAME)) == (8 if there else 0)
    assert [path.name for path in (away.home / atomic_import.IMPORTS).iterdir()] == [".lock"]
    if there:
        assert len(journal.load(away.home / JOURNAL).trials) == 8
    else:
        import_study.unpack(away.home, away.file)


def test_runs_that_are_here_stay_and_others_of_the_same_id_are_refused(
    own_home: Furnished, away: Away, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in own_home.home.glob("20*/*.json")}
    done = import_study.unpack(own_home.home, away.file, "again")
    assert done.runs_here_before == done.runs == 8
    assert {path: path.read_bytes() for path in own_home.home.glob("20*/*.json")} == before
    run_folder.update_status(own_home.home / own_home.live, created_unix=1.0)
    with pytest.raises(InputError, match="another run of this home has this id"):
        import_study.unpack(own_home.home, away.file, "third")
    assert not (own_home.home / "studies" / "third").exists()


def test_an_import_by_another_process_is_left_alone(away: Away) -> None:
    """A look at the home while something is being unpacked removes nothing."""
    with atomic_import.import_folder(away.home) as place:
        atomic_import.finish(away.home)
        assert place.is_dir()
    assert not place.exists()
