"""Tables with the machine and the versions they were measured on."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments that every benchmark takes."""
    made = argparse.ArgumentParser(description=(description or "").replace("%", "%%"))
    made.add_argument("--save", action="store_true", help="write the table to benchmarks/results as well")
    return made


def show(
    name: str, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], save: bool, where: str = ""
) -> str:
    """Print a Markdown table under its title and ``where`` it was measured, by default here; keep it if asked to."""
    head = [f"# {title}", "", where or machine(), ""]
    lines = [*head, _row(header), _row(["---"] * len(header)), *map(_row, rows), ""]
    text = "\n".join(lines)
    print(text)
    if save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    return text


def kept(path: Path) -> dict[str, Any]:
    """What a stopped benchmark has kept there; nothing at first."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def keep(path: Path, found: object) -> None:
    """In the place of what was kept before, whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    scratch.replace(path)


def machine() -> str:
    """One line: processor count, system, versions, commit."""
    return (
        f"{os.cpu_count()} CPU cores ({platform.machine()}), {platform.system()}, "
        f"Python {platform.python_version()}, torch {version('torch')}, commit {commit() or 'unknown'}"
    )


def commit() -> str:
    """Short name of the commit; empty outside a checkout, and where there is no git."""
    return _git("rev-parse", "--short", "HEAD")


def last_commit(*files: Path) -> str:
    """Short name and day of the last commit that changed one of them; empty where that is not known."""
    return _git("log", "-1", "--format=%h, %cs", "--", *map(str, files))


def _git(*words: str) -> str:
    command = ["git", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=RESULTS.parent)
    except OSError:
        return ""
    return done.stdout.strip()


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
