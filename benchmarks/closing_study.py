"""Memory budget, shuffled islands, seconds: does the study that picks everything by itself keep its word?

    python -m benchmarks.closing_study [--rounds 3] [--minutes 24] [--home HOME] [--save]
    python -m benchmarks.closing_study --study examples/cramming.yaml --set objective.loss_at_seconds=20 --save

The study, ``examples/shuffled-islands.yaml`` if no other is named, runs once through ``workbench tune``, in a home of
its own. Then whole runs, each ``workbench train`` in a fresh process, all arms in turns, every second round backwards:
the winner's configuration; the baseline's, and once more (A/A); and the winner's with one pick taken back: ranks as the
base has them, even stages, and for each stage the fastest way to treat all its blocks alike in the place of its plan.
Wall seconds are of the whole process by this process's clock, losses held out and at the end of the budget. Ratios are
of losses in the same round, with Student's interval of their logarithms. Last the baseline alone, with 2, 3 and 4 times
the seconds, its learning rate planned for them: which is the first to reach the winner's loss? What was measured is
kept, with ``--save``, in ``results/closing_STUDY.json``, so the benchmark goes on where it was stopped. Needs what
``workbench lab`` needs where the study has a lab.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from scipy.special import stdtrit

from benchmarks import _table as table
from benchmarks.winner import workbench
from workbench.home import runs

STUDY = Path("examples/shuffled-islands.yaml")
WINNER, BASELINE, AGAIN = "the winner", "the baseline", "the baseline, again"
ORDER, EVEN, ALIKE = "the winner, ranks as in the base", "the winner, even stages", "the winner, blocks alike"
LONGER = (2, 3, 4)
HEADER = [
    "whole run",
    "held-out loss, by round",
    "its loss over the winner's",
    "updates",
    "process, s",
    "verdict",
]
Kept = dict[str, Any]


class Interval(NamedTuple):
    """A ratio with its 95 % interval, which a single round does not have."""

    middle: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.middle:.3f} (one round)"
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def verdict(self) -> str:
        """Of a rival's loss over the winner's."""
        if self.low is None or self.high is None:
            return "cannot decide"
        if self.low > 1:
            return "the winner learns more"
        return "the winner learns less" if self.high < 1 else "cannot decide"


def over(top: Sequence[float], bottom: Sequence[float]) -> Interval:
    """Of values in the same rounds, as far as both go."""
    logs = [math.log(one / other) for one, other in zip(top, bottom, strict=False)]
    middle, rounds = fmean(logs), len(logs)
    if rounds < 2:
        return Interval(math.exp(middle), None, None)
    half = float(stdtrit(rounds - 1, 0.975)) * stdev(logs) / math.sqrt(rounds)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def search(home: Path, study: Path, changes: Sequence[str] = ()) -> Kept:
    """The study, once: what it told, how long it took, and the configurations of its winner and its baseline."""
    told = workbench(home, "tune", str(study), *(word for change in changes for word in ("--set", change)))
    seconds = sum(
        row["seconds"] for row in (*told["trials"], *told["confirmations"])
    )  # also of what was interrupted
    views = {name: runs.load(home / told[name]["run"]) for name in ("best", "baseline")}
    configs = {name: view.config().model_dump(mode="json") for name, view in views.items()}
    plans = sorted(views["best"].memory_plans, key=lambda row: row.first)
    keys = ("study", "result_lines", "gain", "picks", "why")
    return {
        "told": {key: told.get(key) for key in keys},
        "labels": {name: told[name]["label"] for name in views},
        "seconds": seconds,
        "base_placement": configs["baseline"]["parallel"]["placement"],
        "alike": [row.uniform or "" for row in plans for _ in row.actions],
        "plan": [action for row in plans for action in row.actions],
        "configs": configs,
        "commit": table.commit(),
    }


def arms(found: Kept) -> dict[str, Kept]:
    """By name, the configuration of each: what the winner does not have is not taken back."""
    best, plain = found["configs"]["best"], found["configs"]["baseline"]
    made = {WINNER: best, BASELINE: plain, AGAIN: plain}
    if best["parallel"]["placement"] != found["base_placement"]:
        made[ORDER] = _changed(best, "parallel", placement=found["base_placement"])
    if best["schedule"]["stage_layers"]:
        made[EVEN] = _changed(best, "schedule", stage_layers=None)
    if found["plan"] != found["alike"] and all(found["alike"]):
        made[ALIKE] = _changed(best, "memory", budget_gib=None, block_actions=found["alike"])
    return made


def _changed(config: Kept, section: str, **values: Any) -> Kept:
    return config | {section: config[section] | values}


def longer(found: Kept) -> dict[str, Kept]:
    """The baseline with more time."""
    plain = found["configs"]["baseline"]
    seconds = plain["train"]["seconds"]
    return {
        f"{BASELINE}, {times} times the seconds": _changed(plain, "train", seconds=times * seconds)
        for times in LONGER
    }


def whole_run(home: Path, config: Kept) -> Kept:
    """One in a fresh process: wall seconds from its start to its end, and what it came to."""
    path = home / "asked.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    began = time.monotonic()
    told = workbench(home, "train", str(path))
    wall = time.monotonic() - began
    summary = runs.load(home / told["id"]).summary
    if summary is None or summary.validation_loss is None:
        raise SystemExit(f"{told['id']} ended without a held-out loss")
    return {"wall": wall, "loss": summary.validation_loss, "updates": len(summary.losses)}


def measure(home: Path, kept: Kept, rounds: int, end: float, keep: Callable[[], None]) -> bool:
    """What is missing, as long as there is time: no run begins after ``end``. Whether that is all."""
    taken: dict[str, list[Kept]] = kept.setdefault("runs", {})
    names = list(arms(kept["study"]).items())
    asked = [one for turn in range(rounds) for one in names[:: -1 if turn % 2 else 1]]
    done = {name: len(rows) for name, rows in taken.items()}
    for name, config in [*asked, *longer(kept["study"]).items()]:
        if done.get(name, 0) > 0:
            done[name] -= 1
            continue
        if time.monotonic() > end:
            return False
        taken.setdefault(name, []).append(whole_run(home, config))
        print(f"{name}: {taken[name][-1]}", flush=True)
        keep()
    return True


def rows(kept: Kept) -> list[list[str]]:
    """An arm a row, then the baseline with more time."""
    taken: dict[str, list[Kept]] = kept["runs"]
    mine = _losses(taken[WINNER])
    found = []
    for name, measured in taken.items():
        losses = _losses(measured)
        ratio, more = over(losses, mine), name in longer(kept["study"])
        verdict = "" if name == WINNER else ratio.verdict
        if name == AGAIN:
            verdict = f"over the baseline: {over(losses, _losses(taken[BASELINE]))}"
        if more:
            verdict = "reaches the winner's mean loss" if losses[0] <= fmean(mine) else "does not reach it"
        beside = "" if name == WINNER else f"{losses[0] / fmean(mine):.3f}" if more else str(ratio)
        updates = " ".join(str(row["updates"]) for row in measured)
        walls = " ".join(f"{row['wall']:.1f}" for row in measured)
        found.append([name, " ".join(f"{loss:.3f}" for loss in losses), beside, updates, walls, verdict])
    return found


def _losses(measured: Sequence[Kept]) -> list[float]:
    return [row["loss"] for row in measured]


def verdict(kept: Kept) -> str:
    """The gain that was told beside the stop-watch's."""
    taken, gain = kept["runs"], kept["study"]["told"]["gain"]
    watched = over(_losses(taken[BASELINE]), _losses(taken[WINNER]))
    said = Interval(gain["ratio"], gain["low"], gain["high"])
    told = f"Told by the study: the baseline's loss over the winner's is {said}, {gain['verdict']}."
    told += f" By the stop-watch's runs: {watched}."
    if said.low is None or said.high is None or watched.low is None:
        return f"{told} Without both intervals nothing is confirmed."
    if watched.low <= 1:
        return f"{told} No gain is confirmed."
    inside = said.low <= watched.middle <= said.high
    return f"{told} A gain is confirmed; its mean lies {'inside' if inside else 'outside'} the interval that was told."


