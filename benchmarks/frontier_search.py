"""``examples/frontier*.yaml`` on the model of Frontier: what each search ends at, beside the authors' own layout.

    python -m benchmarks.frontier_search [--seeds 5] [--trials 120] [--save]

Each search is the command line's, played on closed forms (``simulate: {cluster: frontier}``): nothing here was measured
on Frontier. Searches have the example's own number of trials. A layout's MFU is the prediction, without the noise that
trials have; "published" is the layout of the authors' launch script, and "trial" the first that is as good. MFU is of
what the model needs; "as the paper counts" has what is computed again too, with the 90 % that ``workbench predict``
prints.

What mattered is told of one longer search, of ``--trials``: importance by PED-ANOVA and by fANOVA, shares of one; its
mean SHAP effect on the value, in percent of the value; and on the chance to fail, in percentage points. A search of so
few trials in a space so large sees some values of a knob only in trials that failed: then only the last column can
tell.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import _frontier as frontier
from benchmarks import _table as table
from tuning.predict import target
from tuning.predict.answer import Forecast
from tuning.predict.forecast import forecasts
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
    return forecasts([file.search_space.config(dict(point))], target.named("frontier", None, point["ranks"]))[
        0
    ]


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


def main() -> None:
    """Search, and print both tables."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=5, help="searches of each model")
    arguments.add_argument("--trials", type=int, default=120, help="of the search that tells what mattered")
    options = arguments.parse_args()
    searches, knobs = list[list[str]](), list[list[str]]()
    for model in FILES:
        with tempfile.TemporaryDirectory() as home:
            for seed in range(options.seeds):
                searches.append(of_search(model, seed, searched(model, Path(home), seed=seed)))
                print(searches[-1], file=sys.stderr)
        with tempfile.TemporaryDirectory() as home:
            knobs += mattered(model, options.trials, Path(home))
    title = "Searches in the manner of the Frontier paper, simulated"
    text = table.show(NAME, title, SEARCHES, searches, options.save)
    lines = ["| " + " | ".join(row) + " |" for row in (KNOBS, ["---"] * len(KNOBS), *knobs)]
    print("\n".join(lines))
    if options.save:
        (table.RESULTS / f"{NAME}.md").write_text("\n".join([text, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
