"""A study's failures in the terminal: how many, and which settings lead to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_failures(console: Console, document: dict[str, Any]) -> None:
    """Nothing where nothing failed."""
    failures = document.get("failures") or {}
    if not failures.get("endings"):
        return
    console.print(f"failures: {failures['line']}", markup=False, soft_wrap=True)
    for rule in failures["rules"]:
        console.print(f"  {rule['words']}", markup=False, soft_wrap=True)
