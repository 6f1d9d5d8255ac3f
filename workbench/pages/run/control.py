"""Steering of runs: one is started, stopped, asked for a snapshot; old ones make room. Each control shows what it did.

What was refused stays until somebody says that it was read.
"""

from __future__ import annotations

import time

import streamlit as st

from engine.config.errors import InputError, WorkbenchError
from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig
from engine.run import run_folder
from tuning.storage.commands import send
from workbench.home import control, maintenance
from workbench.home.inputs import assignments, check_tree, read_tree, set_dotted
from workbench.home.maintenance import PruneResult
from workbench.home.resolve import Target
from workbench.home.runs import RunView
from workbench.pages.run.live.commands import SNAPSHOT
from workbench.pages.widgets import gauge
from workbench.pages.widgets.common import (
    button_pressed,
    home,
    limit_options,
    may_fill_in,
    remember,
    run_rows,
    wrong_value,
)
from workbench.services import jobs
from workbench.text import words

USUAL = "the usual values"
#: A page waits no longer for the ranks; what they write is listed below by itself.
_PATIENCE_SECONDS = 2.0
_CHANGES = "parallel.dp=2\nparallel.tp=2\ntrain.steps=50"
STARTED = "started-run"
PRUNING = "pruning-job"
_WOULD_GO = "prune-would-go"


def start_run() -> None:
    """A popover: what to begin with, what to change, what that comes to, and the button."""
    with st.popover("Start a run", icon=":material/play_arrow:", key="run-new"):
        if not may_fill_in():
            return
        rows = run_rows()
        names = [USUAL, *limit_options("run-new-from", [row.id for row in rows])[:50]]
        chosen = st.selectbox("Begin with the values of", names, key="run-new-from", width=420)
        text = st.text_area(
            "Changes, KEY=VALUE, one a line",
            key="run-new-changes",
            placeholder=_CHANGES,
            height=120,
            width=420,
        )
        config, problem = _check_config(chosen, text or "")
        if config is None:
            wrong_value(problem)
        else:
            st.caption(f":material/check: Legal: {words.escape(_meaning(config))}.")
            gauge.draw(config)
        look = {"icon": ":material/play_arrow:", "type": "primary", "disabled": config is None}
        if button_pressed(st.button, "Start", "run-new-start", **look) and config is not None:
            _start(config)
            st.rerun()


