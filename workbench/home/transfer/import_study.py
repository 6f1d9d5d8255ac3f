"""What is different for a study in its new home, said in lines; and its Optuna file, made again.

From one file to a home's folders: everything is checked before anything appears.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.run import run_folder
from engine.run.calibration import fingerprint
from tuning.storage import study_folder
from workbench.home.transfer import atomic_import, rename
from workbench.home.transfer.manifest import MANIFEST, RUNS, STUDIES, Manifest, damage, parse_manifest
from workbench.home.transfer.rename import Names


def finish_import(folder: Path, manifest: Manifest, names: Names) -> tuple[str, ...]:
    """Lines about a study that was unpacked as ``folder``, whose Optuna file is made here unless it is a large one."""
    notes = [_index(folder), _machine(manifest), _data(folder), _own_file(manifest, names)]
    return tuple(line for line in notes if line)


def _index(folder: Path) -> str:
    """Optuna's file is made from the journal, later if that takes more than a moment; a study that this version
    refuses can still be read.
    """
    from tuning.sampling.optuna_export import MOMENT, rebuild

    try:
        return rebuild(folder, most=MOMENT)
    except InputError as error:
        return f"this version refuses its study file, so it can be read but not continued: {error}"


def _machine(manifest: Manifest) -> str:
    this_machine = fingerprint.this_machine().id
    if manifest.machine in (None, this_machine):
        return ""
    return (
        f"its trials ran on another machine ({manifest.machine}, here {this_machine}): what is measured here from now "
        "on cannot be compared with them"
    )


def _data(folder: Path) -> str:
    file = run_folder.read_json(folder / study_folder.STUDY)
    path = ((file or {}).get("base") or {}).get("data", {}).get("path")
    if not path or Path(path).exists():
        return ""
    return f"its data, {path}, is not here: the study can be read and exported, but not continued"


def _own_file(manifest: Manifest, names: Names) -> str:
    if names[manifest.study] == manifest.study:
        return ""
    return f"in a study file of your own, the name is {json.dumps(names[manifest.studies[0]])} from now on"


_PIECE_BYTES = 1 << 20
_MOST_MANIFEST_BYTES = 1 << 28
#: What reading a zip file that was cut off or changed may raise.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class StudyImport:
    """What came in. ``runs_here_before`` were left as they are; ``was`` is the name that the study had."""

    study: str
    was: str
    studies: tuple[str, ...]
    folder: str
    trials: int
    runs: int
    runs_here_before: int
    records: bool
    exported_unix: float
    workbench: str
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def unpack(home: Path, path: Path, name: str | None = None) -> StudyImport:
    """Import a study into a home, under another name if that is given. A kill at any moment leaves nothing half.

    Raises:
        InputError: the file is damaged, of a newer format or none of ours; the name is taken; the home is full.
    """
    with _open_archive(path) as archive:
        manifest = _manifest(archive, path)
        names = rename.names_for(manifest.studies, name)
        _check_free(home, names)
        with atomic_import.import_folder(home) as place:
            _check_space(home, manifest)
            _extract(archive, manifest, place, path)
            before = _known_runs(home, place)
            _make_at_home(place, names)
            _check_free(home, names)
            notes = finish_import(place / STUDIES / names[manifest.study], manifest, names)
            atomic_import.commit_import(home, place)
    study = names[manifest.study]
    return StudyImport(
        study=study,
        was=manifest.study,
        studies=tuple(names.values()),
        folder=str(home / study_folder.STUDIES / study),
        trials=manifest.trials,
        runs=manifest.runs,
        runs_here_before=before,
        records=manifest.records,
        exported_unix=manifest.exported_unix,
        workbench=manifest.workbench,
        left_out=manifest.left_out,
        notes=notes,
    )


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)
    except OSError as error:
        raise InputError("file", str(path), f"cannot be read ({error.strerror}); give a .study.zip") from None
    except _UNREADABLE as error:
        raise damage(str(path), f"is not a study's file, or is truncated ({error})") from None
    with archive:
        yield archive


def _manifest(archive: zipfile.ZipFile, path: Path) -> Manifest:
    try:
        if archive.getinfo(MANIFEST).file_size > _MOST_MANIFEST_BYTES:
            raise damage(str(path), f"its {MANIFEST} is too large")
        document = json.loads(archive.read(MANIFEST))
    except KeyError:
        raise damage(str(path), f"it holds no {MANIFEST}") from None
    except _UNREADABLE as error:
        raise damage(str(path), f"its {MANIFEST} cannot be read ({error})") from None
    manifest = parse_manifest(document, str(path))
    members, expected = sorted(archive.namelist()), sorted([*manifest.members, MANIFEST])
    if members != expected:
        stray = next(iter(set(members) ^ set(expected)), members[0])
        raise damage(str(path), f"{stray!r} does not match its {MANIFEST}")
    return manifest


def _check_free(home: Path, names: dict[str, str]) -> None:
    for name in names.values():
        if (home / study_folder.STUDIES / name).exists():
            raise InputError("name", name, "a study of this name is here already; give another: --name OTHER")


def _check_space(home: Path, manifest: Manifest) -> None:
    bytes_needed = sum(member.bytes for member in manifest.members.values())
    free = shutil.disk_usage(home).free
    if bytes_needed > free:
        sizes = f"has {free / 2**20:,.0f} MiB free, the study needs {bytes_needed / 2**20:,.0f}"
        raise InputError("home", str(home), f"{sizes}; free space or give another")


def _extract(archive: zipfile.ZipFile, manifest: Manifest, place: Path, path: Path) -> None:
    """Every member, as long as it says and with its checksum; never more of it than that."""
    for name, member in manifest.members.items():
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        digest, bytes_left = hashlib.sha256(), member.bytes
        try:
            with archive.open(name) as source, target.open("xb") as copy:
                while bytes_left >= 0 and (piece := source.read(_PIECE_BYTES)):
                    copy.write(piece)
                    digest.update(piece)
                    bytes_left -= len(piece)
        except _UNREADABLE as error:
            raise damage(str(path), f"{name} cannot be read ({error})") from None
        if bytes_left or digest.hexdigest() != member.sha256:
            raise damage(str(path), f"{name} does not match its checksum")


def _known_runs(home: Path, place: Path) -> int:
    """Leave out what is here already; the number of those runs.

    Raises:
        InputError: another run has this id.
    """
    existing = [folder for folder in (place / RUNS).iterdir() if (home / folder.name).exists()]
    for folder in existing:
        if _mark(folder) != _mark(home / folder.name):
            remedy = "another run of this home has this id; give another --home"
            raise InputError("run", folder.name, remedy)
        shutil.rmtree(folder)
    return len(existing)


def _mark(folder: Path) -> tuple[Any, Any]:
    """What two folders of the same run share for good."""
    first = folder / run_folder.STARTED
    config = run_folder.read_json(first if first.exists() else folder / run_folder.CONFIG)
    return config, run_folder.RunStatus.from_folder(folder).created_unix


def _make_at_home(place: Path, names: dict[str, str]) -> None:
    other = any(old != new for old, new in names.items())
    for folder in list((place / RUNS).iterdir()):
        rename.settle_run(folder)
        if other:
            rename.rename_run(folder, names)
    for folder in sorted((place / STUDIES).iterdir(), key=lambda path: len(path.name), reverse=True):
        rename.settle_study(folder)
        if other:
            rename.rename_study(folder, names)
