"""Lines that a database could not take yet: kept in a file beside the journal until it has them."""

from __future__ import annotations

import json
import os
from pathlib import Path

OUTBOX = "outbox.jsonl"


class Outbox:
    """Lines, each with an id of its own, so that one that is sent twice counts once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / OUTBOX
        self.lines = self._read()

    def add(self, identity: str, text: str) -> None:
        """Keep one; it is on disk when this returns."""
        with self._path.open("ab") as file:
            file.write(json.dumps([identity, text]).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append((identity, text))

    def clear(self) -> None:
        """All of them were sent."""
        self._path.unlink(missing_ok=True)
        self.lines = []

    def _read(self) -> list[tuple[str, str]]:
        if not self._path.exists():
            return []
        found = []
        for piece in self._path.read_bytes().split(b"\n"):
            try:
                identity, text = json.loads(piece)
            except ValueError:  # half-written by a controller that died
                continue
            found.append((str(identity), str(text)))
        return found
