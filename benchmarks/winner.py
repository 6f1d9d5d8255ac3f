"""Is what a study says of its winner true? A stop-watch over the same runs, and fresh runs afterwards.

    python -m benchmarks.winner [--study examples/outer.yaml] [--home HOME] [--fresh 20] [--save]

The study runs as a user would start it, ``workbench tune``. This process watches all of its runs a thousand times a
second, and knows nothing of what they record. Then the winner's configuration is trained again, each time anew, with
as many steps as the study's repeats. Told and watched may differ by 3 %; of the fresh runs those that lie outside the
range told for 95 % of runs are counted. Needs what ``workbench lab`` needs where the study has a lab.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import _table as table
from benchmarks._stop_watch import HomeWatch, StopWatch
from workbench.home import runs

MOST = 0.03
WORKBENCH = Path(sys.executable).parent / "workbench"


def workbench(home: Path, *words: str) -> Any:
    """What a command answers as JSON; ends the benchmark if it fails. Its own lines go on to this process's."""
    command = [str(WORKBENCH), *words, "--home", str(home), "--json"]
    environment = {key: value for key, value in os.environ.items() if key != "WORKBENCH_HOME"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}")
    return json.loads(done.stdout)


def told_and_watched(home: Path, run: str, watch: StopWatch) -> tuple[float, float]:
    """Tokens a second of a run over its measured rounds: what it tells, and by the stop-watch.

    Without the last round: what an outer loop has on its way then is waited for after the last step, once in a run.
    """
    found = runs.load(home / run).summary
    assert found is not None
    first = found.measured_from_step or 0
    rounds = found.round_samples[:-1]
    tokens, end = (
        found.tokens_per_step * len(rounds) * found.round_steps,
        first + len(rounds) * found.round_steps,
    )
    return tokens / sum(rounds), tokens / watch.seconds(first, end)


def main() -> None:
    """Print the table; exit code 1 if told and watched differ."""
    parser = table.parser(__doc__)
    parser.add_argument("--study", type=Path, default=Path("examples/outer.yaml"))
    parser.add_argument("--home", type=Path, help="a new folder that is kept; without it one that is not")
    parser.add_argument("--fresh", type=int, default=20, help="runs of the winner after the study")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(asked.home or Path(folder), asked)


def measure(home: Path, asked: argparse.Namespace) -> None:
    """The study and the fresh runs in this home; exits as ``main`` says."""
    home.mkdir(parents=True, exist_ok=True)
    with HomeWatch(home) as watched:
        found = workbench(home, "tune", str(asked.study))
        best = found["best"]
        own = [
            best["run"],
            *(row["run"] for row in found["confirmations"] if row["confirms"] == best["trial"]),
        ]
        config = runs.load(home / own[-1]).config()
        again = home / "winner.yaml"
        again.write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")
        fresh = [workbench(home, "train", str(again))["id"] for _ in range(asked.fresh)]
    rows, wrong = list[list[str]](), 0
    for name, group in (("in the study", own), ("afterwards", fresh)):
        pairs = [told_and_watched(home, run, watched.runs[run]) for run in group]
        off = [abs(told / seen - 1) for told, seen in pairs]
        wrong += sum(one > MOST for one in off)
        values = [runs.load(home / run).summary for run in group]
        inside = sum(best["low"] <= (one.tokens_per_second or 0) <= best["high"] for one in values if one)
        told, seen = (fmean(column) for column in zip(*pairs, strict=True))
        rows.append([name, str(len(pairs)), f"{told:,.0f}", f"{seen:,.0f}", f"{max(off):.2%}", f"{inside}"])
    header = (
        "runs of the winner",
        "runs",
        "told tokens/s",
        "stop-watch",
        "furthest apart",
        "inside the told range",
    )
    title = (f"{found['study']}: its winner is told with {best['value']:,.0f} tokens/s, "
             f"95 % of runs {best['low']:,.0f} to {best['high']:,.0f}")  # fmt: skip
    table.show("winner", title, header, rows, asked.save)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
