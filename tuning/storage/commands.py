"""Commands to a running study or run: one small file each, renamed into ``commands/`` and answered once."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.run import run_folder

#: What a command is told: for ``pin`` and the like values by knob, for ``budget`` by name, for others ``trial`` or so.
Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """What somebody asked for. Ids sort by age."""

    id: str
    command: str
    arguments: Arguments = field(default_factory=dict)
    created_unix: float = 0.0
    by: str = ""


def send(folder: Path, command: str, arguments: Arguments | None = None, by: str = "command line") -> str:
    """Leave a command for the owner of a study or run; its id finds the answer.

    Raises:
        InputError: the folder cannot be written.
    """
    now = time.time()
    sent = Command(f"{now:017.6f}-{secrets.token_hex(2)}", command, arguments or {}, now, by)
    inbox = folder / run_folder.COMMANDS
    try:
        inbox.mkdir(parents=True, exist_ok=True)
        run_folder.write_json(inbox / f"{sent.id}.json", asdict(sent))
    except OSError as error:
        raise InputError("commands", str(inbox), f"cannot be written ({error.strerror})") from None
    return sent.id


def pending_commands(folder: Path, applied: Collection[str]) -> list[Command]:
    """Commands not answered yet, oldest first; a file that is no command is one named ``unreadable``."""
    inbox = folder / run_folder.COMMANDS
    names = [path for path in inbox.glob("*.json") if path.stem not in applied] if inbox.is_dir() else []
    return [_read(path) for path in sorted(names)]


def _read(path: Path) -> Command:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        arguments = document.get("arguments") or {}
        return Command(
            path.stem,
            str(document["command"]),
            dict(arguments),
            float(document.get("created_unix", 0)),
            str(document.get("by", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Command(path.stem, "unreadable", {"error": str(error)})
