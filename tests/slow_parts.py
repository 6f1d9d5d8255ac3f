"""The slow tests, a file at a time (of a long one each test), and a table of what passed at which commit; what passed
there is not run again.

``python -m tests.slow_parts`` writes ``benchmarks/results/slow_tests.md`` after every part, so that a stopped run
goes on where it was. ``--anew`` begins again, ``--failed`` runs what has not passed at any commit, such as after a
mend. Arguments after ``--`` go to pytest.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks._table import commit, machine
from tests.support.drawn import known_seconds
from tests.support.trainers import environments

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "slow_tests.md"
#: Of one part, in seconds.
LIMIT = 600
HEADER = ["tests", "outcome", "counts", "seconds", "finished (UTC)", "commit"]
_SLOW = re.compile(r"mark\.(slow|drawn)\b")
#: Whose tests take longer together.
_LONG = frozenset(
    {
        "tests/engine/backends/test_fake_cuda.py",
        "tests/engine/rank/test_random_turns.py",
        "tests/engine/runs/test_llama.py",
        "tests/tuning/studies/test_command_hf.py",
        "tests/tuning/studies/test_offered_values.py",
        "tests/workbench/export/formats/test_parsers.py",
        "tests/workbench/export/formats/test_trained.py",
        "tests/workbench/selftest/checks/test_shared_gpu.py",
    }
)
#: What needs a public trainer's packages beside its own process runs in their environment.
_BESIDE = {"tests/engine/runs/test_llama.py": "hf"}
_TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)
#: pytest's exit code where no test was selected.
NOTHING_SELECTED = 5


def parts() -> list[str]:
    """Test files with a slow test, or one that ``make test`` does not always run, by name; of long files each test."""
    found, timed = [], {name.split("::")[0] for name in known_seconds()}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if name in _LONG:
            found += [f"{name}::{test}" for test in _TEST.findall(text)]
        elif _SLOW.search(text) or name in timed:
            found.append(name)
    return found


def interpreter(part: str) -> str:
    """The Python that runs a part."""
    name = _BESIDE.get(part.partition("::")[0])
    return sys.executable if name is None else str(environments.made(name))


def run(part: str, options: list[str]) -> list[str]:
    """One part's row, as in ``HEADER``."""
    begin = time.monotonic()
    try:
        command = [interpreter(part), "-m", "pytest", "-m", "slow", "-q", "-rs", part, *options]
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        outcome, counts = "failed", f"not done after {LIMIT} s"
    except subprocess.CalledProcessError:
        outcome, counts = "failed", f"no environment for {part}: pip's words are above"
    else:
        print(done.stdout, done.stderr)
        outcome = "passed" if done.returncode in (0, NOTHING_SELECTED) else "failed"
        counts = (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ").split(" in ")[0]
    seconds = f"{time.monotonic() - begin:,.0f}"
    return [
        part,
        outcome,
        counts,
        seconds,
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        commit() or "unknown",
    ]


def write(rows: list[list[str]]) -> None:
    """The table, whole or not at all."""
    lines = [f"| {' | '.join(row)} |" for row in (HEADER, ["---"] * len(HEADER), *rows)]
    RESULTS.parent.mkdir(exist_ok=True)
    fresh = RESULTS.with_suffix(".tmp")
    fresh.write_text("\n".join(["# Slow tests", "", _where(), "", *lines, ""]), encoding="utf-8")
    fresh.replace(RESULTS)


def _where() -> str:
    """The machine and versions; each row has its commit."""
    return machine().rpartition(", commit ")[0]


def before(any_commit: bool) -> list[list[str]]:
    """Rows of the parts that passed on such a machine, at this commit or at any."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    if _where() not in text:
        return []
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
    rows = [row for row in rows if row[0].startswith("tests/") and len(row) == len(HEADER)]
    return [row for row in rows if row[1] == "passed" and (any_commit or row[-1] == commit())]


def main() -> int:
    """Run what is left; 1 if a part failed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--anew", action="store_true", help="run every part, whatever the table says")
    arguments.add_argument("--failed", action="store_true", help="keep what passed at other commits")
    arguments.add_argument("options", nargs="*", help="for pytest")
    given = arguments.parse_args()
    found = parts()
    rows = [] if given.anew else [row for row in before(given.failed) if row[0] in found]
    have = {row[0] for row in rows}
    for number, part in enumerate(found, 1):
        if part not in have:
            print(f"part {number} of {len(found)}: {part}", file=sys.stderr)
            rows = sorted([*rows, run(part, given.options)])
            write(rows)
    return int(any(row[1] != "passed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
