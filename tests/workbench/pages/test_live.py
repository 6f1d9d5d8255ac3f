"""What the Live page tells of each rank."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from engine.config import run_config
from engine.run import run_folder
from engine.run.progress import PAGE_OF_HOST, Progress
from profilers.analysis.events import LENGTH_EVENT
from profilers.records.writer import RecordWriter
from tests.support.samples import step_sample
from tests.support.waiting import wait_until
from tests.support.workbench.sent_figures import figures_of
from tests.support.workbench.skewed_run import write_skewed
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import charts, texts, visit
from tuning.execution.live.ongoing_run import RUNS
from tuning.storage.study_folder import STUDIES
from workbench.figures import steps
from workbench.pages import live
from workbench.pages.run.live import header
from workbench.services import ongoing_runs


def ranks_of(run: str) -> Any:
    app = visit("live", run=run)
    assert not app.exception
    [rows] = [one.value for one in app.dataframe if "phase" in one.value and "place" in one.value]
    return rows


def test_each_rank_is_shown_on_its_own_host(home: Path) -> None:
    run = full_home(home)
    before = ranks_of(run)
    assert "host" not in before  # nobody told one
    folder = home / run
    world_size = int((run_folder.read_json(folder / run_folder.STATUS) or {})["world_size"])
    page, other = Progress(folder), Progress(folder, world_size, PAGE_OF_HOST.format("second"))
    last = world_size - 1
    standing = {rank.rank: rank for rank in page.ranks()}[last]
    other.enter_state(last, standing.step + 1, "backward")
    (folder / run_folder.PROGRESS).write_bytes((folder / run_folder.PROGRESS).read_bytes()[:-64] + bytes(64))
    for rank in range(world_size):
        with RecordWriter(folder / run_folder.RECORDS, f"rank-{rank}") as writer:
            writer.event("environment", host="second" if rank == last else "first")
    assert wait_until(lambda: "host" in ranks_of(run))  # a look is shared for some time
    rows = ranks_of(run)
    assert list(rows["rank"]) == list(range(world_size))
    assert list(rows["host"]) == ["first"] * last + ["second"]
    assert rows["step"].iloc[-1] == standing.step + 1
    page.close()
    other.close()


def test_a_run_whose_process_is_gone_has_no_time_left(home: Path) -> None:
    folder = home / full_home(home)
    assert " left" in texts(visit("live", run=folder.name))
    status = run_folder.read_json(folder / run_folder.STATUS) or {}
    gone = {"owner": status["owner"] | {"start_time": 1.0}}
    run_folder.write_json(folder / run_folder.STATUS, status | gone)
    assert wait_until(lambda: " left" not in texts(visit("live", run=folder.name)))


def test_the_time_that_is_left_knows_the_run_s_own_limit(home: Path) -> None:
    folder = home / full_home(home)
    config = run_folder.read_json(folder / run_folder.CONFIG) or {}
    config["train"] |= {"timeout_seconds": 60.0, "steps": 1_000_000}
    run_folder.write_json(folder / run_folder.CONFIG, config)
    run_folder.update_status(folder, started_unix=time.time() - 30)
    assert wait_until(lambda: "its time limit ends it in about" in texts(visit("live", run=folder.name)))


def test_a_run_with_a_time_is_as_far_as_its_time_and_has_as_many_steps_as_it_planned(home: Path) -> None:
    """Its configuration says 24 steps, which do not end it."""
    values = {"train.seconds": 400.0, "train.steps": 24}
    began = time.time() - 100
    written = RunFolder(home, FakeRun("20260101-000000-aaaa", values, 0.1, 24, None, started_unix=began))
    run = written.folder
    written.write(81)
    tile, bar = told(run.name)
    assert tile.startswith("81 ") and " left" in tile, "nothing is planned yet"
    assert 25 <= bar < 60
    for step, planned in ((20, 500), (60, 330)):
        written.ranks[0].event(LENGTH_EVENT, step=step, steps=planned)
    assert wait_until(lambda: told(run.name)[0].startswith("81 of about 330 about ")), "a look is shared"
    assert 25 <= told(run.name)[1] < 60
    stopped = {"ending": "stopped", "reason": "somebody asked"}
    run_folder.update_status(run, state="ended", outcome=stopped, ended_unix=time.time())
    assert wait_until(lambda: told(run.name) == ("81 of 330 ", 24))


def told(run: str) -> tuple[str, int]:
    """What the tile of the steps says with the line below it, and percents of the bar."""
    app = visit("live", run=run)
    assert not app.exception
    (at,) = [place for place, one in enumerate(app.metric) if one.label == "Step"]
    below = [one.value for one in app.caption if one.value == "&nbsp;" or " left" in one.value]
    (bar,) = app.get("progress")
    assert at == 0
    return f"{app.metric[0].value} {below[0].replace('&nbsp;', '')}", bar.proto.value


def recent(measured: list[bool], **outer: Any) -> list[int]:
    """The steps whose mean the tiles have, of two ranks that wrote so many."""
    numbers = np.arange(len(measured))
    columns = {name: np.zeros(len(measured)) for name in header._COLUMNS}
    columns |= {"step": numbers, "measured": np.array(measured)}
    snapshot: Any = SimpleNamespace(steps={0: columns, 1: columns}, config={"outer": outer})
    (first, second) = header.recent_columns(snapshot).values()
    assert first["step"].tolist() == second["step"].tolist()
    return [int(step) for step in first["step"]]


def test_warm_up_is_not_in_the_mean_of_the_last_steps() -> None:
    """Or tiles of a short run that has ended differ from those of its page, which leave it out."""
    assert recent([False] * 4 + [True] * 6) == [4, 5, 6, 7, 8, 9]
    assert recent([True] * 30) == list(range(10, 30))
    assert recent([False] * 5) == [0, 1, 2, 3, 4], "all that there is"
    assert recent([True] * 5 + [False] * 2 + [True] * 3) == [7, 8, 9], "since a change"
    assert recent([True] * 5 + [False] * 2) == list(range(7)), "no step was measured since a change"
    assert recent([False] * 4 + [True] * 6, method="diloco", period=4) == [6, 7, 8, 9], "a whole round"
    assert recent([False] * 4 + [True] * 2, method="diloco", period=4) == [4, 5]


@pytest.mark.parametrize(("follows", "said"), [(True, "will appear here"), (False, "the newest run")])
def test_only_who_follows_is_promised_the_next_trial(
    follows: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was chosen stays on the page."""
    told = list[str]()
    monkeypatch.setattr(live.st, "info", lambda text, icon: told.append(text))
    records: Any = SimpleNamespace(running=False)
    row: Any = SimpleNamespace(study="s")
    studies: Any = [SimpleNamespace(name="s", state="running")]
    live._between_trials(records, row, studies, follows=follows)
    (text,) = told
    assert said in text


