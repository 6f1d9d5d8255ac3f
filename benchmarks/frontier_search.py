"""``examples/frontier.yaml`` for 22B, 175B and 1T on the model of Frontier, with what mattered in each search.

    python -m benchmarks.frontier_search [--trials 120] [--save]

Each search is the command line's, played on closed forms (``simulate: {cluster: frontier}``): nothing here was measured
on Frontier. Of each knob stand its importance by PED-ANOVA and by fANOVA, shares of one; its mean SHAP effect on the
value, in percent of the value; and its mean SHAP effect on the chance to fail, in percentage points. A search of so few
trials in a space so large sees some values of a knob only in trials that failed: then only the last column can tell.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _table as table

NAME = "frontier_search"
EXAMPLE = Path(__file__).parents[1] / "examples" / "frontier.yaml"
#: What the head of the example says of the larger ones.
MODELS: dict[str, list[str]] = {
    "22b": [],
    "175b": ["base.model.preset=175b", "ranks=128", "space.ranks=[128, 256, 512, 1024]",
             "space.parallel.pp=[4, 8, 12, 16, 24]", "space.batch.accumulation=[10, 20, 40, 80, 160]"],
    "1t": ["base.model.preset=1t", "ranks=1024", "base.batch.global_batch=1024",
           "space.ranks=[1024, 2048, 3072]", "space.parallel.pp=[16, 32, 64, 128]",
           "space.batch.accumulation=[32, 64, 128, 256, 512]"],
}  # fmt: skip
SEARCHES = ["model", "trials", "failed", "best, MFU", "best layout"]
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


def searched(model: str, trials: int, home: Path) -> tuple[Document, Document]:
    """The study's document, and what mattered in it."""
    name = f"frontier-{model}"
    changes = [f"name={name}", f"trials={trials}", *MODELS[model]]
    study = ran(["tune", str(EXAMPLE), *(word for change in changes for word in ("--set", change))], home)
    ran(["sensitivity", name, "--method", "fanova"], home)
    return study, ran(["sensitivity", name, "--method", "shap"], home)


def of_search(model: str, study: Document) -> list[str]:
    """A line for a search."""
    rows = study["trials"]
    bad = sum(row["outcome"] != "completed" for row in rows)
    best = study["best"]
    return [model, f"{len(rows)}", f"{bad}", f"{best['value']:.1%}", best["label"]]


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


def main() -> None:
    """Search, and print both tables."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--trials", type=int, default=120, help="of each search; the example's own are 60")
    options = arguments.parse_args()
    searches, knobs = list[list[str]](), list[list[str]]()
    with tempfile.TemporaryDirectory() as home:
        for model in MODELS:
            study, found = searched(model, options.trials, Path(home))
            searches.append(of_search(model, study))
            knobs += of_knobs(model, found)
    title = "Searches in the manner of the Frontier paper, simulated"
    text = table.show(NAME, title, SEARCHES, searches, options.save)
    lines = ["| " + " | ".join(row) + " |" for row in (KNOBS, ["---"] * len(KNOBS), *knobs)]
    print("\n".join(lines))
    if options.save:
        (table.RESULTS / f"{NAME}.md").write_text("\n".join([text, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
