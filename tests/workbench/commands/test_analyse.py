"""``sensitivity``: its document, its words in a terminal, its figures, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.studies import known_study as known
from tests.workbench.conftest import Run
from tuning.sensitivity import job
from tuning.sensitivity.effects import Neighbour
from tuning.sensitivity.outcomes import importance_of
from tuning.sensitivity.report import document
from tuning.storage.study_folder import load_study
from workbench.figures.search import sensitivity
from workbench.text.sensitivity import evidence_words, loss

FULL = 60


def test_without_a_method_it_is_told_at_once(command: Run, home: Path) -> None:
    known.write(home, FULL)
    found = command("sensitivity", known.NAME, "--json").document
    assert (found["study"], found["trials"]) == (known.NAME, FULL)
    assert found["measured"] + found["failed"] == FULL
    assert sum(found["importance"]["values"].values()) == pytest.approx(1)
    assert found["shap"]["known"] is False
    assert "--method shap" in found["shap"]["reason"]
    assert {row["stands"] for row in found["neighbours"]} >= {"measured", "failed"}


def test_shap_is_worked_out_shown_and_drawn(command: Run, home: Path) -> None:
    folder = known.write(home, FULL)
    done = command("sensitivity", known.NAME, "--method", "shap", "--json")
    assert done.code == 0, done.err
    assert "SHAP: " in done.err
    found = done.document
    assert found["shap"]["value"]["knobs"][0]["key"] == "memory.recompute"
    assert {row["stands"] for row in found["neighbours"]} >= {"measured", "predicted", "failed"}
    text = command("sensitivity", known.NAME).out
    assert "average change of the chance of failure by each knob" in text
    assert "predicted by the model, not measured" in text
    assert "most with none" in text
    assert "more as it grows" in text
    _drawn(document(load_study(folder), importance_of(found)))


def _drawn(found: Any) -> None:
    shap = found.shap.outcome
    for part, unit in ((shap.value, "%"), (shap.failure, "percentage points")):
        series = sensitivity.effect_series(part)
        figure = sensitivity.effects(series, "title")
        assert figure.layout.xaxis.title.text == f"mean effect, {unit}"
        assert sum(len(bar.x) for bar in figure.data) == len(series.names)
    dependence = sensitivity.dependence_series(found)
    figure = sensitivity.dependence(dependence)
    assert [note.text for note in figure.layout.annotations] == [panel.name for panel in dependence.panels]
    assert sum(trace.showlegend for trace in figure.data) == 3
    shares = sensitivity.shares(sensitivity.share_series(found))
    assert [bar.name.partition(":")[0] for bar in shares.data] == ["PED-ANOVA"]
    json.dumps([figure.to_plotly_json(), shares.to_plotly_json()], default=list)


def test_a_study_that_has_just_begun_says_what_is_missing(command: Run, home: Path) -> None:
    folder = known.write(home, 2, known.noise)
    text = command("sensitivity", known.NAME).out
    assert "needs 8 measured trials; there are 2" in text
    known.write(home / "none", 0)
    found = document(load_study(home / "none" / "studies" / known.NAME))
    assert (found.winner, found.neighbours) == (None, [])
    dependence = sensitivity.dependence_series(found)
    assert dependence.panels == []
    empty = sensitivity.dependence(dependence)
    assert empty.layout.annotations[0].text == "no knob has two measured values yet"
    series = sensitivity.effect_series(None, "is worked out when asked for")
    assert "asked for" in sensitivity.effects(series, "title").layout.annotations[0].text
    assert sensitivity.shares(sensitivity.share_series(found)).layout.annotations
    assert folder.is_dir()


def test_what_it_cannot_do_is_one_line(
    command: Run, own_home: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.write(home, 2)
    run = next(path.name for path in home.iterdir() if path.name.startswith("20"))
    command("sensitivity", run).refused("is a run")
    command("sensitivity", known.NAME, "--method", "lime").refused("lime")
    monkeypatch.setattr(job.importlib.util, "find_spec", lambda name: None)
    command("sensitivity", known.NAME, "--method", "fanova").refused("scikit-learn", "[sensitivity]")


def test_words_of_a_neighbour_say_what_they_stand_on() -> None:
    row = Neighbour("parallel.tp", 1, 2, "measured", trials=(3, 5), repeated=False)
    assert evidence_words(row) == "measured: trials 3, 5, one run each"
    assert evidence_words(replace(row, repeated=True)) == "measured: trials 3, 5"
    failed = Neighbour("parallel.tp", 1, 2, "failed", trials=(3,), reason="out of memory")
    assert evidence_words(failed) == "failed: trial 3; out of memory"
    lost = replace(row, loss_percent=-1.25, low_percent=-3.0, high_percent=0.5)
    assert loss(lost) == ("-1.2 %", "-3.0 to 0.5 %")
    assert loss(row) == ("—", "")
