"""The folder that a user can attach to a report: what of a check's runs is kept, scrubbed; its README; and the zip.

The README of a folder of evidence: what each file is, what was taken out, and how to replay.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from engine.run import run_folder
from workbench.selftest.check_context import HOME, KEPT, LABEL
from workbench.selftest.isolation import OUTPUT
from workbench.selftest.redaction import Redactor

CHECKS, README = "checks", "README.md"
#: Of a run: documents, logs of its ranks, dumps of the Flight Recorder and Chrome traces. Records are left out: they
#: hold every variable that ranks see, in a form in which nobody can read what is sent.
_DOCUMENTS = (run_folder.CONFIG, run_folder.STATUS, run_folder.SUMMARY)
_FOLDERS = (run_folder.LOGS, run_folder.FLIGHT, run_folder.TRACES)
#: A longer text keeps its end; half a document would be none.
_MOST_BYTES = 8 << 20
_PACKED = ".gz"


def collect(scratch: Path, folder: Path, check: str, scrubber: Redactor) -> tuple[list[str], dict[str, str]]:
    """Copy what a check left, without what is private; names of the files, relative to the folder, and of those that
    could not be written, with the reason.
    """
    kept_files: list[str] = []
    errors: dict[str, str] = {}
    for source, file in _sources(scratch):
        target = folder / CHECKS / check / file
        name = target.relative_to(folder).as_posix()
        text = scrubber.file(target.name, _read(source))
        if not text:
            continue
        try:
            _write(target, text)
            kept_files.append(name)
        except OSError as error:
            errors[name] = error_text(error)
    return kept_files, errors


def packed_path(folder: Path) -> Path:
    """Where :func:`pack` puts the folder as one file: beside it."""
    return folder.with_name(f"{folder.name}.zip")


def pack(folder: Path) -> Path:
    """The folder as one file beside it, which is new: one that came there meanwhile is somebody's.

    Raises:
        OSError: it cannot be written; nothing is left of it then.
    """
    path = packed_path(folder)
    scratch = path.with_name(f".{path.name}")
    try:
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.rglob("*")):
                if file.is_file() and not file.name.startswith("."):
                    archive.write(file, f"{folder.name}/{file.relative_to(folder).as_posix()}")
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    return path


def error_text(error: OSError) -> str:
    """The system's words, without the path: it may be private."""
    return error.strerror or type(error).__name__


def _write(target: Path, text: str) -> None:
    """Whole or not at all: half a file would be taken for all of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError:
        target.unlink(missing_ok=True)
        raise


def _sources(scratch: Path) -> Iterator[tuple[Path, str]]:
    yield from _files(scratch / KEPT, "")
    for number, run in enumerate(sorted((scratch / HOME).glob(f"*/{run_folder.STATUS}")), 1):
        label = ((run_folder.read_json(run) or {}).get("labels") or {}).get(LABEL, "run")
        name = f"{number:02d}-{label}/"
        for document in _DOCUMENTS:
            if (run.parent / document).is_file():
                yield run.parent / document, name + document
        for part in _FOLDERS:
            yield from _files(run.parent / part, f"{name}{part}/")
    if (scratch / OUTPUT).is_file():
        yield scratch / OUTPUT, OUTPUT


def _files(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
            yield path, name + path.relative_to(folder).as_posix().removesuffix(_PACKED)


def _read(path: Path) -> bytes:
    """The end of a file, unpacked."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == _PACKED else data
    except (OSError, EOFError, zlib.error) as error:
        return f"could not be read: {type(error).__name__}\n".encode()
    if len(data) <= _MOST_BYTES:
        return data
    if path.name.removesuffix(_PACKED).endswith(".json"):
        return json.dumps({"left_out": f"{len(data)} bytes are too many"}).encode()
    return b"(its beginning is left out)\n" + data[-_MOST_BYTES:]


TEXT = """\
# Evidence of a `workbench selftest`

`checks.json` has every check: its outcome (pass, fail or not_possible), the reason, seconds, measured numbers with
their units in the names, and its files. It is written anew after each check, so it holds if the command was killed.

`checks/NAME/` is what a check left:

| file | what it is |
| --- | --- |
| `NN-LABEL/config.json` | the exact configuration of a run; `workbench train config.json` runs it again |
| `NN-LABEL/status.json`, `summary.json` | how it ended, and its numbers |
| `NN-LABEL/logs/rank-R.log` | what a rank printed; over NCCL with variables set, also NCCL's own log |
| `NN-LABEL/flight/rank-R.json` | the last collectives of a rank that waited (torch's Flight Recorder) |
| `NN-LABEL/traces/*/rank-R.json` | a Chrome trace of torch.profiler; opens at https://ui.perfetto.dev |
| `machine/doctor.json`, `versions.json`, `fingerprint.json` | what is there, and in which version |
| `machine/environment.json` | variables of the checked list; of others that act on ranks only the names |
| `nvml/nvml.tape.json` | every answer of the driver, in the order in which it gave them |
| `calibration/calibration.json` | curves of a quick calibration |
| `output.log` | what the check printed; the traceback if it failed by a mistake of ours |

## What was taken out

Names of users and hosts, home folders and addresses are replaced, unless `--with-host-names` was given, which keeps
names and addresses of hosts. So are the values of environment variables that are not on the checked list
(`engine/config/environment.py`) wherever they occur, if they are 6 characters or longer (3 for those whose
names sound secret); shorter ones are told nowhere by name. UUIDs of GPUs are numbered. Records of runs are left out.

## How to replay

From a checkout, put a file into `tests/data/` and:

- `nvml.tape.json`: `Nvml(FakeNvml(path=...))` of `tests/support/gpu/fake_nvml.py` answers as the driver did.
- `flight/rank-R.json`: `profilers.collectives.flight_recorder.parse(document["dump"].encode())`, then
  `profilers.collectives.hang.find`.
- a rank's log over NCCL: `profilers.collectives.nccl_log.proof(name, value, lines)`.
- a trace: `workbench.home.traces`.
- `summary.json`: `RunSummary.from_dict`.
"""
