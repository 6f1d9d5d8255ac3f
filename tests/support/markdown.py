"""Tables and values as the generated pages of the documentation have them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic import BaseModel


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; cells may hold any text of one line."""
    cells = [list(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in cells[0]) + " |", *lines[1:]])


def spelled(value: object) -> str:
    """A default as YAML has it."""
    if isinstance(value, BaseModel):
        return ", ".join(f"{name}: {spelled(part)}" for name, part in value)
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
