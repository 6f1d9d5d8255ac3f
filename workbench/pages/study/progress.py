"""Watching a study: how it stands, its trials as they arrive, and the buttons that steer it."""

from __future__ import annotations

import time
from functools import partial

import streamlit as st

from tuning.report.study_result import StudyResult
from tuning.storage import study_folder
from tuning.storage.commands import send
from tuning.storage.study_folder import StudyView
from workbench.analysis.studies import StudySnapshot
from workbench.figures import study as study_figures
from workbench.figures.study import importance_series
from workbench.home import control
from workbench.pages.navigation import PAGES
from workbench.pages.study import details, live, steering
from workbench.pages.widgets import forms, trial_table
from workbench.pages.widgets.common import (
    answer_until_read,
    badge,
    button_pressed,
    draw_guarded,
    home,
    nothing_yet,
    redraw_on_change,
    restore_choice,
    save_choice,
    say_gone,
    study_rows,
)
from workbench.pages.widgets.plotly_chart import chart
from workbench.pages.widgets.trial_table import study, trial_chart, trials_table
from workbench.services import jobs
from workbench.text import study as study_text
from workbench.text import words
from workbench.text.study import all_rows

REFRESH_SECONDS = 1.0
SHOWN_ANSWERS = 4
#: An owner looks for commands many times a second; after this long something is wrong.
PATIENCE_SECONDS = 15.0


def watch() -> None:
    """Chooser, the part that moves, and the form for a point by hand."""
    names = [row.name for row in study_rows()]
    redraw_on_change(lambda: [(row.name, row.state) for row in study_rows()])
    if not names:
        say_gone("study")
        nothing_yet("There is no study yet.", "workbench tune examples/quickstart.yaml")
        return
    _go_on_with_the_latest(names)
    restore_choice("study", names)
    name = st.selectbox("Study", names, key="study", width=420)
    save_choice("study", name)
    st.fragment(_moving, run_every=REFRESH_SECONDS)(name)
    trial_table.download(name, "tune-trials-csv")
    draw_guarded(lambda: steering.steer_form(study(name).view))
    draw_guarded(lambda: steering.enqueue_form(study(name).view))


def _go_on_with_the_latest(names: list[str]) -> None:
    """A study that was being watched, or is linked to, may go on under another name. An address may hold anything:
    what is no study of this home becomes no path.
    """
    for place in (st.session_state, st.query_params):
        name = place.get("study")
        if name and name not in names:
            folders = (folder for folder in study_folder.every_study(home()) if folder.name == name)
            if (folder := next(folders, None)) is not None:
                place["study"] = study_folder.latest(folder).name


def _moving(name: str) -> None:
    draw_guarded(lambda: _draw(name))


def _draw(name: str) -> None:
    snapshot = study(name)
    _headline(snapshot)
    _answers(snapshot.view)
    result = snapshot.result
    steering.course(result)
    details.headline(snapshot, "tune")
    live.section(snapshot)
    chart_column, importance_column = st.columns([2.1, 1])
    with chart_column:
        trial_chart(snapshot, "tune-trials")
    with importance_column:
        importance = importance_series(result.importance or None)
        chart(
            study_figures.importance(importance, words.short, name),
            "tune-importance",
            "Importance of each knob",
        )
    st.markdown("**Trials**")
    rows = [row for row in all_rows(result) if row.confirms is None or row.failed]
    table_rows = trial_table.select_rows(rows, "tune-trial-table")
    trials_table(table_rows, snapshot.acts, "tune-trial-table", result.aim)


def _headline(snapshot: StudySnapshot) -> None:
    view, status = snapshot.view, snapshot.view.status
    badges, buttons = st.columns([2.2, 1], vertical_alignment="center")
    with badges.container(horizontal=True, vertical_alignment="center", key="tune-badges"):
        badge(view.state)
        st.markdown(f"**{words.code(view.name)}**", width="content")
        if view.alive and status.phase:
            st.badge(status.phase, icon=":material/search:", color="violet")
        for run in _runs_now(view):
            st.page_link(PAGES["Live"], label=run, icon=":material/monitoring:", query_params={"run": run})
        if words_of_crew := _controllers_text(view):
            st.caption(words_of_crew)
        if snapshot.result.optuna_lag:
            st.caption(snapshot.result.optuna_lag)
    done_count, total = snapshot.result.trials_done, snapshot.result.trials_total
    with buttons.container(horizontal=True, horizontal_alignment="right", key="tune-buttons"):
        _buttons(view, done_count < total, snapshot.result)
    rounds = snapshot.result.confirmation_rounds
    if view.alive and status.phase == "confirm" and rounds and rounds.allowed:
        st.progress(min(1.0, (rounds.used or 0.0) / rounds.allowed), study_text.confirmation_progress(rounds))
    else:
        st.progress(min(1.0, done_count / total) if total else 0.0)


