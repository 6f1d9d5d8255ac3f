"""Page Plan: a named cluster, a typed one, this machine, wrong input, and the schedules of a run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.run import run_folder
from engine.run.calibration import store
from engine.run.calibration.table import Calibration
from engine.session import Session
from tests.support.engine import calibrations
from tests.support.runs import execute, small
from tests.support.workbench.sent_figures import figures_of
from tests.workbench.conftest import Run
from tests.workbench.pages.test_pages import charts, texts, visit
from workbench.pages.cluster.plan import EXAMPLE


def table(app: Any, column: str) -> Any:
    return next(one.value for one in app.dataframe if column in one.value)


def test_a_named_cluster_has_the_layouts_of_the_command(home: Path, command: Run) -> None:
    app = visit("plan", cluster="dgx-a100", nodes="2", model="350m", batch="64", sequence="1024")
    assert not app.exception
    best = table(app, "step, s")
    same = "--model 350m --cluster dgx-a100 --nodes 2 --global-batch 64 --sequence 1024"
    told = command("plan", *same.split(), "--json").document
    assert best["step, s"].tolist() == pytest.approx([row["step_seconds"]["median"] for row in told["best"]])
    assert best["dp"].tolist() == [row["layout"]["dp"] for row in told["best"]]
    reasons = {family["reason"] for family in told["families"] if family["verdict"] != "best"}
    assert set(table(app, "why not")["why not"]) == reasons
    assert any(re.fullmatch(r"Sent in a step( by \w+)?, from row to column", title) for title in charts(app))
    assert app.code[-1].value == f"workbench plan {same}"
    assert told["measured"] is None


def test_a_typed_cluster_is_planned_for_and_a_wrong_one_is_refused(home: Path) -> None:
    app = visit("plan", cluster="typed below", model="350m", batch="64")
    assert not app.exception
    assert app.text_area(key="plan-typed").value == EXAMPLE
    assert "350m on 32 x h100-sxm (ours)" in texts(app)
    app.text_area(key="plan-typed").set_value(EXAMPLE.replace("devices_per_node", "devices")).run()
    assert not app.exception
    assert any("devices" in error.value for error in app.error)
    app.text_area(key="plan-typed").set_value('measured = "/etc/passwd"\n' + EXAMPLE).run()
    assert any("names a file" in error.value for error in app.error)


UNEVEN = (
    EXAMPLE.replace("nodes = 4", "nodes = 1")
    + """
[[groups]]
accelerator = "a100-80gb"
devices_per_node = 8
nodes = 1
network = "InfiniBand HDR"
inside = {bytes_per_second = 300e9, alpha_seconds = 3e-6}

[across]
bytes_per_second = 2e9
"""
)


def test_an_uneven_cluster_says_where_ranks_belong_and_what_other_orders_cost(
    home: Path, command: Run, tmp_path: Path
) -> None:
    app = visit("plan", cluster="typed below", model="350m", batch="64")
    app.text_area(key="plan-typed").set_value(UNEVEN).run()
    assert not app.exception
    assert "350m on 8 x h100-sxm + 8 x a100-80gb (ours)" in texts(app)
    best = table(app, "step, s")
    nested = next(one.value for one in app.dataframe if "axis inside axis" in one.value)
    assert sum("ranks in order" in words for words in nested["axis inside axis"]) == 1
    file = tmp_path / "uneven.toml"
    file.write_text(UNEVEN)
    told = command("plan", "--model", "350m", "--cluster", file, "--global-batch", "64", "--json").document
    placement = told["best"][0]["placement"]
    assert best["dp"].tolist()[0] == told["best"][0]["layout"]["dp"]
    seconds = [sum(row["seconds"].values()) for row in placement["alternatives"]]
    assert nested["sum, ms"].tolist() == pytest.approx([1e3 * one for one in seconds])
    columns = json.loads(next(one for one in app.dataframe if "axis inside axis" in one.value).proto.columns)
    shown = [
        columns[name]["type_config"]["format"].replace(",", "") for name in nested if name.endswith(", ms")
    ]
    numbers = nested[[name for name in nested if name.endswith(", ms")]].to_numpy().T
    assert all(
        float(text % number) > 0 for text, row in zip(shown, numbers, strict=True) for number in row if number
    )
    assert placement["reason"] in texts(app).replace("\\", "")


def test_a_machine_without_a_calibration_says_what_to_do(home: Path) -> None:
    app = visit("plan", cluster="this machine")
    assert not app.exception
    assert any("workbench calibrate" in error.value for error in app.error)


def test_an_address_that_nobody_wrote_is_said(home: Path) -> None:
    app = visit("plan", cluster="mars", nodes="x", model="350m", batch="64")
    assert not app.exception
    assert "Cluster mars in the link is not known here." in texts(app)


def two_ranks() -> Calibration:
    """One rank alone, and two that share what is 1.6 times as much."""
    found = calibrations.calibration((2,))
    both = (
        calibrations.curve("gemm", "fp32", 2, [calibrations.point(1024, 2 * 1024**3 / 8e10)]),
        calibrations.curve("memory", "copy", 2, [calibrations.point(2**27, 2 * 2**27 / 1.6e10)]),
    )
    return replace(found, curves=(*found.curves, *both))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A real pipeline run on a machine with a calibration by formula."""
    home = tmp_path_factory.mktemp("home")
    store.save(home, two_ranks())
    with Session(home) as session:
        outcome, summary = execute(session, small(parallel__pp=2, train__steps=10, train__warmup=2))
    assert outcome.good
    return home, summary.id


def test_a_run_has_its_schedule_planned_and_measured(
    trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(trained[0]))
    app = visit("plan", cluster="dgx-a100", model="350m", batch="64")
    assert not app.exception
    titles = [title.partition(":")[0] for title in charts(app)]
    assert titles[-3:] == ["Planned", "Simulated", "Measured"]
    drawn = figures_of(app)
    measured = next(one for one in drawn if one["layout"]["title"]["text"].startswith("Measured"))
    planned = next(one for one in drawn if one["layout"]["title"]["text"].startswith("Planned"))
    assert sum(len(trace["x"]) for trace in measured["data"]) == sum(
        len(trace["x"]) for trace in planned["data"]
    )
    assert measured["layout"]["xaxis"]["range"] == planned["layout"]["xaxis"]["range"]


def test_this_machine_compares_predictions_with_what_ran(
    trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, command: Run
) -> None:
    home, _ = trained
    with Session(home) as session:
        outcome, summary = execute(session, small(train__steps=10, train__warmup=2))
    assert outcome.good
    monkeypatch.setenv("WORKBENCH_HOME", str(home))
    told = command("plan", home / summary.id / run_folder.CONFIG, "--home", home, "--json").document[
        "measured"
    ]
    row = next(row for row in told["rows"] if summary.id in row["runs"])
    assert summary.step_seconds is not None
    assert row["measured_seconds"] == pytest.approx(summary.step_seconds.mean, rel=0.5)
    app = visit("plan", cluster="this machine", model="tiny", batch="8", sequence="64")
    assert not app.exception
    assert summary.id in list(table(app, "measured over predicted")["newest run"])
    assert "Predicted against measured, " in texts(app)
