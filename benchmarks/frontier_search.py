"""``examples/frontier*.yaml`` on the model of Frontier: what each search ends at, beside the authors' own layout.

    python -m benchmarks.frontier_search [--seeds 5] [--trials 120] [--minutes 9] [--save]

Each search is the command line's, played on closed forms (``simulate: {cluster: frontier}``): nothing here was measured
on Frontier. Searches have the example's own number of trials. A layout's MFU is the prediction, without the noise that
trials have; "published" is the layout of the authors' launch script, and "trial" the first that is as good. MFU is of
what the model needs; "as the paper counts" has what is computed again too, with the 90 % that ``workbench predict``
prints.

What mattered is told of one longer search, of ``--trials``: importance by PED-ANOVA and by fANOVA, shares of one; its
mean SHAP effect on the value, in percent of the value; and on the chance to fail, in percentage points. A search of so
few trials in a space so large sees some values of a knob only in trials that failed: then only the last column can
tell. What is done is kept until the formulas change: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _frontier as frontier
from benchmarks import _table as table
from tuning.predict import target
from tuning.predict.forecast import forecasts
from tuning.predict.forecast_document import Forecast
from tuning.spec import study_file
from tuning.spec.study_file import StudyFile

NAME = "frontier_search"
EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = {"22B": "frontier.yaml", "175B": "frontier-175b.yaml", "1T": "frontier-1t.yaml"}
SEARCHES = [
    "model",
    "seed",
    "trials",
    "failed",
    "published, MFU",
    "best, MFU",
    "as good at trial",
    "best layout",
    "as the paper counts",
    "paper",
]
KNOBS = ["model", "knob", "PED-ANOVA", "fANOVA", "SHAP, % of value", "towards", "SHAP, chance to fail"]
Document = dict[str, Any]


def ran(arguments: list[str], home: Path) -> Document:
    """The document of a command."""
    command = [sys.executable, "-m", "workbench", *arguments, "--home", str(home), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    found: Document = json.loads(done.stdout)
    return found


def example(model: str) -> StudyFile:
    """The study file of a model."""
    return study_file.load(EXAMPLES / FILES[model])


def published(model: str) -> dict[str, Any]:
    """The layout of the authors' launch script, as a point of the example's space."""
    names, cases = frontier.layouts()
    row = names.index(model)
    whole = {name: round(float(getattr(cases, name)[row])) for name in
             ("dp", "tp", "pp", "zero_stage", "micro_batch", "micro_batches", "world")}  # fmt: skip
    return {
        "ranks": whole["world"],
        **{f"parallel.{name}": whole[name] for name in ("dp", "tp", "pp", "zero_stage")},
        "batch.micro_batch": whole["micro_batch"],
        "batch.accumulation": whole["micro_batches"],
        "memory.recompute": "full",
    }


def foreseen(file: StudyFile, point: Mapping[str, Any]) -> Forecast:
    """What is predicted of a point of a study's space."""
    return forecasts(
        [file.search_space.config(dict(point))], target.parse_target("frontier", None, point["ranks"])
    )[0]


def searched(model: str, home: Path, **changes: int) -> Document:
    """The study's document."""
    name = f"frontier-{model.lower()}-{changes['seed']}"
    words = [f"name={name}", *(f"{key}={value}" for key, value in changes.items())]
    arguments = ["tune", str(EXAMPLES / FILES[model])]
    return ran([*arguments, *(word for change in words for word in ("--set", change))], home)


def of_search(model: str, seed: int, study: Document) -> list[str]:
    """A line for a search."""
    file, rows = example(model), [row for row in study["trials"] if row["confirms"] is None]
    known = foreseen(file, published(model)).mfu
    best = foreseen(file, study["best"]["config"])
    bad = sum(row["outcome"] != "completed" for row in rows)
    good = [row["number"] for row in rows if row["outcome"] == "completed"
            and foreseen(file, row["config"]).mfu >= known]  # fmt: skip
    return [
        model,
        f"{seed}",
        f"{len(rows)}",
        f"{bad}",
        f"{known:.1%}",
        f"{best.mfu:.1%}",
        f"{good[0] + 1}" if good else "none",
        study["best"]["label"],
        _as_the_paper_counts(best),
        f"{frontier.figures('pct_of_peak')[model]:.2f} %",
    ]


def _as_the_paper_counts(found: Forecast) -> str:
    """Percent of the peak with the blocks' second forward, if there is one, and its 90 %."""
    again = found.breakdown["recomputation"] > 0
    seconds = found.step_seconds
    shares = [found.mfu * (4 / 3 if again else 1) * seconds.median / one for one in (*seconds,)]
    middle, high, low = shares
    return f"{middle:.1%} ({low:.1%} to {high:.1%})"