def _runs_now(view: StudyView) -> list[str]:
    """Runs of this home that the study's controllers measure now."""
    if not view.alive:
        return []
    running = [trial.run for trial in view.journal.under_way if trial.run and (home() / trial.run).is_dir()]
    return running or ([view.status.current_run] if view.status.current_run else [])


def _controllers_text(view: StudyView) -> str:
    """Who works on a study and at what, where they are several."""
    members = view.status.controllers
    return study_text.controllers(members) if view.alive and len(members) > 1 else ""


def _buttons(view: StudyView, has_trials_left: bool, result: StudyResult) -> None:
    if view.state == "interrupted" or (view.state == "ended" and has_trials_left):
        if button_pressed(st.button, "Continue", "continue", icon=":material/play_arrow:", type="primary"):
            _continue(view)
        return
    rounds = result.confirmation_rounds
    if view.state == "ended" and rounds and rounds.outlook:
        label = f"Decide, {words.estimate(rounds.outlook.seconds)}"
        help_text = "Go on measuring the leaders until it is probably clear which is faster."
        if button_pressed(st.button, label, "decide", icon=":material/balance:", help=help_text):
            _continue(view, f"confirm_repeats={rounds.outlook.confirm_repeats}")
    if view.state == "paused":
        if button_pressed(st.button, "Resume", "resume", icon=":material/play_arrow:", type="primary"):
            _ask(view, "resume")
    elif button_pressed(
        st.button, "Pause", "pause", icon=":material/pause:", disabled=view.state != "running"
    ):
        _ask(view, "pause")
    if button_pressed(st.button, "Stop", "stop", icon=":material/stop:", disabled=not view.alive):
        _ask(view, "stop")


def _ask(view: StudyView, command: str) -> None:
    """Leave a command in the study's folder; the answer comes with a later look."""
    sent_key = send(view.folder, command, by="page")
    forms.remember_command(view.name, sent_key, command)


def _continue(view: StudyView, *changes: str) -> None:
    """A study goes on from its journal when its file is given again, with ``changes`` as ``KEY=VALUE``."""
    job = jobs.start(home(), ["tune", str(view.folder / study_folder.STUDY), *changes])
    st.session_state["job"] = (view.name, job.id)


def _answers(view: StudyView) -> None:
    """What became of the commands of this browser, the newest first: all refusals until they are read, and the last few
    of the others.
    """
    _job_failure(view)
    pending_commands, answers = forms.pending_commands(view.name), view.journal.answers
    refused_commands = [
        pending
        for pending in pending_commands
        if (answer := answers.get(pending[0])) is not None and not answer.accepted
    ]
    for key, description, _ in refused_commands:
        text = ": refused — ".join(part for part in (description, answers[key].reason) if part)
        answer_until_read(f"command-{key}", text, partial(forms.forget_command, key), is_refused=True)
    other_commands = [pending for pending in pending_commands if pending not in refused_commands]
    for key, description, sent_unix in other_commands[:SHOWN_ANSWERS]:
        _answer(view, key, words.escape(description), time.time() - sent_unix)


def _answer(view: StudyView, key: str, command: str, waited_seconds: float) -> None:
    """Of a command that was not refused."""
    answer = view.journal.answers.get(key)
    if answer is None:
        _show_unanswered(view, command, waited_seconds)
    else:
        reason = f" — {words.escape(answer.reason)}" if answer.reason else ""
        st.caption(f":material/check: {command}: accepted{reason}")


def _show_unanswered(view: StudyView, command: str, waited_seconds: float) -> None:
    if not control.has_active_controller(view):
        st.caption(
            f":material/schedule: {command}: no process runs this study; it is answered once the study is continued"
        )
    elif waited_seconds > PATIENCE_SECONDS:
        st.caption(
            f":material/schedule: {command}: no answer for {waited_seconds:.0f} s; whoever runs the study may be busy"
        )
    else:
        st.caption(f":material/schedule: {command}: sent, waiting for the answer")


def _job_failure(view: StudyView) -> None:
    """The last line of a process that this browser started for the study, if it ended badly."""
    name, job_id = st.session_state.get("job") or ("", "")
    job = jobs.find(home(), job_id) if name == view.name else None
    if job is None or job.alive or view.alive:
        return
    problem = jobs.last_error(job) if view.state == "interrupted" else jobs.refusal(job)
    if problem:
        st.error(words.escape(problem), icon=":material/error:")
