"""``benchmarks/results/exports.md``: what the slow tests tried with each public trainer, a line each, the newest."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import torch

from tests.support.trainers.environments import OF_FORMAT, PACKAGES, ROOT, UNPACKED

RESULTS = ROOT / "benchmarks" / "results" / "exports.md"
_HEADER = ["target", "level", "what", "result", "packages", "torch", "finished (UTC)"]


def rows() -> list[list[str]]:
    """The lines that are there."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")
    ]
    return cells[2:]


def noted(name: str, level: str, what: str, result: str) -> None:
    """Write down that something passed, in place of its older line."""
    place = OF_FORMAT[name]
    packages = ", ".join([*PACKAGES[place], *UNPACKED.get(place, ())[:1]])
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    kept = [row for row in rows() if row[:3] != [name, level, what]]
    kept.append([name, level, what, result, packages, torch.__version__, at])
    lines = [f"| {' | '.join(row)} |" for row in (_HEADER, ["---"] * len(_HEADER), *sorted(kept))]
    text = ["# Exports in the trainers themselves", "",
            f"Written by the slow tests of `tests/workbench/export/formats`; {os.cpu_count()} CPU cores, gloo.", "",
            *lines, ""]  # fmt: skip
    fresh = RESULTS.with_suffix(".tmp")
    fresh.write_text("\n".join(text), encoding="utf-8")
    fresh.replace(RESULTS)
