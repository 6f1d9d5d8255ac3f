"""What mattered in a study: importance, effects, dependence and neighbours, and buttons that work out more of it."""

from __future__ import annotations

import streamlit as st

from tuning.sensitivity import job
from tuning.sensitivity.job import NAMES, SENSITIVITY_METHODS, missing_package
from tuning.sensitivity.outcomes import AnalysisResult, Fanova, Shap
from tuning.sensitivity.report import Sensitivity, document
from tuning.storage import study_folder
from tuning.storage.study_folder import StudyView
from workbench.figures.search import sensitivity
from workbench.pages.widgets.common import button_pressed, draw_guarded, home, table
from workbench.pages.widgets.plotly_chart import chart
from workbench.pages.widgets.trial_table import follow_study
from workbench.services import jobs
from workbench.text import words
from workbench.text.sensitivity import evidence_words, loss, method_outcome

REFRESH_SECONDS = 1.0
#: What fANOVA has by then is kept.
LIMIT_SECONDS = 600


def draw(view: StudyView) -> None:
    """The section on a study's page."""
    with st.expander("What mattered", icon=":material/insights:", expanded=True, key="study-mattered"):
        draw_guarded(lambda: _parts(view))


def _parts(view: StudyView) -> None:
    report = follow_study(view.name).more("mattered", _signature(view), lambda: document(view))
    if report.reason:
        st.caption(words.escape(report.reason))
        return
    st.caption(
        f"{report.trials:,} trials ended: {report.measured:,} measured, {report.failed:,} failed "
        f"because of {'its' if report.failed == 1 else 'their'} configuration."
    )
    _asking(view.name, report)
    _importance(report)
    _effects(report)
    _dependence(report)
    _neighbours(report)


def _signature(view: StudyView) -> tuple[float, ...]:
    names = (study_folder.JOURNAL, study_folder.RESULT, job.FOLDER)
    stats = [path.stat() for name in names if (path := view.folder / name).exists()]
    return tuple(number for stat in stats for number in (stat.st_mtime, stat.st_size))


def _asking(name: str, report: Sensitivity) -> None:
    """Buttons, and how far the process is that one of them started; redrawn by itself while it runs."""
    job = _job(name)
    is_running = job is not None and job.alive
    st.fragment(_buttons, run_every=REFRESH_SECONDS if is_running else None)(name, report, is_running)


def _job(name: str) -> jobs.Job | None:
    """The newest process that was asked about this study."""
    matching_jobs = (job for job in jobs.all_jobs(home()) if job.arguments[:2] == ("sensitivity", name))
    return next(matching_jobs, None)


def _buttons(name: str, report: Sensitivity, was_running: bool) -> None:
    job = _job(name)
    is_running = job is not None and job.alive
    if is_running != was_running:
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center", key="mattered-ask"):
        for method in SENSITIVITY_METHODS:
            answer: AnalysisResult[Fanova | Shap] = report.fanova if method == "fanova" else report.shap
            is_complete = answer.outcome is not None and not answer.note
            is_disabled = is_running or is_complete or bool(missing_package(method))
            label = (
                f"{NAMES[method]}: {method_outcome(answer.outcome)}"
                if is_complete
                else f"Compute {NAMES[method]}"
            )
            if button_pressed(
                st.button, label, f"ask-{method}", icon=":material/calculate:", disabled=is_disabled
            ):
                arguments = ["sensitivity", name, "--method", method, "--limit", str(LIMIT_SECONDS)]
                jobs.start(home(), arguments)
                st.rerun()
        if (
            job is not None
            and is_running
            and button_pressed(st.button, "Stop", "ask-stop", icon=":material/stop:")
        ):
            jobs.end(job, patience_seconds=2.0)
            st.rerun()
    _show_job_status(job, is_running)
    for words_ in dict.fromkeys(
        f"{NAMES[method]} {missing_package(method)}"
        for method in SENSITIVITY_METHODS
        if missing_package(method)
    ):
        st.caption(f":material/extension: {words_}")


