"""File names in a run folder, and its two small documents: config.json and status.json."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, load

CONFIG = "config.json"
#: The configuration that a run began with, once it was changed as it went.
STARTED = "config-at-start.json"
STATUS = "status.json"
SUMMARY = "summary.json"
RECORDS = "records"
LOGS = "logs"
COMMANDS = "commands"
ORDERS = "orders"
SNAPSHOTS = "snapshots"
TRACES = "traces"
PROGRESS = "progress"
FLIGHT = "flight"


def new_run_id() -> str:
    """A run's id: UTC time to the second and four random hex digits; ids sort by age."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def trace_name(first: int, steps: int) -> str:
    """The folder of a trace that was ordered over so many steps."""
    return f"step-{first}-{steps}"


def write_json(path: Path, document: dict[str, Any], indented: bool = True) -> None:
    """Replace a document in one step: readers see the old or the new one, never half."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(document, indent=2 if indented else None) + "\n", encoding="utf-8")
    scratch.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """A document, or None if it is not there or not readable as JSON."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


@contextlib.contextmanager
def writable(home: Path) -> Iterator[None]:
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
    with writable(home):
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


def update_status(folder: Path, **changes: Any) -> dict[str, Any]:
    """Merge changes into a run's status."""
    status = (read_json(folder / STATUS) or {"id": folder.name}) | changes
    write_json(folder / STATUS, status)
    return status