def of_knobs(model: str, found: Document) -> list[list[str]]:
    """A line for each knob, those that SHAP gives most first."""
    value, failure = (_by_key(found["shap"][part]) for part in ("value", "failure"))
    anova, fanova = found["importance"]["values"] or {}, found["fanova"].get("values") or {}
    rows = []
    for key in value or failure:
        one, other = value.get(key, {}), failure.get(key, {})
        numbers = [
            _share(anova.get(key)),
            _share(fanova.get(key)),
            _effect(one),
            str(one.get("direction") or "—"),
        ]
        rows.append([model, f"`{key}`", *numbers, _effect(other)])
    return rows


def _by_key(part: Document) -> dict[str, Document]:
    return {row["key"]: row for row in (part or {}).get("knobs") or []}


def _share(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}"


def _effect(row: Document) -> str:
    return "—" if row.get("effect") is None else f"{row['effect']:.1f}"


def mattered(model: str, trials: int, home: Path) -> list[list[str]]:
    """What a longer search tells of each knob."""
    study = searched(model, home, trials=trials, seed=0)["study"]
    ran(["sensitivity", study, "--method", "fanova"], home)
    return of_knobs(model, ran(["sensitivity", study, "--method", "shap"], home))


def formulas() -> str:
    """A mark that changes with what is predicted of the authors' layouts."""
    found = [foreseen(example(model), published(model)) for model in FILES]
    told = [[one.mfu, *one.step_seconds, *one.memory_bytes] for one in found]
    return hashlib.sha256(np.array(told).round(6).tobytes()).hexdigest()[:16]


class Kept:
    """Lines of both tables in a file, by what they are of; those of other formulas are dropped."""

    def __init__(self, path: Path, mark: str) -> None:
        self._path = path
        held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        self._held: Document = held if held.get("formulas") == mark else {"formulas": mark}

    def lines(self, name: str, make: Callable[[], list[list[str]]] | None) -> list[list[str]]:
        """What is kept under a name, else made and kept; none where neither is."""
        if name not in self._held and make is not None:
            self._held[name] = make()
            self._path.write_text(json.dumps(self._held, indent=0, sort_keys=True) + "\n", encoding="utf-8")
            print(f"{name}: {self._held[name]}", file=sys.stderr)
        found: list[list[str]] = self._held.get(name, [])
        return found


def one_search(model: str, seed: int) -> list[list[str]]:
    """The line of a search."""
    with tempfile.TemporaryDirectory() as home:
        return [of_search(model, seed, searched(model, Path(home), seed=seed))]


def one_longer(model: str, trials: int) -> list[list[str]]:
    """Lines of the knobs of a longer search."""
    with tempfile.TemporaryDirectory() as home:
        return mattered(model, trials, Path(home))


def collected(kept: Kept, options: argparse.Namespace) -> tuple[list[list[str]], list[list[str]], bool]:
    """Lines of searches and of knobs, made while there is time; and whether all are there."""
    end, searches, knobs = time.monotonic() + 60 * options.minutes, list[list[str]](), list[list[str]]()
    wanted = [(model, seed) for model in FILES for seed in range(options.seeds)]
    for model, seed in wanted:
        make = functools.partial(one_search, model, seed) if time.monotonic() < end else None
        searches += kept.lines(f"{model}, seed {seed}", make)
    for model in FILES:
        make = functools.partial(one_longer, model, options.trials) if time.monotonic() < end else None
        knobs += kept.lines(f"{model}, {options.trials} trials", make)
    return searches, knobs, len(searches) == len(wanted) and {line[0] for line in knobs} == {*FILES}


def main() -> None:
    """Search what is missing, and print both tables."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=5, help="searches of each model")
    arguments.add_argument("--trials", type=int, default=120, help="of the search that tells what mattered")
    arguments.add_argument("--minutes", type=float, default=9.0, help="after which no search begins")
    options = arguments.parse_args()
    searches, knobs, done = collected(Kept(table.RESULTS / f"{NAME}.json", formulas()), options)
    title = "Searches in the manner of the Frontier paper, simulated"
    text = table.show(NAME, title, SEARCHES, searches, options.save and done)
    lines = ["| " + " | ".join(row) + " |" for row in (KNOBS, ["---"] * len(KNOBS), *knobs)]
    print("\n".join(lines))
    if not done:
        print("the time is over; the same command goes on")
    elif options.save:
        (table.RESULTS / f"{NAME}.md").write_text("\n".join([text, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
