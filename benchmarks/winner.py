"""Is what a study says of its winner true? A stop-watch over the same runs, and fresh runs afterwards.

    python -m benchmarks.winner [--study examples/outer.yaml] [--home HOME] [--fresh 20] [--save]

The study runs as a user would start it, ``workbench tune``. This process watches all of its runs a thousand times a
second, and knows nothing of what they record. Then the winner's configuration and the baseline's are trained again in
turns, each time anew, with as many steps as the study's repeats. Told and watched may differ by 3 %; of the fresh runs
those that lie outside the range told for 95 % of runs are counted, and the gain by the stop-watch stands beside the
one that the study tells. Needs what ``workbench lab`` needs where the study has a lab.
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
from typing import Any, NamedTuple

from benchmarks import _table as table
from benchmarks._stop_watch import HomeWatch, StopWatch
from workbench.home import runs

MOST = 0.03
STUDY = Path("examples/outer.yaml")
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
    parser.add_argument("--study", type=Path, default=STUDY)
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
        best, plain = found["best"], found["baseline"]
        own = {one["trial"]: _runs(found, one) for one in (best, plain)}
        fresh = {number: list[str]() for number in own}
        for _ in range(asked.fresh):
            for number, group in own.items():
                fresh[number].append(train_again(home, group[-1]))
    measured = [
        _measured(home, f"{what}, {when}", one, group[one["trial"]], watched)
        for what, one in (("the winner", best), ("the baseline", plain))
        for when, group in (("in the study", own), ("afterwards", fresh))
    ]
    header = (
        "of",
        "runs",
        "told tokens/s",
        "stop-watch",
        "furthest apart",
        "inside the told range",
    )
    title = (f"{found['study']}: its winner is told with {best['value']:,.0f} tokens/s, "
             f"95 % of runs {best['low']:,.0f} to {best['high']:,.0f}")  # fmt: skip
    name = "winner" if asked.study == STUDY else f"winner_{asked.study.stem.replace('-', '_')}"
    text = table.show(name, title, header, [one.row for one in measured], asked.save)
    gain = f"{measured[1].watched / measured[3].watched - 1:+.1%} over the baseline's afterwards, by the stop-watch"
    lines = [*found["result_lines"], f"Winner: {best['label']}; {gain}.", f"Baseline: {plain['label']}."]
    said = "\n".join(
        ["The study's own words, and the stop-watch's:", "", *(f"- {line}" for line in lines), ""]
    )
    picked = "\n".join(f"- picked: {pick['line']}" for pick in found.get("picks", []))
    print(said, picked, sep="\n")
    if asked.save:
        (table.RESULTS / f"{name}.md").write_text(f"{text}\n{said}{picked}\n", encoding="utf-8")
    sys.exit(any(one.off > MOST for one in measured))


class Measured(NamedTuple):
    """Tokens a second of some runs by the stop-watch, how far what one told was from that, and the row."""

    watched: float
    off: float
    row: list[str]


def _measured(home: Path, name: str, trial: Any, group: list[str], watch: HomeWatch) -> Measured:
    pairs = [told_and_watched(home, run, watch.runs[run]) for run in group]
    off = max(abs(told / seen - 1) for told, seen in pairs)
    values = [runs.load(home / run).summary for run in group]
    inside = sum(trial["low"] <= (one.tokens_per_second or 0) <= trial["high"] for one in values if one)
    told, seen = (fmean(column) for column in zip(*pairs, strict=True))
    return Measured(
        seen, off, [name, f"{len(pairs)}", f"{told:,.0f}", f"{seen:,.0f}", f"{off:.2%}", f"{inside}"]
    )


def _runs(found: Any, one: Any) -> list[str]:
    """Of a study's trial: its own, and those that confirmed it."""
    return [one["run"], *(row["run"] for row in found["confirmations"] if row["confirms"] == one["trial"])]


def train_again(home: Path, run: str) -> str:
    """A fresh run of a run's configuration."""
    again = home / "again.yaml"
    again.write_text(json.dumps(runs.load(home / run).config().model_dump(mode="json")), encoding="utf-8")
    return str(workbench(home, "train", str(again))["id"])


if __name__ == "__main__":
    main()
