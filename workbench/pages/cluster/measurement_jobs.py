"""What the command line measures and examines, started here and watched: ``calibrate``, ``doctor``, ``selftest``."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from workbench.pages.widgets.common import button_pressed, draw_guarded, home, may_fill_in, run_rows
from workbench.selftest.results import RANKS
from workbench.services import jobs
from workbench.services.jobs import Job
from workbench.text import words

WATCH_SECONDS = 1.0
_LINES = 8
_STATUS = {"ok": "✓ ok", "missing": "✗ missing", "note": "– note"}


def _newest(command: str) -> Job | None:
    return next((job for job in jobs.all_jobs(home()) if job.arguments[:1] == (command,)), None)


def calibrate() -> None:
    """A form while nothing is measured; else how far it is, and a button to stop it."""
    job = _newest("calibrate")
    if job is not None and job.alive:
        st.fragment(_watch, run_every=WATCH_SECONDS)("calibrate")
        return
    with st.expander("Calibrate this machine", icon=":material/straighten:", key="machine-calibrate"):
        if may_fill_in():
            draw_guarded(_calibrate_form)
        if job is not None and (problem := jobs.refusal(job)):
            st.error(words.escape(problem), icon=":material/error:")


def _calibrate_form() -> None:
    busy = [row.id for row in run_rows() if row.state in ("starting", "running")]
    if busy:
        names = ", ".join(busy[:3])
        st.warning(f"Ranks train now ({names}): they would disturb it.", icon=":material/warning:")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        ranks = st.number_input(
            "Ranks",
            min_value=1,
            value=None,
            step=1,
            key="machine-calibrate-ranks",
            width=180,
            placeholder="as many as suit",
            help="Without a number one per GPU, or one per core, from 4 to 8.",
        )
        quick = st.toggle(
            "quick", key="machine-calibrate-quick", help="Fewer sizes, with less time for each."
        )
        is_clicked = button_pressed(st.button, "Calibrate", "machine-calibrate-start", type="primary")
    if is_clicked:
        options = ([] if ranks is None else ["--ranks", str(ranks)]) + (["--quick"] if quick else [])
        jobs.start(home(), ["calibrate", *options])
        st.rerun()


def _watch(command: str) -> None:
    """Drawn again each second; the whole page once it has ended."""
    job = _newest(command)
    if job is None or not job.alive:
        st.rerun()
        return
    with st.container(border=True, key=f"machine-{command}-running"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge("running", icon=":material/progress_activity:", color="blue")
            text = f"{words.code(' '.join(('workbench', *job.arguments)))}, started {words.age_text(job.started_unix)}"
            st.markdown(text, width="content")
            if button_pressed(st.button, "Stop", f"machine-{command}-stop", icon=":material/stop:"):
                jobs.interrupt(job)
        lines = [line for line in jobs.last_lines(job.log, _LINES) if line.strip()]
        st.code("\n".join(lines) or "starting ...", language=None)


def doctor() -> None:
    """What this machine can do, examined in a process of its own, since torch is asked, too."""
    st.header("Doctor", anchor=False)
    job = _newest("doctor")
    if job is not None and job.alive:
        st.fragment(_watch, run_every=WATCH_SECONDS)("doctor")
        return
    label = "Examine this machine" if job is None else "Examine again"
    if button_pressed(st.button, label, "machine-doctor", icon=":material/stethoscope:"):
        draw_guarded(_start_doctor)
    if job is not None:
        _checks(job)


def _start_doctor() -> None:
    jobs.start(home(), ["doctor", "--json"])
    st.rerun()


def _checks(job: Job) -> None:
    document = _document(job)
    if document is None:
        st.error(words.escape(jobs.last_error(job)), icon=":material/error:")
        return
    checks = document["checks"]
    with st.container(key="machine-doctor-checks"):
        st.table(
            {
                "status": [_STATUS.get(check["status"], check["status"]) for check in checks],
                "what": [words.escape(check["name"]) for check in checks],
                "found": [words.escape(str(check["value"])) for check in checks],
                "why": [words.escape(check["why"]) for check in checks],
            },
            border="horizontal",
            hide_index=True,
        )
    st.caption(f"Examined {words.age_text(job.started_unix)}.")


def selftest() -> None:
    """A button while none runs; else how far it is. What it found is told where its results are."""
    job = _newest("selftest")
    if job is not None and job.alive:
        st.fragment(_watch, run_every=WATCH_SECONDS)("selftest")
        return
    if may_fill_in():
        _selftest_form()
    if job is not None and (problem := jobs.refusal(job)):
        st.error(words.escape(problem), icon=":material/error:")


def _selftest_form() -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        ranks = st.selectbox(
            "Ranks",
            RANKS,
            key="machine-selftest-ranks",
            width=120,
            help="In the checks of parallelism and calibration.",
        )
        is_clicked = button_pressed(
            st.button, "Run the selftest", "machine-selftest-start", icon=":material/checklist:"
        )
    if is_clicked:
        draw_guarded(lambda: _start_selftest(ranks))


def _start_selftest(ranks: int) -> None:
    jobs.start(home(), ["selftest", "--ranks", str(ranks)])
    st.rerun()


def _document(job: Job) -> dict[str, Any] | None:
    """The JSON that it printed; other lines may stand around it."""
    try:
        text = job.log.read_text("utf-8", "replace")
        document = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and isinstance(document.get("checks"), list) else None