def test_the_bar_of_a_rank_that_is_done_is_full(home: Path) -> None:
    written = RunFolder(home, FakeRun("20260101-000000-aaaa", {"train.steps": 24}, 0.1, 24, None))
    written.write(24)
    app = visit("live", run=written.folder.name)
    (table,) = [one for one in app.dataframe if "phase" in one.value and "place" in one.value]
    assert json.loads(table.proto.columns)["step"]["type_config"]["max_value"] == 23


def test_the_length_of_a_foreign_job_is_not_known_and_its_ranks_have_no_bars(home: Path) -> None:
    written = RunFolder(home, FakeRun("20260101-000000-aaaa", {}, 0.1, 24, None))
    written.write(12)
    (written.folder / run_folder.CONFIG).unlink()
    run_folder.ForeignJob(command=["python", "train.py"]).write(written.folder)
    app = visit("live", run=written.folder.name)
    assert not app.exception
    assert app.metric[0].value == "12"
    assert " left" not in texts(app)
    (table,) = [one for one in app.dataframe if "phase" in one.value and "place" in one.value]
    assert json.loads(table.proto.columns)["step"]["type_config"]["type"] == "number"


def test_what_holds_now_is_named_while_the_run_goes_on(home: Path) -> None:
    """Rank 2 gets slow, and the others wait for it."""
    folder = home / full_home(home)
    steps = dict.fromkeys(range(4), 0)
    began = time.time()
    for rank in steps:
        with RecordWriter(folder / run_folder.RECORDS, f"rank-{rank}") as writer:
            for step in range(1000, 1200):
                work = 0.2 if rank == 2 and step >= 1150 else 0.1
                phases = {"forward": work, "communication_exposed": 0.25 - work if step >= 1150 else 0.01}
                writer.write(step_sample(step, start_unix=began + step, **phases))
    assert wait_until(lambda: "Bottlenecks over" in texts(visit("live", run=folder.name)))
    app = visit("live", run=folder.name)
    assert any("straggler" in one.value and "the latest" in one.value for one in app.warning)


