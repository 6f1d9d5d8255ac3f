"""The page changes values of a run that goes on: refused where that can be known, else it tells what became of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.run import answers, ownership, run_folder
from engine.run.answers import RankReply
from profilers.records.writer import RecordWriter
from tests.support.waiting import wait_until
from tests.support.workbench.live_run import going_on
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import charts, texts, visit
from workbench.home import runs
from workbench.pages.run.live import commands as page
from workbench.services import jobs

pytestmark = pytest.mark.drawn(1, of="orders from the page")


def opened(run: str) -> AppTest:
    app = visit("runs", section="Configuration")
    app.selectbox(key="id").set_value(run).run()
    assert not app.exception
    return app


def ask(app: AppTest, key: str, value: str) -> None:
    app.selectbox(key="turn-key").set_value(key)
    app.text_input(key="turn-value").set_value(value)
    next(button for button in app.button if button.key == "turn-send").click().run()
    assert not app.exception


def sent(folder: Path) -> list[dict[str, Any]]:
    return [
        run_folder.read_json(path) or {} for path in sorted((folder / run_folder.COMMANDS).glob("*.json"))
    ]


def test_what_is_illegal_is_said_and_not_sent(home: Path) -> None:
    folder = home / full_home(home)
    app = opened(folder.name)
    ask(app, "overlap.bucket_mb", "3")
    assert "is a trial of quickstart" in app.error[0].value
    run_folder.update_status(folder, labels={"purpose": "train"})
    ask(app, "batch.micro_batch", "1000")
    assert "nearest legal" in app.error[0].value
    ask(app, "batch.micro_batch", "[")
    assert "is not a YAML value" in app.error[0].value
    app.run()
    assert "is not a YAML value" in app.error[0].value, "it stays until something else is sent or it was read"
    app.text_input(key="turn-more").set_value("nonsense")
    ask(app, "overlap.bucket_mb", "3")
    assert "Further keys='nonsense': write it as KEY=VALUE" in app.error[0].value.replace("\\", "")
    app.text_input(key="turn-more").set_value("")
    assert sent(folder) == []
    app.number_input(key="turn-steps").set_value(5)
    ask(app, "overlap.bucket_mb", "3")
    assert "is for a copy" in app.error[0].value
    app.number_input(key="turn-steps").set_value(None)
    ask(app, "overlap.bucket_mb", "3")
    assert not app.error
    (command,) = sent(folder)
    assert (command["command"], command["arguments"], command["by"]) == (
        "set",
        {"overlap.bucket_mb": 3},
        "page",
    )


@pytest.mark.parametrize(
    ("order", "value", "more", "arguments"),
    [
        ("set", "3", "batch.micro_batch=1", {"overlap.bucket_mb": 3, "batch.micro_batch": 1}),
        (
            "set",
            "3",
            " memory.block_actions=[keep, full, keep, keep]  batch.micro_batch=1 ",
            {
                "overlap.bucket_mb": 3,
                "memory.block_actions": ["keep", "full", "keep", "keep"],
                "batch.micro_batch": 1,
            },
        ),
        ("try", "", "", {"steps": 7}),
        ("back", "3", "", {"overlap.bucket_mb": 3, "steps": 7}),
    ],
)
def test_keys_change_together_with_a_copy_or_back_to_it(
    home: Path, order: str, value: str, more: str, arguments: dict[str, Any]
) -> None:
    folder = home / full_home(home)
    run_folder.update_status(folder, labels={"purpose": "train"})
    app = opened(folder.name)
    app.selectbox(key="turn-order").set_value(order)
    app.text_input(key="turn-more").set_value(more)
    if order != "set":
        app.number_input(key="turn-steps").set_value(7)
    ask(app, "overlap.bucket_mb", value)
    assert not [error.value for error in app.error]
    assert [(one["command"], one["arguments"]) for one in sent(folder)] == [(order, arguments)]


def test_what_ranks_refused_stays_until_it_was_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / full_home(home)
    run_folder.update_status(folder, labels={"purpose": "train"})
    app = opened(folder.name)
    next(button for button in app.button if button.key == "turn-evaluate").click().run()
    [order] = [path.stem for path in (folder / run_folder.COMMANDS).glob("*.json")]
    reply = RankReply(order, 0, "evaluate", 12, [], None, "there is no *held-out* text")
    monkeypatch.setattr(answers, "run_answers", lambda _: [reply])
    for _ in range(3):
        app.run()
        assert "evaluate, before step 12: refused: there is no *held-out* text" in texts(app)
        assert app.error
    app.button(key=f"answer-turn-{folder.name}-read").click().run()
    assert not app.error


def test_an_order_that_nobody_would_take_is_not_sent(home: Path) -> None:
    folder = home / full_home(home)
    gone = replace(ownership.this_process(), start_time=0.0)
    run_folder.update_status(folder, labels={"purpose": "train"}, takes_orders=gone)
    app = opened(folder.name)
    next(button for button in app.button if button.key == "turn-evaluate").click().run()
    assert "the process that passes on commands is gone" in app.error[0].value
    assert sent(folder) == []


def test_the_losses_that_orders_asked_for_stay_beside_them(home: Path) -> None:
    """Of two values tried from one copy: the first one's steps are undone, and its loss counts in nothing else."""
    folder = home / full_home(home)
    run_folder.update_status(folder, labels={"purpose": "train"})
    asked = {"1-a": ("try", 3), "2-b": ("back", 3), "3-c": ("try", None), "4-d": ("evaluate", None)}
    for order, (command, steps) in asked.items():
        arguments = {"compression.rank": 2} | ({} if steps is None else {"steps": steps})
        document = {"id": order, "command": command, "arguments": arguments, "by": "page"}
        run_folder.write_json(folder / run_folder.COMMANDS / f"{order}.json", document)
    for rank, losses in enumerate([(2.0, 1.5, 1.4, 1.8), (3.0, 2.5, 2.4, 2.8)]):
        with RecordWriter(folder / run_folder.RECORDS, f"rank-{rank}") as writer:
            writer.event("validation", step=8, loss=losses[0])
            writer.event("order", id="1-a", command="try", step=8, problem=None)
            writer.event("validation", step=11, loss=losses[1])
            writer.event("undone", step=8, end=20, records={})
            writer.event("order", id="2-b", command="back", step=8, problem=None)
            writer.event("validation", step=11, loss=losses[2])
            writer.event("order", id="3-c", command="try", step=30, problem=None)
            writer.event("validation", step=33, loss=9.0)
            writer.event("order", id="4-d", command="evaluate", step=40, problem=None, loss=losses[3])
    assert answers.losses_of_orders(folder) == pytest.approx({"1-a": 2.0, "2-b": 1.9, "4-d": 2.3})
    (table,) = [one.value for one in opened(folder.name).dataframe if "requested" in one.value]
    shown = dict(zip(table["requested"], table["held-out loss"], strict=True))
    assert shown["try compression.rank=2, steps=3"] == pytest.approx(2.0)
    assert shown["back compression.rank=2, steps=3"] == pytest.approx(1.9)


