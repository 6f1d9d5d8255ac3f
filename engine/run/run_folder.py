"""File names in a run folder, and its two small documents: config.json and status.json."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, load
from engine.run.outcome import RecordedOutcome
from engine.run.ownership import Owner
from profilers.rank import job_rank

#: A run of a job that is not ours has this document, and no configuration.
JOB = "job.json"
CONFIG = "config.json"
#: The configuration that a run began with, once it was changed as it went.
STARTED = "config-at-start.json"
STATUS = "status.json"
SUMMARY = "summary.json"
RECORDS = job_rank.RECORDS
PROGRESS = job_rank.PROGRESS
FLIGHT = job_rank.FLIGHT
LOGS = "logs"
COMMANDS = "commands"
ORDERS = job_rank.ORDERS
SNAPSHOTS = job_rank.SNAPSHOTS
TRACES = job_rank.TRACES

#: An object of a JSON file, whichever: what reads it for good makes the type of that file of it.
JsonDocument = dict[str, Any]


def new_run_id() -> str:
    """A run's id: UTC time to the second and four random hex digits; ids sort by age."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def write_json(path: Path, document: JsonDocument, indented: bool = True) -> None:
    """Replace a document in one step: readers see the old or the new one, never half."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(document, indent=2 if indented else None) + "\n", encoding="utf-8")
    scratch.replace(path)


def read_json(path: Path) -> JsonDocument | None:
    """A document, or None if it is not there or not readable as JSON."""
    try:
        document = _decode_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _decode_json(text: bytes) -> object:
    """Of a long run a summary has megabytes, which msgspec reads three times as fast; but it knows no NaN."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


@contextlib.contextmanager
def check_writable(home: Path) -> Iterator[None]:
    """Turn a failed write into bad input: a home that is read-only, full or not a folder is the user's to mend."""
    try:
        yield
    except OSError as error:
        remedy = f"the run folder cannot be written ({error.strerror}); give another --home or free space"
        raise InputError("home", str(home), remedy) from None


def create(home: Path, config: RunConfig, labels: dict[str, str]) -> Path:
    """A new run folder with its exact configuration and a first status.

    Raises:
        InputError: the folder cannot be written (read-only, full, not a folder).
    """
    folder = home / new_run_id()
    with check_writable(home):
        for part in (RECORDS, LOGS, COMMANDS):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(config.dumps(), encoding="utf-8")
        status = {"id": folder.name, "state": "starting", "labels": labels, "created_unix": time.time()}
        write_json(folder / STATUS, status)
    return folder


def change_config(folder: Path, config: RunConfig) -> None:
    """The configuration from now on; the first one is kept beside it. OSError if that is not possible."""
    path, started = folder / CONFIG, folder / STARTED
    if not started.exists():
        scratch = started.with_name(f".{STARTED}.{os.getpid()}")
        scratch.write_bytes(path.read_bytes())
        scratch.replace(started)
    write_json(path, config.model_dump(mode="json"))


def last_config(folder: Path) -> RunConfig | None:
    """The configuration that a run was changed to last; None if it never was, or if that cannot be read."""
    if not (folder / STARTED).exists():
        return None
    with contextlib.suppress(InputError):
        return load(folder / CONFIG)
    return None


