"""``benchmarks/results/exports.md``: what the slow tests tried with each public trainer, a line each, the newest."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime

import torch

from benchmarks._table import commit
from tests.support.trainers.environments import OF_FORMAT, PACKAGES, ROOT, UNPACKED

RESULTS = ROOT / "benchmarks" / "results" / "exports.md"
_HEADER = ["target", "level", "what", "result", "packages", "torch", "commit", "finished (UTC)"]
#: What is tried by our code alone.
OURS = "none"


def rows() -> list[list[str]]:
    """The lines that are there."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")
    ]
    return cells[2:]


def packages_of(name: str) -> str:
    """What a format's trainer is installed from, as results say it."""
    place = OF_FORMAT[name]
    return ", ".join([*PACKAGES[place], *UNPACKED.get(place, ())[:1]])


def _commit() -> str:
    """What was tried; code that was changed since is told."""
    code = ["engine", "profilers", "tuning", "workbench", "tests"]
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *code], cwd=ROOT, check=False)
    return f"{commit() or 'unknown'}{' with changes' if changed.returncode else ''}"


def noted(name: str, level: str, what: str, result: str, packages: str | None = None) -> None:
    """Write down that something passed, in place of its older line."""
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    kept = [row for row in rows() if row[:3] != [name, level, what]]
    tried = packages or packages_of(name)
    kept.append([name, level, what, result, tried, torch.__version__, _commit(), at])
    lines = [f"| {' | '.join(row)} |" for row in (_HEADER, ["---"] * len(_HEADER), *sorted(kept))]
    text = ["# Exports in the trainers themselves", "",
            f"Written by the slow tests of `tests/workbench/export/formats`; {os.cpu_count()} CPU cores, gloo.", "",
            *lines, ""]  # fmt: skip
    fresh = RESULTS.with_suffix(".tmp")
    fresh.write_text("\n".join(text), encoding="utf-8")
    fresh.replace(RESULTS)
