"""The forms say what a configuration needs and how long its step takes while one types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig, parse
from engine.footprint.footprint import largest
from engine.run.calibration import store
from tests.support.engine.calibrations import calibration
from tests.workbench.pages.test_pages import texts, visit
from workbench.services import predictions
from workbench.text import words

HERE = {"train.steps": 7, "device": "cpu"}


def typed(app: Any, *lines: str) -> str:
    said = "\n".join([*(f"{key}={value}" for key, value in HERE.items()), *lines])
    app.text_area(key="run-new-changes").set_value(said).run()
    assert not app.exception
    return texts(app)


def test_the_form_of_a_run_has_memory_and_step(home: Path) -> None:
    store.save(home, calibration())
    config = parse({}).with_values(HERE)
    found = predictions.gauge(config, predictions.find_target(home))
    assert found.step_seconds is not None
    said = typed(visit("runs"))
    assert f"Memory: {words.gib(largest(config).total_bytes)} by formula on rank 0" in said
    assert f"Step: {words.seconds(found.step_seconds.median)} predicted" in said
    assert "Runs out of memory" not in said and "not modelled" not in said


def test_what_does_not_fit_or_cannot_be_predicted_is_said(home: Path) -> None:
    store.save(home, calibration())
    app = visit("runs")
    assert ":red[Runs out of memory with a probability of 100 %.]" in typed(app, "memory.limit_gib=0.1")
    assert not app.button(key="run-new-start").disabled, "a formula forbids nothing"
    assert "the time of 1 setting is not modelled" in typed(app, "memory.sample_tokens=0.5")
    assert "Step: not modelled here (calibrated for 1 rank at the most, and this has 4)" in typed(
        app, "parallel.dp=4"
    )
    assert "Memory:" not in typed(app, "parallel.dp=0")


def test_the_form_of_a_study_has_those_of_its_baseline(home: Path) -> None:
    app = visit("tune", view="new")
    assert "The baseline's memory:" in texts(app)
    assert "The baseline's step: not modelled here (not calibrated: run `workbench calibrate`)" in texts(app)
    before = next(line for line in texts(app).splitlines() if "baseline's memory" in line)
    app.number_input(key="new-data-sequence-length").set_value(1024).run()
    assert before not in texts(app) and "The baseline's memory:" in texts(app)
    app.text_input(key="new-data-path").set_value("/no/such/file").run()
    assert "The baseline's memory:" not in texts(app)


def test_a_configuration_is_worked_out_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form is drawn again with each letter, and by each browser."""
    asked: list[int] = []
    real = predictions.gauge

    def counted(config: RunConfig, target: Any) -> predictions.Gauge:
        asked.append(config.train.steps)
        return real(config, target)

    monkeypatch.setattr(predictions, "gauge", counted)
    app = visit("runs")
    for steps in (41, 42, 41):
        typed(app, f"train.steps={steps}")
    typed(visit("runs"), "train.steps=42")
    assert [steps for steps in asked if steps in (41, 42)] == [41, 42]