@dataclass(frozen=True, slots=True)
class RankHost:
    """A host by its name, and its ranks."""

    name: str
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class CalibrationReference:
    """Which calibration a run refers to: by the id of its machine's fingerprint, and when it was measured."""

    fingerprint: str
    measured_unix: float | None = None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What ``status.json`` of a run says. A key that is missing or null has the default, and unknown ones are ignored:
    runs of older and newer versions can be read. :func:`update_status` changes the file.
    """

    #: starting, running or ended; empty in a file that does not say.
    state: str = ""
    #: Study, trial and purpose, where they apply.
    labels: dict[str, str] = field(default_factory=dict)
    created_unix: float | None = None
    started_unix: float | None = None
    ended_unix: float | None = None
    #: The process that runs it (``ownership.identity``).
    owner: Owner | None = None
    world_size: int | None = None
    #: Degrees of parallelism and the ZeRO stage.
    layout: dict[str, int] | None = None
    backend: str | None = None
    backend_reason: str | None = None
    devices: list[str] | None = None
    #: The device of each rank; None where ranks are in order.
    placement: list[int] | None = None
    #: The lab's host of each rank; None without a lab.
    lab_hosts: list[int] | None = None
    #: Of a run that another launcher started.
    hosts: list[RankHost] = field(default_factory=list)
    rank_pids: list[int] = field(default_factory=list)
    #: How many ranks answer orders, where that is not each: another trainer answers with one voice.
    voices: int | None = None
    #: The process beside the ranks of another launcher, if it lives.
    takes_orders: Owner | None = None
    #: ``Fingerprint.as_dict`` of the machine, as the version had it that ran this: the id is of exactly these parts.
    fingerprint: JsonDocument | None = None
    #: The one that the run refers to, or why there is none.
    calibration: CalibrationReference | None = None
    calibration_reason: str | None = None
    #: As it stands now; the outcome, if the run dies in it.
    hang: RecordedOutcome | None = None
    outcome: RecordedOutcome | None = None
    #: Every key of the file, null or not.
    keys: frozenset[str] = frozenset()

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RunStatus:
        """The status that a file's values make. What should be a type of its own and is damaged counts as missing."""
        fields = {key: value for key, value in document.items() if value is not None}
        values = {key: fields[key] for key in cls.__dataclass_fields__ if key in fields}
        values |= {
            key: RecordedOutcome.from_dict(fields[key]) for key in ("hang", "outcome") if fields.get(key)
        }
        for key in _PARTS.keys() & values.keys():
            try:
                values[key] = msgspec.convert(values[key], _PARTS[key])
            except msgspec.ValidationError:
                del values[key]
        return cls(**values | {"keys": frozenset(document)})

    @classmethod
    def from_folder(cls, folder: Path) -> RunStatus:
        """The status of a run's folder; without any keys if there is none, or if it cannot be read. Where the run was
        turned meanwhile, the layout has the stage of ZeRO that it has now.
        """
        status = cls.from_dict(read_json(folder / STATUS) or {})
        config = last_config(folder) if status.layout else None
        if config is None:
            return status
        return replace(status, layout=(status.layout or {}) | {"zero_stage": config.parallel.zero_stage})

    @property
    def answering(self) -> int:
        """From how many ranks an order has its answers."""
        return self.voices or self.world_size or 1

    @property
    def began_unix(self) -> float:
        """When the ranks started, else when the run was created: the origin of time axes; 0 if neither is known."""
        return float(self.started_unix or self.created_unix or 0.0)


#: Fields of a status that are types of their own, and those types.
_PARTS: dict[str, Any] = {
    "owner": Owner,
    "hosts": list[RankHost],
    "takes_orders": Owner,
    "calibration": CalibrationReference,
}


def update_status(folder: Path, **changes: Any) -> None:
    """Merge changes, fields of :class:`RunStatus`, into a run's status file; all else in it stays."""
    status = read_json(folder / STATUS) or {"id": folder.name}
    write_json(folder / STATUS, status | msgspec.to_builtins(changes))


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """What ``job.json`` says of a job that is not ours: how it was started, and what it tells of itself."""

    #: Without secrets, as the environment is.
    command: list[str] = field(default_factory=list)
    directory: str = ""
    host: str = ""
    #: Variables that act on ranks.
    environment: dict[str, str] = field(default_factory=dict)
    #: On all ranks; None if the job does not tell.
    tokens_per_step: int | None = None
    #: What a reader of its numbers should know, in words.
    notes: list[str] = field(default_factory=list)

    @classmethod
    def from_folder(cls, folder: Path) -> ForeignJob | None:
        """That of a run's folder; None if it is a run of ours."""
        document = read_json(folder / JOB)
        if document is None:
            return None
        return cls(
            **{key: document[key] for key in cls.__dataclass_fields__ if document.get(key) is not None}
        )

    def write(self, folder: Path) -> None:
        """Replace the document of a run's folder."""
        write_json(folder / JOB, asdict(self))


def update_job(folder: Path, **changes: Any) -> None:
    """Merge changes into what a run's folder says of a job that is not ours."""
    write_json(folder / JOB, (read_json(folder / JOB) or {}) | changes)
