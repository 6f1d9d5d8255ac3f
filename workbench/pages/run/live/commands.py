"""What can be asked of a run while it goes: values that change, a trace of its next steps, and what ranks write on
request, each with how far it is and what came of it.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from engine.config.errors import InputError
from engine.config.knobs.catalogue import live_parts
from engine.config.validation import live_changes
from engine.run import answers as run_orders
from engine.run import commands, run_folder
from engine.run.answers import PendingOrder
from tuning.storage.commands import send
from tuning.storage.study_folder import STUDIES
from workbench.home import control, traces
from workbench.home.resolve import Target
from workbench.home.runs import RunView
from workbench.home.traces import Trace
from workbench.pages.navigation import PAGES
from workbench.pages.widgets.common import (
    answer_of_click,
    button_pressed,
    draw_guarded,
    home,
    may_fill_in,
    remember,
    table,
)
from workbench.services import jobs
from workbench.services.study_of_run import PREFIX
from workbench.text import words

REFRESH_SECONDS = 1.0
SNAPSHOT = "snapshot"
_COPY = (
    "A copy is kept in memory: weights, optimizer and values as they are now, to return to if the change does harm. "
    "With a copy, and back to it, the value may be empty. (`set`, `try` and `back` of `workbench control`)"
)
#: Orders that may change values, by what they are called here.
_HOW = {
    commands.SET: "change",
    commands.TRY: "keep a copy, then change",
    commands.BACK: "back to the copy, then change",
}
_MORE = "KEY=VALUE KEY=VALUE"
#: Before each key: a value may be a list, with spaces in it.
_ASSIGNMENT = re.compile(r"\s+(?=[\w.]+=)")
_TOGETHER = "They change at the same step as the one before, or none of them does."
_LOSS_AFTER = (
    "With a copy, or back to it: the loss on held-out text is taken so many steps later. (`steps=N`)"
)
_LOSS_TOLD = (
    "After the steps that were asked for, or at once of `evaluate`; also of steps that were undone since."
)
_BACK = (
    "Weights, optimizer, values and step as they were when the copy was kept; the steps since are done again."
)


def draw_commands(view: RunView) -> None:
    """Moves by itself while the run goes on."""
    is_running = view.state != "ended"
    st.fragment(_draw_commands, run_every=REFRESH_SECONDS if is_running else None)(view.id, is_running)


def _draw_commands(run_id: str, is_running: bool) -> None:
    draw_guarded(lambda: _command_parts(home() / run_id, is_running))


def _command_parts(folder: Path, is_running: bool) -> None:
    """Traces have a section of their own for how far they are."""
    answers = [order for order in run_orders.run_answers(folder) if order.command not in commands.BETWEEN]
    orders = run_orders.pending_orders(folder, SNAPSHOT)
    for order in orders:
        if is_running:
            st.progress(order.fraction, f"Memory snapshot: {_snapshot_progress(order)}")
        else:
            st.caption(
                f":material/warning: The run ended with {order.answered} of {order.ranks} snapshots written."
            )
    if answers:
        _table(answers)
    elif is_running and not orders:
        command = f"workbench control {folder.name} {SNAPSHOT}"
        st.caption(f"To take a snapshot of each rank's memory now: `{command}`.")


def _snapshot_progress(order: PendingOrder) -> str:
    if order.first is None:
        return "requested; ranks begin two steps after they have seen the request."
    if order.state == "recording":
        return f"recording {words.steps(order.first, order.steps)}, {order.steps_done} of {order.steps} done."
    return f"{order.answered} of {order.ranks} ranks have written theirs."


def _table(answers: list[run_orders.RankReply]) -> None:
    st.markdown("**Files written on request**")
    table(
        {
            "command": [row.command for row in answers],
            "step": [row.step for row in answers],
            "rank": [row.rank for row in answers],
            "files": [", ".join(row.files) for row in answers],
            "remark": [row.problem or row.note for row in answers],
        },
        "run-orders",
        {"step": st.column_config.NumberColumn(format="%,d")},
    )


VIEWER = "https://ui.perfetto.dev"


def draw_trace(view: RunView) -> None:
    """Moves by itself while the run goes on, and while a trace is merged."""
    folder = view.folder
    is_running = view.state != "ended"
    all_traces = traces.list_traces(folder)
    is_changing = is_running or any(trace.files and trace.merged_path is None for trace in all_traces)
    merged_traces = [trace for trace in all_traces if trace.merged_path is not None]
    merged_ids = frozenset(trace.id for trace in merged_traces)
    st.fragment(_draw_trace, run_every=REFRESH_SECONDS if is_changing else None)(
        view.id, is_running, merged_ids
    )
    # Not in the part that moves: each new drawing of a download button makes a click on the one before it void.
    for trace in merged_traces:
        _finished_trace(folder, trace)
    if any(trace.files for trace in all_traces):
        st.caption(
            f":material/info: Open the file at {VIEWER}, which reads it in your browser; for Holistic Trace Analysis "
            f"there is a folder `{traces.EACH}` beside it. The steps of a trace, and those before and after it, take "
            "longer than others: they do not count as measured."
        )


def _draw_trace(run_id: str, is_running: bool, drawn_ids: frozenset[str]) -> None:
    draw_guarded(lambda: _trace_parts(home() / run_id, is_running, drawn_ids))


def _trace_parts(folder: Path, is_running: bool, drawn_ids: frozenset[str]) -> None:
    """What is not in ``drawn_ids``; a trace that has been merged meanwhile moves there, with a drawing of the page."""
    all_traces = traces.list_traces(folder)
    if any(trace.merged_path is not None and trace.id not in drawn_ids for trace in all_traces):
        st.rerun()
    busy = next((trace for trace in all_traces if trace.under_way), None)
    if is_running:
        if may_fill_in():
            _button(folder, busy)
    elif not all_traces:
        st.caption("No trace was recorded; only a running run can record one.")
    if busy is not None:
        _progress(busy)
    for trace in all_traces:
        if not trace.under_way and trace.id not in drawn_ids:
            _finished_trace(folder, trace)


def _button(folder: Path, busy: Trace | None) -> None:
    least, most = commands.BOUNDS[traces.COMMAND]
    with st.container(horizontal=True, vertical_alignment="bottom", key="trace-ask"):
        steps = st.number_input(
            "Steps", least, most, commands.STEPS[traces.COMMAND], key="trace-steps", width=140
        )
        is_pressed = button_pressed(
            st.button,
            "Record the next steps",
            "trace-start",
            icon=":material/radio_button_checked:",
            type="primary",
            disabled=busy is not None,
        )
    if is_pressed and busy is None:
        send(folder, traces.COMMAND, {"steps": int(steps)}, by="page")
        st.rerun()  # of the page: a click may come with another that draws it anew, outside of this part


def _progress(trace: Trace) -> None:
    if trace.first is None:
        st.progress(0.0, "Requested; ranks begin two steps after they have seen the request.")
        return
    steps_text = words.steps(trace.first, trace.steps)
    if trace.state == "writing":
        st.progress(1.0, f"Recorded {steps_text}; ranks write their files.")
    else:
        st.progress(
            trace.steps_done / trace.steps,
            f"Recording {steps_text}: {trace.steps_done} of {trace.steps} done.",
        )


def _finished_trace(folder: Path, trace: Trace) -> None:
    with st.container(border=True, gap="xsmall", key=f"trace-{trace.id}"):
        if trace.files and trace.first is not None:
            _files(folder, trace, trace.first)
        else:
            st.markdown("**Nothing was recorded**")
        for problem in trace.problems:
            st.caption(f":material/warning: {words.escape(problem)}.")


def _files(folder: Path, trace: Trace, first: int) -> None:
    ranks = words.several(len(trace.files), "ranks")
    title, button = st.columns([3, 1], vertical_alignment="center")
    title.markdown(f"**{words.steps(first, trace.steps_done).capitalize()}**, {ranks}")
    try:
        path = _merged_file(folder, trace)
    except traces.MergeError as error:
        title.caption(f":material/warning: {words.escape(str(error))}")
        return
    if path is None:
        seconds = time.monotonic() - _merging()[1][trace.files[0]].since
        title.caption(
            f":material/hourglass_top: The ranks' files are merged into one: {words.rough_duration(seconds)} so far."
        )
        return
    title.caption(words.code(str(path)))
    button.download_button(
        f"Download, {words.gib(path.stat().st_size)}",
        path.read_bytes,
        file_name=f"{folder.name}-{path.parent.name}.json.gz",
        mime="application/gzip",
        key=f"trace-download-{trace.id}",
        icon=":material/download:",
        on_click="ignore",
    )


class _Merge(NamedTuple):
    """``since`` is monotonic."""

    future: Future[Path]
    since: float


@st.cache_resource
def _merging() -> tuple[ThreadPoolExecutor, dict[Path, _Merge]]:
    """One after the other for all browsers, and what became of each by its first file."""
    return ThreadPoolExecutor(1, "merge"), {}


def _merged_file(folder: Path, trace: Trace) -> Path | None:
    """The merged file, once it is there. MergeError if it cannot be; tried again when the server starts again."""
    if trace.merged_path is not None:
        return trace.merged_path
    pool, merges = _merging()
    if trace.files[0] not in merges:
        merges[trace.files[0]] = _Merge(pool.submit(traces.merge_trace, folder, trace), time.monotonic())
    future = merges[trace.files[0]].future
    return future.result() if future.done() else None


def draw_live_settings(view: RunView) -> None:
    """Moves by itself while the run goes on."""
    is_running = view.state != "ended"
    if is_running or view.changes:
        st.session_state[_holds_key(view.folder)] = run_folder.read_json(view.folder / run_folder.CONFIG)
        st.fragment(_draw, run_every=REFRESH_SECONDS if is_running else None)(view.id, is_running)


def _draw(run_id: str, is_running: bool) -> None:
    draw_guarded(lambda: _live_parts(home() / run_id, is_running))


def _holds_key(folder: Path) -> str:
    return f"turn-holds-{folder.name}"


def _renew(folder: Path) -> None:
    """The rest of the page has the values that held when it was drawn: once others hold it is drawn again."""
    if run_folder.read_json(folder / run_folder.CONFIG) != st.session_state.get(_holds_key(folder)):
        st.rerun(scope="app")


def _live_parts(folder: Path, is_running: bool) -> None:
    _renew(folder)
    st.markdown("**Changed while running**" if is_running else "**Changed while it was running**")
    if is_running and may_fill_in():
        _form(folder)
        _tune(folder)
    answers = run_orders.run_answers(folder)
    _commands_table(
        folder, {answer.id: answer for answer in reversed(answers) if answer.command in commands.BETWEEN}
    )


def _form(folder: Path) -> None:
    config = control.current(folder)
    with st.form("turn", border=False):
        with st.container(horizontal=True, vertical_alignment="bottom", key="turn-one"):
            key = st.selectbox(
                "Key",
                sorted(live_parts()),
                key="turn-key",
                width=260,
                format_func=lambda key_option: (
                    f"{key_option} (now {words.value(live_changes.value_of(config, key_option))})"
                ),
            )
            text = st.text_input("New value", key="turn-value", width=160)
            more = st.text_input(
                "Further keys", key="turn-more", width=260, placeholder=_MORE, help=_TOGETHER
            )
        with st.container(horizontal=True, vertical_alignment="bottom", key="turn-how"):
            order = st.selectbox(
                "How", list(_HOW), key="turn-order", width=260, format_func=_HOW.__getitem__, help=_COPY
            )
            steps = st.number_input(
                "Loss after steps", 1, None, None, key="turn-steps", width=160, help=_LOSS_AFTER
            )
            is_clicked = button_pressed(
                st.form_submit_button, "Change on all ranks", "turn-send", icon=":material/tune:"
            )
    if is_clicked:
        values = [f"{key}={text}"] if text.strip() or order == commands.SET else []
        values += _ASSIGNMENT.split(more.strip()) if more.strip() else []
        values += [] if steps is None else [f"steps={steps}"]
        _send(folder, order, values)
    _ask(folder)
    _keep_answer(folder)
    answer_of_click(f"turn-{folder.name}")


def _ask(folder: Path) -> None:
    """What takes no values."""
    with st.container(horizontal=True):
        if _has_copy(folder) and button_pressed(
            st.button, "Go back to the copy", "turn-back", icon=":material/undo:", help=_BACK
        ):
            _send(folder, commands.BACK, [])
        if button_pressed(st.button, "Held-out loss now", "turn-evaluate", icon=":material/query_stats:"):
            _send(folder, commands.EVALUATE, [])


def _has_copy(folder: Path) -> bool:
    return any(
        answer.command == commands.TRY and not answer.problem for answer in run_orders.run_answers(folder)
    )


def _tune(folder: Path) -> None:
    """A search on this run, by a process of its own; a link to its study once there is one."""
    labels = run_folder.RunStatus.from_folder(folder).labels
    study = labels.get("live") or f"{PREFIX}{folder.name}"
    if (home() / STUDIES / study).is_dir():
        st.page_link(
            PAGES["Tune"],
            label=words.escape(f"tuned by {study}"),
            icon=":material/tune:",
            query_params={"study": study},
        )
    elif "study" not in labels:
        _start_tuning(folder, study)


def _start_tuning(folder: Path, study: str) -> None:
    """A button; then how the process that it started is, until its study is there or it said why there is none."""
    place, job_key = f"tuning-{folder.name}", f"tuning-job-{folder.name}"
    job = jobs.find(home(), st.session_state.get(job_key))
    if job is not None and not job.alive:
        st.session_state.pop(job_key)
        remember(place, f"The run is not tuned: {jobs.last_error(job)}", is_refused=True)
    answer_of_click(place)
    if job is not None and job.alive:
        st.caption(
            ":material/hourglass_top: The search is being started; a link to it appears here by itself."
        )
        return
    help_text = (
        "Search for the fastest values of all that can be changed while it runs, and leave it with them."
    )
    if button_pressed(
        st.button, "Tune this run", "tune-this-run", icon=":material/auto_fix_high:", help=help_text
    ):
        st.session_state.pop(f"answer-{place}", None)
        st.session_state[job_key] = jobs.start(home(), ["live", "attach", folder.name]).id
        st.session_state["job"] = (study, st.session_state[job_key])  # the page Tune says how it ended
        st.rerun()


def _send(folder: Path, order: str, values: list[str]) -> None:
    """What can be known to be refused is said at once and not sent; the ranks' answer is shown once it is there."""
    place, sent_key = f"turn-{folder.name}", f"turn-sent-{folder.name}"
    for key in (f"answer-{place}", sent_key):
        st.session_state.pop(key, None)
    try:
        if order == commands.SET and (steps := [value for value in values if value.startswith("steps=")]):
            raise InputError(
                "Loss after steps", steps[-1], "is for a copy; leave it out, or choose one under How"
            )
        for word in values:
            if "=" not in word:
                raise InputError(
                    "Further keys", word, "write it as KEY=VALUE, for example memory.recompute=full"
                )
        arguments = control.arguments_of(Target("run", folder.name, folder), order, values)
        if (refusal := control.refusal(folder)) is not None:
            remember(place, refusal, is_refused=True)
            return
        st.session_state[sent_key] = send(folder, order, arguments, by="page")
    except InputError as error:
        remember(place, str(error), is_refused=True)