def _show_job_status(job: jobs.Job | None, is_running: bool) -> None:
    """Of a process that runs its last words; of one that ended badly what was wrong."""
    if job is None:
        return
    lines = [line for line in jobs.last_lines(job.log) if line.strip()]
    if is_running:
        st.caption(f":material/hourglass_top: {words.escape(lines[-1]) if lines else 'starting'}")
    elif lines and lines[-1].startswith("error:"):
        st.error(words.escape(lines[-1].removeprefix("error: ")), icon=":material/error:")


def _importance(report: Sensitivity) -> None:
    series = sensitivity.share_series(report)
    chart(
        sensitivity.shares(series, report.study),
        "mattered-importance",
        "Importance of each knob by PED-ANOVA and fANOVA",
    )
    fanova = report.fanova.outcome
    if report.importance.trials:
        st.caption(f"PED-ANOVA: {report.importance.trials:,} measured trials.")
    if fanova and fanova.values:
        interactions = words.percent(fanova.interactions or 0.0)
        st.caption(
            f"fANOVA: {fanova.trials:,} measured trials, {fanova.trees} trees; knobs together explain {interactions}."
            + _old(report.fanova.note)
        )
    elif fanova:
        st.caption(f"fANOVA: {words.escape(fanova.reason)}.")


def _effects(report: Sensitivity) -> None:
    shap = report.shap.outcome
    if shap is None and report.shap.reason:
        st.caption(f"{words.escape(report.shap.reason)}.")
        return
    parts = (
        ("value", "SHAP: what changes a trial's value", shap.value if shap else None),
        ("failure", "SHAP: what changes the chance of failure", shap.failure if shap else None),
    )
    for column, (name, title, part) in zip(st.columns(2), parts, strict=True):
        series = sensitivity.effect_series(part, report.shap.reason)
        with column:
            chart(
                sensitivity.effects(series, title, report.study),
                f"mattered-{name}",
                f"{title}, by knob",
            )
            if series.score:
                st.caption(f"{series.score}.{_old(report.shap.note)}")


def _old(note: str) -> str:
    return f" {note.capitalize()}." if note else ""


def _dependence(report: Sensitivity) -> None:
    series = sensitivity.dependence_series(report)
    drawing = sensitivity.dependence(series, report.study)
    chart(drawing, "mattered-dependence", "Measured and predicted values by value of each knob")
    notes = [*series.left_out, "a mean is over everything that the search tried with a value"]
    st.caption("; ".join(notes) + ".")


def _neighbours(report: Sensitivity) -> None:
    winner, rows = report.winner, report.neighbours
    if winner is None:
        st.caption("Nothing has been measured yet, so there is no winner whose neighbours could be shown.")
        return
    st.markdown(f"**The winner's neighbours**, trial {winner.trial}: {words.code(winner.label)}")
    table(
        {
            "knob": [words.short(row.key) for row in rows],
            "winner": [words.choice(row.key, row.winner_value) for row in rows],
            "neighbour": [words.choice(row.key, row.value) for row in rows],
            "loses, %": [row.loss_percent for row in rows],
            "interval": [loss(row)[1] for row in rows],
            "based on": [evidence_words(row) for row in rows],
        },
        "mattered-neighbours",
        {
            "knob": st.column_config.TextColumn(width=170),
            "winner": st.column_config.TextColumn(width=64),
            "neighbour": st.column_config.TextColumn(width=76),
            "loses, %": st.column_config.NumberColumn(width=64, format="%.1f"),
            "interval": st.column_config.TextColumn(width=112),
            "based on": st.column_config.TextColumn(width=580),
        },
    )
    st.caption(
        "Intervals: 95 % for measured values; for predicted ones, the range of errors of 90 % of held-out trials."
    )