def test_of_a_long_run_the_bottlenecks_are_those_of_its_last_steps(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / full_home(home)
    monkeypatch.setattr(ongoing_runs, "LEAST_STEPS", 30)
    monkeypatch.setattr(ongoing_runs, "MOST_RECORDS", 0)
    assert "Bottlenecks over the last 30 measured steps: " in texts(visit("live", run=folder.name))


def test_it_leads_to_what_can_be_asked_of_the_run_as_it_stands(home: Path) -> None:
    folder = home / full_home(home)

    def links() -> list[tuple[str, str]]:
        app = visit("live", run=folder.name)
        assert not app.exception
        found = [(link.proto.label, link.proto.query_string) for link in app.get("page_link")]
        return [(label, query) for label, query in found if folder.name in query]

    details = ("Details", f"id={folder.name}")
    trace, step = (
        ("Record a trace", f"id={folder.name}&section=Trace"),
        ("Last step", f"run={folder.name}&step=69"),
    )
    assert links() == [details, trace, step]  # the values of a trial are its study's
    run_folder.update_status(folder, labels={"purpose": "train"})
    value = ("Change a value", f"id={folder.name}&section=Configuration")
    assert wait_until(lambda: links() == [details, value, trace, step]), "a look may be a moment old"
    run_folder.update_status(folder, state="ended", outcome={"ending": "completed"})
    assert wait_until(lambda: links() == [details, step])


def test_of_64_ranks_any_one_can_be_chosen(home: Path) -> None:
    """By typing its number: as many buttons would fill the page."""
    run = write_skewed(home, lambda rank, _: 0.03 * (rank == 42), ranks=64, steps=6)
    app = visit("live", run=run)
    assert not app.exception
    chooser = app.selectbox(key="live-rank-of-many")
    assert chooser.options == ["slowest rank", *(f"rank {rank}" for rank in range(64))]
    for rank in (63, 42):
        chooser.set_value(str(rank)).run()
        assert f"Step time by phase — rank {rank}" in charts(app)
    assert bars_of(app)["forward"] == pytest.approx([80.0] * 6, abs=1)
    chooser.set_value("slowest").run()
    assert "Step time by phase — the slowest rank of each step" in charts(app)
    assert not app.exception


def bars_of(app: AppTest) -> dict[str, list[float]]:
    """Milliseconds of each phase on the page's chart of them."""
    drawn = next(
        one for one in figures_of(app) if one["layout"]["title"]["text"].startswith("Step time by phase")
    )
    return {trace["name"]: trace["y"] for trace in drawn["data"]}


def test_a_link_to_what_is_gone_says_so(home: Path) -> None:
    full_home(home)
    app = visit("live", run="20200101-000000-dead")
    assert "20200101-000000-dead is not in this home" in app.warning[0].value.replace("\\", "")


def test_the_newest_of_a_live_study_is_the_run_that_it_tunes(home: Path) -> None:
    run = full_home(home)
    config = run_config.load(home / run / run_folder.CONFIG)
    study = home / STUDIES / "some-live-study"
    study.mkdir(parents=True)
    tuned = run_folder.create(home, config, {"live": study.name, "purpose": "train"})
    for trial in range(2):
        run_folder.create(home, config, {"study": study.name, "trial": str(trial)})
    run_folder.write_json(study / RUNS, {"runs": [tuned.name]})
    app = visit("live", run="newest")
    assert not app.exception and f"**`{tuned.name}`**" in texts(app)


def test_a_window_sends_the_reader_to_its_run_at_its_step(home: Path) -> None:
    """It has no records of its own."""
    run = full_home(home)
    config = run_config.load(home / run / run_folder.CONFIG)
    window = run_folder.create(home, config, {})
    run_folder.update_status(
        window, state="ended", window={"run": run, "first": 3, "end": 9, "seconds": 1.0, "undone": True}
    )
    app = visit("live", run=window.name)
    assert not app.exception
    assert f"{window.name} is a window of a longer run: steps 3 to 8 of it, which were undone." in texts(app)
    assert not app.dataframe and not app.metric, "nothing that would be empty"
    marked = steps.linked_mark(3, {0: {"step": np.array([2, 3, 4])}})
    assert marked == [steps.Mark(3, "step 3")]
    assert steps.linked_mark(9, {0: {"step": np.array([2, 3, 4])}}) == [] == steps.linked_mark(None, {})
    assert not visit("live", run=run, step="3").exception
