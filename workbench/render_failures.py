"""A study's failures in the terminal: how many, and which settings lead to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench import study_words, words

if TYPE_CHECKING:
    from rich.console import Console


def print_failures(console: Console, document: dict[str, Any]) -> None:
    """How many, each ending with its phase and ranks, and rules in words; nothing where nothing failed."""
    failures = document.get("failures") or {}
    if not failures.get("endings"):
        return
    said = failures["line"] in (document.get("result_line") or "")
    line = "how they ended" if said else failures["line"]
    console.print(f"failures: {line}", markup=False, soft_wrap=True)
    for row in failures["endings"]:
        console.print(f"  {_ending(row)}", markup=False, soft_wrap=True)
    for rule in failures["rules"]:
        console.print(f"  {rule['words']}", markup=False, soft_wrap=True)


def _ending(row: Mapping[str, Any]) -> str:
    """``oom in backward on rank 0: trials 3 and 7; the last: too little memory``."""
    where = f" in {words.spoken(row['phase'])}" if row["phase"] else ""
    ranks = study_words.listed(row["ranks"])
    where += f" on rank{'s' if len(row['ranks']) > 1 else ''} {ranks}" if ranks else ""
    trials = f"trial{'s' if len(row['trials']) > 1 else ''} {study_words.listed(row['trials'])}"
    again = f", {row['tried_again']} tried again" if row["tried_again"] else ""
    last = "the last: " if len(row["trials"]) > 1 else ""
    reason = f"; {last}{row['reason']}" if row["reason"] else ""
    return f"{words.spoken(row['outcome'])}{where}: {trials}{again}{reason}"
