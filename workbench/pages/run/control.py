"""Steering of runs: one is started, stopped, asked for a snapshot; old ones make room. Each control shows what it did.

What was refused stays until somebody says that it was read.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import streamlit as st

from engine.config.errors import InputError, WorkbenchError
from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig
from engine.run import run_folder
from tuning.storage.commands import send
from workbench.export import importing
from workbench.home import control, maintenance
from workbench.home.inputs import assignments, check_tree, read_tree, set_dotted
from workbench.home.maintenance import PruneResult
from workbench.home.resolve import Target
from workbench.home.runs import RunView
from workbench.pages.run.live.commands import SNAPSHOT
from workbench.pages.widgets import forms, gauge
from workbench.pages.widgets.common import (
    button_pressed,
    home,
    icon_note,
    limit_options,
    may_fill_in,
    remember,
    run_rows,
    wrong_value,
)
from workbench.services import jobs
from workbench.text import words

USUAL, FILE = "the usual values", "another trainer's file"
#: A page waits no longer for the ranks; what they write is listed below by itself.
_PATIENCE_SECONDS = 2.0
_CHANGES = "parallel.dp=2\nparallel.tp=2\ntrain.steps=50"
STARTED = "started-run"
PRUNING = "pruning-job"
DRY_RUN = "dry-run-job"
_DRY_LINES = 60
_DRY_HELP = "Builds its ranks without devices: is it legal, what must they hold? As `workbench predict FILE --dry-run`."
_WOULD_GO = "prune-would-go"


def start_run() -> None:
    """A popover: what to begin with, what to change, what that comes to, and the button."""
    with st.popover("Start a run", icon=":material/play_arrow:", key="run-new"):
        if not may_fill_in():
            return
        rows = run_rows()
        names = [USUAL, FILE, *limit_options("run-new-from", [row.id for row in rows])[:50]]
        origin = st.selectbox("Begin with the values of", names, key="run-new-from", width=420)
        imported = _imported_tree() if origin == FILE else None
        text = st.text_area(
            "Changes, KEY=VALUE, one a line",
            key="run-new-changes",
            placeholder=_CHANGES,
            height=120,
            width=420,
        )
        config, problem = _check_config(origin, text or "", imported)
        if config is None:
            wrong_value(problem)
        else:
            st.caption(f":material/check: Legal: {words.escape(_meaning(config))}.")
            gauge.draw(config)
        button_look = {"icon": ":material/play_arrow:", "type": "primary", "disabled": config is None}
        with st.container(horizontal=True, key="run-new-buttons"):
            if button_pressed(st.button, "Start", "run-new-start", **button_look) and config is not None:
                _start(config)
                st.rerun()
            dry = {"icon": ":material/fact_check:", "disabled": config is None, "help": _DRY_HELP}
            if button_pressed(st.button, "Dry run", "run-new-dry", **dry) and config is not None:
                st.session_state[DRY_RUN] = jobs.start(
                    home(), ["predict", str(_file_of(config)), "--dry-run"]
                ).id
                st.rerun()


def _imported_tree() -> dict[str, Any] | None:
    result = forms.imported_file("run-new")
    return None if result is None else importing.tree(result.values)


def _check_config(origin: str, text: str, imported: dict[str, Any] | None) -> tuple[RunConfig | None, str]:
    """By the rules that hold before ranks start, as far as they can be checked without running anybody's code: this
    is done at each keystroke. The values go into a file, never into a command.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    try:
        if origin == FILE:
            if imported is None:
                return None, "give a file that can be read"
            tree = imported
        else:
            tree = {} if origin == USUAL else read_tree(home() / origin / run_folder.CONFIG, "config")
        for key, value in assignments(lines, "changes").items():
            set_dotted(tree, key, value)
        return check_tree(tree, import_workload=False), ""
    except WorkbenchError as error:
        return None, str(error)


def _meaning(config: RunConfig) -> str:
    degrees = config.parallel.model_dump()
    ranks = words.layout({name: degrees[name] for name in ("dp", "tp", "pp", "cp", "ep", "zero_stage")})
    step_count, limit = config.train.known_steps, config.train.seconds
    steps = (
        f"the steps of {words.seconds(limit)}" if step_count is None else words.several(step_count, "steps")
    )
    summary = f"{ranks}, {steps} of {words.several(config.batch.global_batch, 'sequences')}"
    if is_decoder(config.model):
        return summary
    return f"{summary}; {config.model.workload} is looked at once the run starts"


def _file_of(config: RunConfig) -> Path:
    """Where a job finds it."""
    file = jobs.new_folder(home()) / "config.json"
    file.write_text(config.dumps(), "utf-8")
    return file


def _start(config: RunConfig) -> None:
    job = jobs.start(home(), ["train", str(_file_of(config))])
    st.session_state[STARTED] = job.id, time.time()


def follow_start() -> None:
    """How the run that this browser started began: its name once it has one, or why it did not."""
    start = st.session_state.get(STARTED)
    if start is None:
        return
    job = jobs.find(home(), start[0])
    if job is None:
        return
    run_id = next((row.id for row in run_rows() if row.owner and row.owner.pid == job.pid), None)
    if run_id is not None:
        st.session_state.pop(STARTED)
        remember("run-new", f"{run_id} is running.", is_refused=False)
        st.session_state["id"] = run_id
        st.rerun()
    elif not job.alive:
        st.session_state.pop(STARTED)
        remember("run-new", f"The run did not start: {jobs.last_error(job)}", is_refused=True)
        st.rerun()
    else:
        st.fragment(_wait, run_every=1.0)()


