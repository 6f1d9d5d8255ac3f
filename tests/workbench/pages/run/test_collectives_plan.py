"""The page and the terminal show the plans of compression that a run followed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from engine.run import run_folder
from profilers.model.rows import PlanRow
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from workbench.home import runs
from workbench.text import step

LAYERS: dict[str, float] = {
    "embedding.weight": 0.01,
    "blocks.0.attention.query.weight": 0.04,
    "head.weight": 0.02,
}
SENT = {"bytes_uniform": 4e6, "bytes_before": 4e6, "bytes_after": 2.5e6}
ERRORS = {"error": 9.9, "error_uniform": 10.0, "budget": 10.0, "seconds": 0.5}
EFFECTS = {"effect": 0.0495, "effect_uniform": 0.05, "budget": 0.05, "budget_of": "loss"}


def row(**values: Any) -> dict[str, Any]:
    return asdict(PlanRow(step=10, method="topk", default=0.02)) | values


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (
            row(layers=LAYERS, **SENT, **ERRORS),
            "from step 10 on topk has 0.01 to 0.04 for 3 layers: 2.500 MB a step where 0.02 for all sends 4.000, "
            "with 99.0 % of the error allowed; planned in 500.0 ms",
        ),
        (
            row(layers=LAYERS, taken_from="a-run"),
            "from step 10 on topk has 0.01 to 0.04 for 3 layers, as in a-run",
        ),
        (
            row(layers=LAYERS, **SENT, **ERRORS | EFFECTS | {"error": 13.1}),
            "from step 10 on topk has 0.01 to 0.04 for 3 layers: 2.500 MB a step where 0.02 for all sends 4.000, "
            "with errors 1.31 times as large, but 5.0 % lost of what counts for the loss where one value loses 5.0 %; "
            "planned in 500.0 ms",
        ),
        (row(), "from step 10 on topk stays at 0.02 for every layer: no other choice sends less"),
        (
            row(budget_of="loss"),
            "from step 10 on topk stays at 0.02 for every layer: no other choice sends 5 % less and keeps the loss",
        ),
    ],
)
def test_a_plan_in_words(plan: dict[str, Any], text: str) -> None:
    assert step.compression_plan(PlanRow(**plan)) == text


def test_a_run_shows_its_plans_and_the_values_of_the_last(home: Path) -> None:
    full_home(home)
    folder = next(one for one in runs.run_folders(home) if runs.load(one).summary)
    found = json.loads((folder / run_folder.SUMMARY).read_text())
    plans = [
        row(layers={}, taken_from="a-run"),
        row(layers=LAYERS, **SENT, **ERRORS) | {"step": 200},
        row(layers=LAYERS, **SENT, **ERRORS | EFFECTS) | {"step": 300},
    ]
    (folder / run_folder.SUMMARY).write_text(json.dumps(found | {"plans": plans}))
    assert [one["step"] for one in runs.document(runs.load(folder))["plans"]] == [10, 200, 300]
    app = visit("runs", id=folder.name, section="Collectives")
    assert not app.exception
    assert "Compression plan" in texts(app)
    assert step.compression_plan(PlanRow(**plans[-1])) in texts(app)
    (listed,) = [one.value for one in app.dataframe if "with one value, MB" in one.value]
    assert list(listed["from step"]) == [10, 200, 300]
    assert list(listed["budget used"])[1:] == pytest.approx([0.99, 0.99])
    assert list(listed["error / one value's"])[1] == pytest.approx(0.99)
    assert list(listed["lost of what counts, %"])[2] == pytest.approx(4.95)
    told = runs.document(runs.load(folder))["plans"][2]
    assert {key: told[key] for key in EFFECTS} == EFFECTS
    (layers,) = [one.value for one in app.dataframe if "layer" in one.value]
    assert dict(zip(layers["layer"], layers["topk"], strict=True)) == {
        name: f"{one:.3g}" for name, one in LAYERS.items()
    }
