"""Studies of thousands of trials: what is drawn and listed of them is true, and says what it leaves out."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.run import run_folder
from tests.support.workbench.synthetic import write_home
from tuning.report.study_result import StudyResult
from tuning.spec.objectives import Aim
from tuning.storage import study_folder
from workbench.analysis import studies
from workbench.analysis.studies import FOLLOWED, FollowedStudies
from workbench.figures.search import downsampling
from workbench.figures.search.front import FrontPoint, FrontSeries
from workbench.figures.study import trial_series
from workbench.home import store
from workbench.home.store import Store
from workbench.text import study


def document(count: int, seed: int) -> StudyResult:
    """A third lossy, a tenth failed, a few that measure again."""
    random = Random(seed)
    rows = []
    for number in range(count):
        value = None if random.random() < 0.1 else random.uniform(50, 150)
        config = {"compression.method": "topk"} if number % 3 == 0 else {"parallel.tp": 2}
        outcome = "completed" if value else random.choice(["oom", "hang"])
        more = {
            "outcome": outcome,
            "reason": f"r{number}",
            "seconds": 1.0,
            "source": "sampler",
            "run": f"run-{number}",
        }
        ends = {"low": value and value - 1, "high": value and value + 2}
        rows.append({"number": number, "value": value, "config": config, "label": "x", **ends, **more})
    again = [row | {"number": count + place, "confirms": 1} for place, row in enumerate(rows[:3])]
    return StudyResult.from_dict({"trials": rows, "confirmations": again, "objective": "tokens_per_second"})


def test_a_short_study_is_drawn_as_it_is() -> None:
    series = trial_series(document(downsampling.WHOLE - 3, 1))
    assert downsampling.downsample(series) is series


@pytest.mark.parametrize("count", [700, 3_000, 10_000])
def test_a_long_study_keeps_its_best_its_worst_and_its_newest(count: int) -> None:
    whole = trial_series(document(count, count))
    few = downsampling.downsample(whole)
    for kind in ("exact", "lossy"):
        points, drawn = getattr(whole, kind), getattr(few, kind)
        assert set(drawn) <= set(points)
        assert len(drawn) <= 3 * downsampling.GROUPS + 3 + downsampling.NEWEST
        for choose in (min, max):
            assert choose(points, key=lambda point: point.value) in drawn
        newest = [point for point in points if point.number >= count + 3 - downsampling.NEWEST]
        assert [point for point in drawn if point.number >= count + 3 - downsampling.NEWEST] == newest
    assert few.repeated == whole.repeated
    assert f"for {count + len(whole.repeated):,} trials" in few.note


def test_failures_of_a_group_are_counted_in_one_mark() -> None:
    whole = trial_series(document(5_000, 3))
    few = downsampling.downsample(whole)
    told = [int(mark.words.split()[0]) for mark in few.failed if " of trials " in mark.words]
    alone = [mark for mark in few.failed if " of trials " not in mark.words]
    assert sum(told) + len(alone) == len(whole.failed)
    assert {mark.number for mark in few.failed} <= {mark.number for mark in whole.failed}


def test_the_best_so_far_rises_at_the_same_trials() -> None:
    whole = trial_series(document(3_000, 4))
    few = downsampling.downsample(whole)
    line = dict(zip(few.best_numbers, few.best_values, strict=True))
    now = None
    for number, value in zip(whole.best_numbers, whole.best_values, strict=True):
        now = line.get(number, now)
        assert now == value


def test_a_front_is_drawn_whole_and_what_it_beats_on_a_grid() -> None:
    random = Random(5)
    places = [
        FrontPoint(n, random.random(), random.random(), (0.0, 0.0), (0.0, 0.0), "") for n in range(4_000)
    ]
    series = FrontSeries(Aim(), Aim(), places[:20], places[20:], [], places[0])
    few = downsampling.downsample_front(series)
    assert few.front == series.front
    assert set(few.dominated) <= set(series.dominated)
    assert len(few.dominated) <= downsampling.CELLS**2
    assert "3,980" in few.note
    assert downsampling.downsample_front(series._replace(dominated=places[:9])).note == ""


def test_a_table_shows_some_and_says_which() -> None:
    rows = study.all_rows(document(1_000, 6))
    shown, said = study.window(rows)
    assert shown == rows[-study.SHOWN :]
    assert said == "Showing the newest 200 of 1,003 trials."
    best, said = study.window(rows, study.BEST)
    values = sorted((row.value for row in rows if row.value), reverse=True)
    assert [row.value for row in reversed(best)] == values[: study.SHOWN]
    failed, said = study.window(rows, study.FAILED)
    assert [row.number for row in failed] == [row.number for row in rows if row.value is None]
    assert said == f"Showing all {len(failed)} without a value of 1,003 trials."
    assert study.window(rows[:50]) == (rows[:50], "")


def test_all_trials_can_be_taken_away() -> None:
    found = document(500, 7)
    rows = list(csv.DictReader(io.StringIO(study.as_csv(found))))
    assert [int(row["trial"]) for row in rows] == list(range(503))
    assert [float(row["tokens/s"]) if row["tokens/s"] else None for row in rows[:500]] == [
        row.value for row in found.trials
    ]
    assert {row["parallel.tp"] for row in rows} == {"", "2"}


def test_a_followed_study_has_one_document_until_something_changes(tmp_path: Path) -> None:
    write_home(tmp_path)
    folder = tmp_path / "studies" / "quickstart"
    followed = FollowedStudies().study(folder)
    first = followed.snapshot()
    assert followed.snapshot().document is first.document
    assert first.document == studies.document(folder)
    with (folder / study_folder.JOURNAL).open("a") as file:
        file.write('{"at_unix": 1.0, "kind": "tell", "number": 7, "outcome": "completed", "value": 5.0}\n')
    assert followed.snapshot().document == studies.document(folder) != first.document


def test_few_studies_are_kept_and_more_is_worked_out_once(tmp_path: Path) -> None:
    known = FollowedStudies()
    first = known.study(tmp_path / "0")
    made: list[int] = []
    for signature in ((1,), (1,), (2,)):
        first.more("it", signature, lambda: made.append(1))
    assert len(made) == 2
    for number in range(1, FOLLOWED + 1):
        known.study(tmp_path / str(number))
    assert known.study(tmp_path / str(FOLLOWED)) is known.study(tmp_path / str(FOLLOWED))
    assert known.study(tmp_path / "0") is not first


def test_a_store_that_is_asked_again_reads_only_changed_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_home(tmp_path).run.id
    kept = Store(tmp_path)
    before = kept.lists()
    asked: list[Any] = []
    select = store.select
    monkeypatch.setattr(store, "select", lambda *given: (asked.append(given[2]), select(*given))[1])
    assert kept.lists() == before
    assert asked == []
    run_folder.update_status(tmp_path / run, backend="nccl")
    assert next(row for row in kept.runs() if row.id == run).backend == "nccl"
    assert asked == [[run]]
    assert kept.lists() == Store(tmp_path).lists()
