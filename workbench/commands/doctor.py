"""``doctor``: what this machine can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.commands.options import Home, Json

if TYPE_CHECKING:
    from workbench.doctor import Check


def doctor(home: Home, json: Json = False) -> int:
    """Tell what this machine can do, what is missing, and why."""
    from workbench.doctor import document, examine, usable
    from workbench.output import emit_json, stdout_for_results

    with stdout_for_results():
        checks = examine(home)
    if json:
        emit_json(document(home, checks))
    else:
        _print(checks)
    return 0 if usable(checks) else 1


def _print(checks: list[Check]) -> None:
    from rich.table import Table

    from workbench.output import result_console

    table = Table("", "", "", "", box=None, show_header=False, pad_edge=False)
    colors = {"ok": "green", "missing": "red", "note": "yellow"}
    for check in checks:
        color = colors[check.status] if check.needed or check.status != "missing" else "dim"
        table.add_row(f"[{color}]{check.status}[/]", check.name, check.value, check.why)
    result_console().print(table)