def _keep_answer(folder: Path) -> None:
    """What the ranks said of the last order of this browser, to be shown until it was read."""
    sent = st.session_state.get(f"turn-sent-{folder.name}")
    answer = next((answer for answer in run_orders.run_answers(folder) if answer.id == sent), None)
    if answer is not None:
        del st.session_state[f"turn-sent-{folder.name}"]
        text = f"{answer.command}, before step {answer.step:,}: {_result_words(answer)}"
        remember(f"turn-{folder.name}", text, is_refused=bool(answer.problem))


def _commands_table(folder: Path, answers: dict[str, run_orders.RankReply]) -> None:
    """Every change that was asked for, the newest first, with what became of it."""
    rows, orders = [], list[str]()
    for path in sorted((folder / run_folder.COMMANDS).glob("*.json"), reverse=True):
        command = run_folder.read_json(path) or {}
        if command.get("command") in commands.BETWEEN:
            answer = answers.get(path.stem)
            values = ", ".join(f"{key}={value}" for key, value in (command.get("arguments") or {}).items())
            command_text = f"{command['command']} {values}".strip()
            rows.append((command_text, command.get("by"), answer))
            orders.append(path.stem)
    if rows:
        losses = run_orders.losses_of_orders(folder)
        table(
            {
                "requested": [command_text for command_text, _, _ in rows],
                "by": [sender for _, sender, _ in rows],
                "step": [answer and answer.step for _, _, answer in rows],
                "result": [_result_words(answer) for _, _, answer in rows],
                "held-out loss": [losses.get(order) for order in orders],
            },
            "run-turned",
            {
                "step": st.column_config.NumberColumn(format="%,d"),
                "held-out loss": st.column_config.NumberColumn(format="%.4f", help=_LOSS_TOLD),
            },
        )


def _result_words(answer: run_orders.RankReply | None) -> str:
    if answer is None:
        return "not reached by the ranks yet"
    return f"refused: {answer.problem}" if answer.problem else answer.text