def _check_config(chosen: str, text: str) -> tuple[RunConfig | None, str]:
    """By the rules that hold before ranks start, as far as they can be checked without running anybody's code: this
    is done at each keystroke. The values go into a file, never into a command.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    try:
        tree = {} if chosen == USUAL else read_tree(home() / chosen / run_folder.CONFIG, "config")
        for key, value in assignments(lines).items():
            set_dotted(tree, key, value)
        return check_tree(tree, import_workload=False), ""
    except WorkbenchError as error:
        return None, str(error)


def _meaning(config: RunConfig) -> str:
    degrees = config.parallel.model_dump()
    ranks = words.layout({name: degrees[name] for name in ("dp", "tp", "pp", "cp", "ep", "zero_stage")})
    known, limit = config.train.known_steps, config.train.seconds
    steps = f"the steps of {words.seconds(limit)}" if known is None else words.several(known, "steps")
    told = f"{ranks}, {steps} of {words.several(config.batch.global_batch, 'sequences')}"
    if is_decoder(config.model):
        return told
    return f"{told}; {config.model.workload} is looked at once the run starts"


def _start(config: RunConfig) -> None:
    folder = jobs.new_folder(home())
    file = folder / "config.json"
    file.write_text(config.dumps(), "utf-8")
    job = jobs.start(home(), ["train", str(file)])
    st.session_state[STARTED] = job.id, time.time()


def follow_start() -> None:
    """How the run that this browser started began: its name once it has one, or why it did not."""
    begun = st.session_state.get(STARTED)
    if begun is None:
        return
    job = jobs.find(home(), begun[0])
    if job is None:
        return
    mine = next((row.id for row in run_rows() if row.owner and row.owner.get("pid") == job.pid), None)
    if mine is not None:
        st.session_state.pop(STARTED)
        remember("run-new", f"{mine} is running.", refused=False)
        st.session_state["id"] = mine
        st.rerun()
    elif not job.alive:
        st.session_state.pop(STARTED)
        remember("run-new", f"The run did not start: {jobs.last_error(job)}", refused=True)
        st.rerun()
    else:
        st.fragment(_wait, run_every=1.0)()


def _wait() -> None:
    st.caption(":material/hourglass_top: The run is being started; it appears in the list by itself.")
    st.rerun() if _has_begun() else None


def _has_begun() -> bool:
    begun = st.session_state.get(STARTED)
    job = jobs.find(home(), begun[0]) if begun else None
    pids = [row.owner.get("pid") for row in run_rows() if row.owner]
    return job is None or not job.alive or job.pid in pids


def steer(view: RunView) -> None:
    """Buttons of a run that goes on; what became of the last click is kept as the answer of ``run-ID``."""
    target = Target("run", view.id, view.folder)
    about = "Ends after its next step, in good order; it can be continued where checkpoints are kept."
    if button_pressed(st.button, "Stop", "run-stop", icon=":material/stop:", help=about):
        _ask(target, "stop")
    about = "Each rank writes what is in its memory, with who asked for it, over the next step."
    if button_pressed(st.button, "Memory snapshot", "run-snapshot", icon=":material/memory:", help=about):
        _ask(target, SNAPSHOT)


def _ask(target: Target, action: str) -> None:
    """The answer of the command line's own function, kept until something else is asked or it was read."""
    try:
        if action == SNAPSHOT:
            send(target.folder, action, control.arguments_of(target, action, []), by="page")
            text, refused = "A snapshot was asked for; how far it is stands under Host.", False
        else:
            reply = control.ask(target, action, {}, by="page", patience=_PATIENCE_SECONDS)
            text, refused = f"{reply.text}.", reply.accepted is False
    except InputError as error:
        text, refused = str(error), True
    remember(f"run-{target.id}", text, refused=refused)


def make_room() -> None:
    """A popover: how old, what would go, and then the button; only records and logs of runs that ended go."""
    with st.popover("Make room", icon=":material/delete_sweep:", key="prune"):
        if not may_fill_in():
            return
        days = st.number_input(
            "Runs that ended more than so many days ago", 1, 10_000, 30, key="prune-days", width=420
        )
        too = st.checkbox("Their checkpoints, too, which cannot be made again", key="prune-checkpoints")
        asked = (int(days), bool(too))
        arguments = ["prune", "--older-than", f"{int(days)}d", *(["--checkpoints"] if too else [])]
        if button_pressed(st.button, "Show what would go", "prune-look", icon=":material/search:"):
            st.session_state[_WOULD_GO] = (
                asked,
                maintenance.prune(home(), maintenance.limits(f"{int(days)}d", None, too), apply=False),
            )
        shown, would = st.session_state.get(_WOULD_GO, (None, None))
        if would is not None and shown == asked:
            _remove(would, arguments)


def _remove(would: PruneResult, arguments: list[str]) -> None:
    size = f"{would.freed_bytes / 1e6:,.1f} MB"
    st.caption(f"{size} of {words.several(len(would.runs), 'runs')} would go. Results stay.")
    label = f"Remove {size}"
    if button_pressed(st.button, label, "prune-apply", icon=":material/delete:", disabled=not would.runs):
        st.session_state.pop(_WOULD_GO)
        st.session_state[PRUNING] = jobs.start(home(), [*arguments, "--apply"]).id
        st.rerun()


def pruning_result() -> None:
    """How the removal that this browser asked for ended."""
    job = jobs.find(home(), st.session_state.get(PRUNING))
    if job is None:
        return
    if job.alive:
        st.fragment(_watch_job, run_every=1.0)(job.id)
        return
    st.session_state.pop(PRUNING)
    lines = jobs.last_lines(job.log) or ["it ended without any output"]
    refused = any(line.startswith(("error:", "note:")) for line in lines)
    remember("prune", lines[-1].removeprefix("error: "), refused=refused)
    st.rerun()


def _watch_job(job_id: str) -> None:
    st.caption(":material/hourglass_top: Old records are being removed.")
    job = jobs.find(home(), job_id)
    if job is None or not job.alive:
        st.rerun()
