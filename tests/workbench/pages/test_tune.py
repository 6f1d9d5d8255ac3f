"""The Tune page without a browser: the form and its checks, buttons, commands and their answers."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from engine.config.errors import InputError
from engine.run import ownership, run_folder
from tests.support.workbench.synthetic_live import write_live
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from tuning.spec import study_file
from tuning.storage.journal import Journal
from workbench.pages.study.progress import SHOWN_ANSWERS
from workbench.pages.tune import NEW, WATCH
from workbench.pages.widgets import trial_table
from workbench.services import jobs
from workbench.text import words

STUDY = Path("studies") / "quickstart"


def commands(home: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((home / STUDY / "commands").glob("*.json"))]


def answer(home: Path, command: dict[str, Any], accepted: bool, reason: str) -> None:
    journal = Journal(home / STUDY / "journal.jsonl")
    known = {name: command[name] for name in ("id", "command", "arguments", "by")}
    journal.append("command", **known, accepted=accepted, reason=reason)
    journal.close()


def draft(app: AppTest) -> dict[str, Any]:
    """The study file that the form shows."""
    tree: dict[str, Any] = yaml.safe_load(app.code[-1].value)
    return tree


def test_the_form_makes_a_valid_study_file(home: Path) -> None:
    app = visit("tune", view="new")
    app.number_input(key="new-trials").set_value(5)
    app.number_input(key="new-data-sequence-length").set_value(64)
    app.selectbox(key="new-model-preset").set_value("mini")
    app.multiselect(key="new-space-batch-micro-batch").set_value([1, 4])
    app.run()
    file = study_file.parse(draft(app))
    assert (file.name, file.ranks, file.trials) == ("study-1", 4, 5)
    assert (file.config.model.preset, file.config.data.sequence_length) == ("mini", 64)
    assert file.search_space.by_key["batch.micro_batch"].choices == (1, 4)
    assert "legal configurations" in texts(app) or "combinations" in texts(app)


def test_what_was_typed_stays_while_one_looks_at_something_else(home: Path) -> None:
    app = visit("tune", view="new")
    app.number_input(key="new-trials").set_value(5)
    app.multiselect(key="new-space-batch-micro-batch").set_value([1, 4])
    app.run()
    before = draft(app)
    for away in (WATCH, NEW):
        view = next(one for one in app.get("button_group") if one.key == "view")
        view.set_value(away).run()
        assert not app.exception
    assert draft(app) == before and before["trials"] == 5


def test_fewer_knobs_make_a_smaller_space(home: Path) -> None:
    app = visit("tune", view="new")
    knobs = next(group for group in app.get("button_group") if (group.key or "").startswith("new-knobs"))
    knobs.set_value(["parallel.tp", "batch.micro_batch"]).run()
    assert set(draft(app)["space"]) == {"parallel.tp", "batch.micro_batch"}


def test_one_click_chooses_a_kind_of_knobs_all_or_none(home: Path) -> None:
    app = visit("tune", view="new")
    usual = set(draft(app)["space"])
    found = {}
    for name in ("layout", "all", "none", "usual"):
        preset = next(button for button in app.button if (button.key or "").lower() == f"preset-{name}")
        preset.click().run()
        assert not app.exception
        group = next(one for one in app.get("button_group") if (one.key or "").startswith("new-knobs"))
        found[name] = set(group.value)
    assert found["none"] == set()
    assert found["usual"] == usual
    assert {"parallel.tp", "batch.micro_batch"} <= found["layout"] < usual < found["all"]
    assert "compression.method" not in found["layout"]


def test_every_axis_can_be_asked_for(home: Path) -> None:
    app = visit("tune", view="new")
    assert "parallel.cp" not in draft(app)["space"]
    app.number_input(key="new-model-experts").set_value(4).run()
    knobs = next(group for group in app.get("button_group") if (group.key or "").startswith("new-knobs"))
    axes = ["parallel.cp", "parallel.cp_method", "parallel.ep", "parallel.zero_stage", "parallel.shard_ranks"]
    knobs.set_value(axes).run()
    assert draft(app)["space"] == {
        "parallel.cp": [1, 2, 4],
        "parallel.cp_method": ["ring", "ulysses"],
        "parallel.ep": [1, 2, 4],
        "parallel.zero_stage": [0, 1, 2, 3],
        "parallel.shard_ranks": [None, 2],
    }
    layouts = {
        (point["parallel.cp"], point["parallel.ep"])
        for point in study_file.parse(draft(app)).search_space.legal_points
    }
    assert layouts == {(cp, ep) for cp in (1, 2, 4) for ep in (1, 2, 4)}


def test_axes_that_make_sense_are_chosen_at_first(home: Path) -> None:
    app = visit("tune", view="new")
    app.number_input(key="new-data-sequence-length").set_value(8_192)
    app.number_input(key="new-model-experts").set_value(4)
    app.run()
    assert {"parallel.cp", "parallel.cp_method", "parallel.ep"} <= set(draft(app)["space"])


def test_one_rank_offers_what_is_left_to_turn(home: Path) -> None:
    app = visit("tune", view="new")
    app.number_input(key="new-ranks").set_value(1).run()
    assert set(draft(app)["space"]) == {"batch.micro_batch", "memory.recompute", "compile"}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("new-name", "1 bad name", "must begin with a letter"),
        ("new-train-warmup", 24, "must be above warmup"),
    ],
)
def test_what_cannot_run_is_said_before_anything_starts(
    home: Path, key: str, value: Any, message: str
) -> None:
    app = visit("tune", view="new")
    widget = app.text_input(key=key) if isinstance(value, str) else app.number_input(key=key)
    widget.set_value(value).run()
    assert message in app.error[0].value
    assert app.button(key="start").disabled


def test_texts_that_cannot_be_trained_on_are_said_while_typing(home: Path, tmp_path: Path) -> None:
    """With the field, its value and what to do; and no more once they are there."""
    text = tmp_path / "text"
    app = visit("tune", view="new")

    def said() -> str:
        app.text_input(key="new-data-path").set_value(str(text)).run()
        assert not app.exception
        assert app.button(key="start").disabled == bool(app.error)
        return app.error[0].value.replace("\\", "") if app.error else ""

    assert (
        said()
        == f"base.data.path={str(text)!r}: no such file or folder; give a UTF-8 text file, or a folder of them"
    )
    text.write_bytes(b"\0" * 10_000)
    assert "looks binary" in said()
    text.write_text("too short", "utf-8")
    assert "holds 9 bytes; sequence_length=" in said()
    text.write_text("long enough " * 1_000, "utf-8")
    assert said() == "" and draft(app)["base"]["data"]["path"] == str(text)


def test_many_texts_are_looked_at_once(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("long enough " * 1_000, "utf-8")
    looked: list[str | None] = []
    monkeypatch.setattr("workbench.home.inputs.check_texts", lambda config: looked.append(config.data.path))
    app = visit("tune", view="new")
    app.text_input(key="new-data-path").set_value(str(tmp_path / "text")).run()
    app.number_input(key="new-trials").set_value(5).run()
    assert looked.count(str(tmp_path / "text")) == 1


def test_what_the_command_line_refuses_is_shown_on_the_page(home: Path) -> None:
    full_home(home)
    app = visit("tune", view="new")
    app.text_input(key="new-name").set_value("quickstart").run()
    app.button(key="start").click().run(timeout=60)
    assert "quickstart" in app.error[0].value
    assert not app.exception
    assert jobs.all_jobs(home)[0].arguments[0] == "tune"


def test_a_home_that_cannot_be_written_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(home: Path) -> Path:
        raise InputError(
            "home", str(home), "cannot be written (No space left on device); give another --home"
        )

    monkeypatch.setattr(jobs, "new_folder", refuse)
    app = visit("tune", view="new")
    app.button(key="start").click().run()
    assert "No space left on device" in app.error[0].value
    assert not app.exception


def test_buttons_leave_a_command_and_show_its_answer(home: Path) -> None:
    full_home(home)
    app = visit("tune")
    app.button(key="pause").click().run()
    assert [(command["command"], command["by"]) for command in commands(home)] == [("pause", "page")]
    assert "pause: sent, waiting" in texts(app)
    answer(home, commands(home)[0], accepted=True, reason="no further trial starts until resume")
    assert "pause: accepted — no further trial starts until resume" in texts(app.run())


def test_a_paused_study_can_be_resumed(home: Path) -> None:
    full_home(home)
    status = run_folder.read_json(home / STUDY / "status.json") or {}
    run_folder.write_json(home / STUDY / "status.json", status | {"state": "paused"})
    app = visit("tune")
    app.button(key="resume").click().run()
    assert commands(home)[0]["command"] == "resume"


def test_a_point_by_hand_is_sent_whole_and_its_refusal_shown(home: Path) -> None:
    full_home(home)
    app = visit("tune")
    app.selectbox(key="by-hand-quickstart-parallel.tp").set_value(2)
    app.button(key="enqueue-send").click().run()
    sent = commands(home)[0]
    assert sent["command"] == "enqueue"
    assert (sent["arguments"]["parallel.tp"], sent["arguments"]["parallel.dp"]) == (2, 2)
    answer(home, sent, accepted=False, reason="is trial 7 already")
    assert "refused — is trial 7 already" in texts(app.run())


def test_a_refusal_looks_like_one_and_stays_until_it_was_read(home: Path) -> None:
    """However much was asked for since."""
    full_home(home)
    app = visit("tune")
    app.button(key="enqueue-send").click().run()
    refused = commands(home)[0]
    answer(home, refused, accepted=False, reason="is *trial* 4 already")
    for _ in range(6):
        app.button(key="pause").click().run()
    for sent in commands(home)[1:]:
        answer(home, sent, accepted=True, reason="")
    app.run()
    assert [one.value.replace("\\", "") for one in app.error] == [
        f"enqueue {words.point(refused['arguments'])}: refused — is *trial* 4 already"
    ]
    assert len([one for one in app.caption if "pause: accepted" in one.value]) == SHOWN_ANSWERS
    app.button(key=f"answer-command-{refused['id']}-read").click().run()
    assert not app.error
    assert "refused" not in texts(app)


def test_a_study_that_could_not_be_continued_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_home(home)
    status = run_folder.read_json(home / STUDY / "status.json") or {}
    run_folder.write_json(home / STUDY / "status.json", status | {"state": "ended"})
    job = SimpleNamespace(id="a-job", alive=False, log=home / "log")
    job.log.write_text("error: torch: is not installed here\n", "utf-8")
    monkeypatch.setattr(jobs, "start", lambda home, arguments: job)
    monkeypatch.setattr(jobs, "all_jobs", lambda _: [job])
    app = visit("tune")
    assert not app.error
    app.button(key="continue").click().run()
    assert "torch: is not installed here" in texts(app.run()) and app.error


def test_a_single_trial_that_is_ticked_offers_its_run(home: Path) -> None:
    full_home(home)
    run = next(str(row.run) for row in trial_table.study("quickstart").result.trials if row.run)
    for page, key in (("tune", "tune-trial-table"), ("runs", "study-trial-table")):
        app = visit(page, **{"study": "quickstart", "id": "quickstart"})
        app.session_state[f"{key}-ticked"] = [run]
        app.run()
        (link,) = [one.proto for one in app.get("page_link") if one.proto.label == f"Open {run}"]
        assert (link.page, link.query_string) == ("runs", f"id={run}")
        app.session_state[f"{key}-ticked"] = [run, run]
        app.run()
        assert not [one for one in app.get("page_link") if one.proto.label.startswith("Open")]


def test_a_width_of_sharding_can_be_sent_by_hand(home: Path) -> None:
    full_home(home)
    journal = home / STUDY / "journal.jsonl"
    turned = '"parallel.zero_stage": [0, 3]'
    lines = journal.read_text().replace(turned, f'{turned}, "parallel.shard_ranks": [null, 2]')
    journal.write_text(lines)
    app = visit("tune")
    width = app.selectbox(key="by-hand-quickstart-parallel.shard_ranks")
    assert (width.options, width.value) == (["all", "2"], None)
    app.selectbox(key="by-hand-quickstart-parallel.zero_stage").set_value(3)
    width.set_value(2)
    app.button(key="enqueue-send").click().run()
    assert commands(home)[0]["arguments"]["parallel.shard_ranks"] == 2


def test_a_point_that_cannot_run_is_refused_at_once(home: Path) -> None:
    full_home(home)
    app = visit("tune")
    app.selectbox(key="by-hand-quickstart-parallel.tp").set_value(4)
    app.selectbox(key="by-hand-quickstart-parallel.pp").set_value(4)
    app.button(key="enqueue-send").click().run()
    assert "4 ranks" in app.error[0].value
    assert commands(home) == []


def test_an_interrupted_study_can_be_continued(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_home(home)
    status = run_folder.read_json(home / STUDY / "status.json") or {}
    dead = replace(ownership.this_process(), start_time=1.0)
    run_folder.write_json(home / STUDY / "status.json", status | {"owner": asdict(dead)})
    started: list[list[str]] = []

    def start(home: Path, arguments: list[str]) -> jobs.Job:
        started.append(arguments)
        return jobs.Job("a-job", home, tuple(arguments), 0.0, dead)

    monkeypatch.setattr(jobs, "start", start)
    app = visit("tune")
    assert not [button for button in app.button if button.key in ("pause", "stop")]
    app.button(key="continue").click().run()
    assert not app.exception
    assert started == [["tune", str(home / STUDY / "study.json")]]


def test_what_was_steered_is_shown_with_who_and_the_answer(home: Path) -> None:
    full_home(home)
    asked = {"id": "1", "command": "narrow", "arguments": {"batch.micro_batch": "1,2"}, "by": "somebody"}
    journal = Journal(home / STUDY / "journal.jsonl")
    journal.append("command", **asked, accepted=True, reason="the search is limited to batch.micro_batch: 1, 2",
                   changes={"limits": {"batch.micro_batch": [1, 2]}})  # fmt: skip
    journal.close()
    shown = texts(visit("tune", view="watch", study="quickstart"))
    assert "Sampler" in shown
    assert "the search is limited to" in shown


def test_every_budget_can_be_steered_and_a_space_opened(home: Path) -> None:
    full_home(home)
    app = visit("tune")
    assert (
        "budget: 12 trials" in texts(app) and "confirm" not in texts(app).split("budget: ")[1].split("\n")[0]
    )
    assert app.button(key="steer-budget").disabled
    app.number_input(key="steer-gpu-hours-quickstart").set_value(1.5)
    app.number_input(key="steer-seconds-quickstart").set_value(600.0)
    app.number_input(key="steer-confirm-runners-up-quickstart").set_value(1).run()
    app.button(key="steer-budget").click().run()
    app.selectbox(key="steer-knob").set_value("batch.micro_batch").run()
    app.multiselect(key="steer-values-batch.micro_batch").set_value([4]).run()
    app.button(key="steer-widen").click().run()
    assert sorted((sent["command"], sent["arguments"]) for sent in commands(home)) == [
        ("budget", {"seconds": 600.0, "gpu_hours": 1.5, "confirm_runners_up": 1}),
        ("widen", {"batch.micro_batch": [4]}),
    ]


def test_a_trial_that_runs_is_ended_from_the_page(home: Path) -> None:
    full_home(home)
    app = visit("tune")
    assert [button.label for button in app.button if button.label.startswith("End trial")] == ["End trial 7"]
    assert not [button for button in app.button if button.key == "steer-check"], "it tunes no run as it goes"
    app.button(key="steer-kill-7").click().run()
    assert [(sent["command"], sent["arguments"]) for sent in commands(home)] == [("kill", {"trial": 7})]


def test_the_leader_s_loss_is_taken_again_where_a_run_is_tuned_as_it_goes(home: Path) -> None:
    full_home(home)
    folder = home / "studies" / write_live(home)
    status = run_folder.read_json(folder / run_folder.STATUS) or {}
    going = {"state": "running", "owner": asdict(ownership.this_process()), "updated_unix": time.time()}
    run_folder.write_json(folder / run_folder.STATUS, status | going)
    app = visit("tune", view="watch", study=folder.name)
    app.button(key="steer-check").click().run()
    assert not app.exception
    (sent,) = (json.loads(path.read_text("utf-8")) for path in (folder / "commands").glob("*.json"))
    assert (sent["command"], sent["arguments"]) == ("check", {})


def test_a_study_that_turns_nothing_has_nothing_to_limit(home: Path) -> None:
    full_home(home)
    journal = home / STUDY / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[0]["file"]["space"] = {}
    journal.write_text("\n".join(map(json.dumps, lines[:1])) + "\n")
    app = visit("tune", view="watch", study="quickstart")
    assert not app.exception
    assert "This study turns nothing" in texts(app)
    assert [button for button in app.button if button.key == "steer-budget"]