def test_the_whole_page_is_drawn_again_once_other_values_hold(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form said what holds, and the table of settings below it what held when the page was opened."""
    folder, scopes = home / full_home(home), list[str]()
    monkeypatch.setattr(page.st, "rerun", lambda **told: scopes.append(told["scope"]))
    app = opened(folder.name)
    held = app.session_state[page._holds_key(folder)]
    assert held == run_folder.read_json(folder / run_folder.CONFIG) and not scopes
    look = AppTest.from_string(
        "from pathlib import Path\nfrom workbench.pages.run.live import commands as page\n"
        f"folder = Path({str(folder)!r})\n"
        f"page.st.session_state[page._holds_key(folder)] = {held!r}\npage._renew(folder)"
    )
    assert not look.run().exception and not scopes
    held["batch"]["micro_batch"] = 7
    run_folder.write_json(folder / run_folder.CONFIG, held)
    assert not look.run().exception and scopes == ["app"]


def test_an_ended_run_without_a_change_has_no_form(home: Path) -> None:
    full_home(home)
    app = opened(next(path.name for path in home.iterdir() if path.name.endswith("03f3")))
    assert "while it" not in texts(app)
    assert not [button for button in app.button if button.key == "turn-send"]


@pytest.mark.timeout(300)
def test_a_real_run_is_changed_from_the_page_and_shows_where(home: Path) -> None:
    with going_on(home) as folder:
        app = opened(folder.name)
        ask(app, "batch.micro_batch", "2")
        assert wait_until(lambda: bool(runs.load(folder).changes), 60)
        step = runs.load(folder).changes[0].step
        assert "Changed while running" in texts(app.run())
        steps = visit("runs", id=folder.name)
        assert f"Changed from step {step:,} on: batch.micro_batch 1 → 2 (page)" in texts(steps)
    app = opened(folder.name)
    assert "Changed while it was running" in texts(app)
    app = visit("runs", id=folder.name)
    assert "a step took" in texts(app)
    assert [title for title in charts(app) if title.startswith("Step time")]


def test_a_run_is_tuned_from_its_page(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process of its own; a trial of a study is not, and once there is a study the page leads to it."""
    folder = home / full_home(home)
    started, job = [], SimpleNamespace(id="a-job", alive=True, log=tmp_path / jobs.LOG)

    def start(home: Path, arguments: list[str]) -> Any:
        started.append(arguments)
        return job

    monkeypatch.setattr(jobs, "start", start)
    monkeypatch.setattr(jobs, "all_jobs", lambda _: [job])
    app = opened(folder.name)
    assert not [button for button in app.button if button.key == "tune-this-run"]
    run_folder.update_status(folder, labels={"purpose": "train"})
    app = opened(folder.name)
    next(button for button in app.button if button.key == "tune-this-run").click().run()
    assert started == [["live", "attach", folder.name]]
    assert "The search is being started" in texts(app)
    assert not [button for button in app.button if button.key == "tune-this-run"], "once is enough"
    job.alive = False
    job.log.write_text("note: one moment\nerror: run='x': *nothing* of it can be turned\n", "utf-8")
    for _ in range(3):
        app.run()
        assert "The run is not tuned: run='x': *nothing* of it can be turned" in texts(app)
        assert app.error, "a refusal looks like one, and stays"
    app.button(key=f"answer-tuning-{folder.name}-read").click().run()
    assert not app.error
    job.alive = True
    next(button for button in app.button if button.key == "tune-this-run").click().run()
    (home / "studies" / f"live-{folder.name}").mkdir()
    app.run()
    assert "The search is being started" not in texts(app)
    assert not [button for button in app.button if button.key == "tune-this-run"]
