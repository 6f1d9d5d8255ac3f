"""The next steps of a running job as a trace: a button, how far it is, and the files."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from engine.run import commands
from tuning.storage.commands import send
from workbench import traces, words
from workbench.traces import Trace
from workbench.ui.shared import guarded, home, pressed

REFRESH_SECONDS = 1.0
VIEWER = "https://ui.perfetto.dev"


def draw(found: dict[str, Any]) -> None:
    """Moves by itself while the run goes on, and while a trace is merged."""
    folder = home() / found["id"]
    going = found["state"] != "ended"
    known = traces.of_run(folder)
    moving = going or any(trace.files and trace.merged is None for trace in known)
    finished = [trace for trace in known if trace.merged is not None]
    shown = frozenset(trace.id for trace in finished)
    st.fragment(_draw, run_every=REFRESH_SECONDS if moving else None)(found["id"], going, shown)
    # Not in the part that moves: each new drawing of a download button makes a click on the one before it void.
    for trace in finished:
        _ended(folder, trace)
    if any(trace.files for trace in known):
        st.caption(
            f":material/info: Open the file at {VIEWER}, which reads it in your browser; for Holistic Trace Analysis "
            f"there is a folder `{traces.EACH}` beside it. The steps of a trace, and those before and after it, take "
            "longer than others: they do not count as measured."
        )


def _draw(run_id: str, going: bool, shown: frozenset[str]) -> None:
    guarded(lambda: _parts(home() / run_id, going, shown))


def _parts(folder: Path, going: bool, shown: frozenset[str]) -> None:
    """What is not in ``shown``; a trace that has been merged meanwhile moves there, with a drawing of the page."""
    known = traces.of_run(folder)
    if any(trace.merged is not None and trace.id not in shown for trace in known):
        st.rerun()
    busy = next((trace for trace in known if trace.under_way), None)
    if going:
        _button(folder, busy)
    elif not known:
        st.caption("No trace was recorded; that takes a run that goes on.")
    if busy is not None:
        _progress(busy)
    for trace in known:
        if not trace.under_way and trace.id not in shown:
            _ended(folder, trace)


def _button(folder: Path, busy: Trace | None) -> None:
    least, most = commands.BOUNDS[traces.COMMAND]
    with st.container(horizontal=True, vertical_alignment="bottom", key="trace-ask"):
        steps = st.number_input(
            "Steps", least, most, commands.STEPS[traces.COMMAND], key="trace-steps", width=140
        )
        asked = pressed(
            st.button,
            "Record the next steps",
            "trace-start",
            icon=":material/radio_button_checked:",
            type="primary",
            disabled=busy is not None,
        )
    if asked and busy is None:
        send(folder, traces.COMMAND, {"steps": int(steps)}, by="page")
        st.rerun(scope="fragment")


def _progress(trace: Trace) -> None:
    if trace.first is None:
        st.progress(0.0, "Asked; ranks begin two steps after they have seen it.")
        return
    named = words.steps(trace.first, trace.steps)
    if trace.state == "writing":
        st.progress(1.0, f"Recorded {named}; ranks write their files.")
    else:
        st.progress(trace.done / trace.steps, f"Recording {named}: {trace.done} of {trace.steps} done.")


def _ended(folder: Path, trace: Trace) -> None:
    with st.container(border=True, gap="xsmall", key=f"trace-{trace.id}"):
        if trace.files and trace.first is not None:
            _files(folder, trace, trace.first)
        else:
            st.markdown("**Nothing was recorded**")
        for problem in trace.problems:
            st.caption(f":material/warning: {problem}.")


def _files(folder: Path, trace: Trace, first: int) -> None:
    ranks = f"{len(trace.files)} rank{'s' if len(trace.files) > 1 else ''}"
    title, button = st.columns([3, 1], vertical_alignment="center")
    title.markdown(f"**{words.steps(first, trace.done).capitalize()}**, {ranks}")
    try:
        path = _merged(folder, trace)
    except traces.MergeError as error:
        title.caption(f":material/warning: {error}")
        return
    if path is None:
        seconds = time.monotonic() - _merging()[1][trace.files[0]].since
        title.caption(
            f":material/hourglass_top: The ranks' files are merged into one: {words.rough(seconds)} so far."
        )
        return
    title.caption(f"`{path}`")
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


def _merged(folder: Path, trace: Trace) -> Path | None:
    """The merged file, once it is there. MergeError if it cannot be; tried again when the server starts again."""
    if trace.merged is not None:
        return trace.merged
    pool, known = _merging()
    if trace.files[0] not in known:
        known[trace.files[0]] = _Merge(pool.submit(traces.merged, folder, trace), time.monotonic())
    future = known[trace.files[0]].future
    return future.result() if future.done() else None