def dry_run_result() -> None:
    """What the dry run that this browser asked for found, until somebody says that it was read."""
    if (job := _ended_job(DRY_RUN, "The ranks are built without devices.")) is None:
        return
    with st.container(border=True, key="run-dry-shown"):
        problem = jobs.refusal(job)
        if problem is None:
            st.markdown("**Dry run**: it is legal, and this is what its ranks must hold.")
            st.code("\n".join(jobs.last_lines(job.log, _DRY_LINES)), language=None)
        else:
            st.error(words.escape(f"Dry run: {problem}"), icon=":material/block:")
        st.button("OK", key="run-dry-read", on_click=lambda: st.session_state.pop(DRY_RUN, None))


def _wait() -> None:
    st.caption(":material/hourglass_top: The run is being started; it appears in the list by itself.")
    st.rerun() if _has_begun() else None


def _has_begun() -> bool:
    start = st.session_state.get(STARTED)
    job = jobs.find(home(), start[0]) if start else None
    pids = [row.owner.pid for row in run_rows() if row.owner]
    return job is None or not job.alive or job.pid in pids


def steer(view: RunView) -> None:
    """Buttons of a run that goes on; what became of the last click is kept as the answer of ``run-ID``."""
    target = Target("run", view.id, view.folder)
    help_text = "Ends after its next step, in good order; it can be continued where checkpoints are kept."
    if button_pressed(st.button, "Stop", "run-stop", icon=":material/stop:", help=help_text):
        _ask(target, "stop")
    help_text = "Each rank writes what is in its memory, with who asked for it, over the next step."
    if button_pressed(st.button, "Memory snapshot", "run-snapshot", icon=":material/memory:", help=help_text):
        _ask(target, SNAPSHOT)


def _ask(target: Target, action: str) -> None:
    """The answer of the command line's own function, kept until something else is asked or it was read."""
    try:
        if action == SNAPSHOT:
            send(target.folder, action, control.arguments_of(target, action, []), by="page")
            text, is_refused = "A snapshot was asked for; how far it is stands under Host.", False
        else:
            reply = control.ask(target, action, {}, sender="page", patience=_PATIENCE_SECONDS)
            text, is_refused = f"{reply.text}.", reply.accepted is False
    except InputError as error:
        text, is_refused = str(error), True
    remember(f"run-{target.id}", text, is_refused=is_refused)


def make_room() -> None:
    """A popover: how old, what would go, and then the button; only records and logs of runs that ended go."""
    with st.popover("Make room", icon=":material/delete_sweep:", key="prune"):
        if not may_fill_in():
            return
        days = st.number_input(
            "Runs that ended more than so many days ago", 1, 10_000, 30, key="prune-days", width=420
        )
        with_checkpoints = st.checkbox(
            "Their checkpoints, too, which cannot be made again", key="prune-checkpoints"
        )
        limits = (int(days), bool(with_checkpoints))
        arguments = [
            "prune",
            "--older-than",
            f"{int(days)}d",
            *(["--checkpoints"] if with_checkpoints else []),
        ]
        if button_pressed(st.button, "Show what would go", "prune-look", icon=":material/search:"):
            st.session_state[_WOULD_GO] = (
                limits,
                maintenance.prune(
                    home(), maintenance.limits(f"{int(days)}d", None, with_checkpoints), apply=False
                ),
            )
        limits_shown, removal = st.session_state.get(_WOULD_GO, (None, None))
        if removal is not None and limits_shown == limits:
            _remove(removal, arguments)


def _remove(removal: PruneResult, arguments: list[str]) -> None:
    size = f"{removal.freed_bytes / 1e6:,.1f} MB"
    st.caption(f"{size} of {words.several(len(removal.runs), 'runs')} would go. Results stay.")
    label = f"Remove {size}"
    if button_pressed(st.button, label, "prune-apply", icon=":material/delete:", disabled=not removal.runs):
        st.session_state.pop(_WOULD_GO)
        st.session_state[PRUNING] = jobs.start(home(), [*arguments, "--apply"]).id
        st.rerun()


def pruning_result() -> None:
    """How the removal that this browser asked for ended."""
    if (job := _ended_job(PRUNING, "Old records are being removed.")) is None:
        return
    st.session_state.pop(PRUNING)
    lines = jobs.last_lines(job.log) or ["it ended without any output"]
    is_refused = any(line.startswith(("error:", "note:")) for line in lines)
    remember("prune", lines[-1].removeprefix("error: "), is_refused=is_refused)
    st.rerun()


def _ended_job(key: str, caption: str) -> jobs.Job | None:
    """The job that this browser keeps under a key, once it has ended; until then the page says that it goes on."""
    job = jobs.find(home(), st.session_state.get(key))
    if job is None or not job.alive:
        return job
    st.fragment(_watch, run_every=1.0)(job.id, caption)
    return None


def _watch(job_id: str, caption: str) -> None:
    icon_note("hourglass_top", caption)
    job = jobs.find(home(), job_id)
    if job is None or not job.alive:
        st.rerun()