def reached(kept: Kept) -> str:
    """How long the baseline takes to the winner's loss, by whole processes."""
    taken, names = kept["runs"], [name for name in longer(kept["study"]) if name in kept["runs"]]
    mine = fmean(_losses(taken[WINNER]))
    wall = fmean(row["wall"] for row in taken[WINNER])
    if not names:
        return "How long the baseline takes to the winner's loss was not measured yet."
    first = next((name for name in names if taken[name][0]["loss"] <= mine), None)
    if first is not None:
        return f"To a loss of {mine:.3f} the winner took {wall:.1f} s and {first} {taken[first][0]['wall']:.1f} s."
    tried = max(taken[name][0]["wall"] for name in names)
    return f"To a loss of {mine:.3f} the winner took {wall:.1f} s; the baseline did not reach it in {tried:.1f} s."


def show(kept: Kept, name: str, save: bool) -> None:
    """Print the table, the picks and the verdicts."""
    study = kept["study"]
    title = f"{study['told']['study']}: picked in {study['seconds']:.0f} s by one study, and whole runs afterwards"
    text = table.show(name, title, HEADER, rows(kept), save)
    labels = [f"- {name}: `{label}`" for name, label in study["labels"].items()]
    picks = [f"- {pick['line']}" for pick in study["told"]["picks"] or []]
    why = (study["told"]["why"] or {}).get("line")
    lines = [verdict(kept), "", reached(kept), "", "The study's own words:", ""]
    lines += [
        *(f"- {line}" for line in study["told"]["result_lines"]),
        *([f"- why: {why}"] if why else []),
        "",
    ]
    said = "\n".join([*lines, "Configurations:", "", *labels, "", "Picks:", "", *picks, ""])
    print(said)
    if save:
        (table.RESULTS / f"{name}.md").write_text(f"{text}\n{said}", encoding="utf-8")


def main() -> None:
    """Measure what is not kept yet, and print the table."""
    parser = table.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=24.0, help="after which no run begins")
    parser.add_argument("--home", type=Path, help="a folder that is kept; without it one that is not")
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as of workbench tune")
    asked = parser.parse_args()
    name = "closing_study" if asked.study == STUDY else f"closing_{asked.study.stem}"
    path = table.RESULTS / f"{name}.json"
    end, kept = time.monotonic() + 60 * asked.minutes, table.kept(path)

    def keep() -> None:
        if asked.save:
            table.keep(path, kept)

    with tempfile.TemporaryDirectory() as folder:
        home = asked.home or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        if "study" not in kept:
            kept["study"] = search(home, asked.study, asked.set)
            keep()
        whole = measure(home, kept, asked.rounds, end, keep)
    if {WINNER, BASELINE, AGAIN} <= kept["runs"].keys():
        show(kept, name, asked.save)
    if not whole:
        raise SystemExit("not all is measured: the same command goes on")


if __name__ == "__main__":
    main()
