"""Everything one run left behind: outcome, speed, phases, collectives, verdicts, configuration and logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import streamlit as st

from engine.run import run_folder
from engine.run.outcome import RecordedOutcome
from profilers.model.run_summary import RunSummary
from workbench.figures import base, steps
from workbench.figures.cluster import roofline
from workbench.home import runs
from workbench.home.runs import RunView
from workbench.pages.navigation import PAGES
from workbench.pages.run import collectives, control, gpus, host, quality, settings, verdicts
from workbench.pages.run.anatomy import steps as run_steps
from workbench.pages.run.live import commands
from workbench.pages.widgets.common import (
    answer_of_click,
    backend_note,
    badge,
    home,
    icon_note,
    metrics,
    number_table,
    report_button,
    snapshot,
    summary_of,
)
from workbench.pages.widgets.note_form import note_of, tags_of
from workbench.pages.widgets.plotly_chart import shared_chart
from workbench.records.live_snapshot import Snapshot
from workbench.services import jobs
from workbench.text import run as run_text
from workbench.text import step, words
from workbench.text.step import add_between

LOG_LINES = 200
SHORT_LOG = 22


def draw_run(run_id: str) -> None:
    """The run's headline, then one section of it."""
    records, view = snapshot(run_id), runs.load(home() / run_id)
    summary = summary_of(view) or _empty_summary(view)
    _headline(view)
    note_of(view.folder)
    if view.outcome not in (None, "completed"):
        _ending(view)
    _goes_on(view, summary)
    metrics(numbers(summary), "run-numbers")
    verdicts.draw(run_id, summary, records.config)
    for tab, draw in zip(
        st.tabs(list(SECTIONS), key="section", bind="query-params"), SECTIONS.values(), strict=True
    ):
        if tab.open:
            with tab:
                draw(view, records, summary)


def _empty_summary(view: RunView) -> RunSummary:
    """For a run that goes on, or whose summary is damaged."""
    return RunSummary(view.id, view.layout, world_size=0, backend="", parameters=None, tokens_per_step=None)


def _goes_on(view: RunView, summary: RunSummary) -> None:
    """Of a run that goes on: how far, and what can be asked of it. It is drawn again as a whole, so that no two numbers
    are of different steps.
    """
    if view.state != "ended":
        with st.container(horizontal=True, vertical_alignment="center", key="run-so-far"):
            st.caption(f":material/hourglass_top: {run_text.so_far(summary)}", width="content")
            st.button("Update", icon=":material/refresh:", type="tertiary", key="run-update")
            control.steer(view)
    answer_of_click(f"run-{view.id}")


def _headline(view: RunView) -> None:
    study = view.labels.get("study")
    with st.container(horizontal=True, vertical_alignment="center", key="run-badges"):
        badge(view.outcome or view.state)
        st.markdown(f"**`{view.id}`**", width="content")
        if study:
            name = words.escape(f"{study} · trial {view.labels.get('trial', '?')}")
            st.page_link(PAGES["Tune"], label=name, icon=":material/tune:", query_params={"study": study})
        st.badge(words.layout(view.layout), icon=":material/grid_view:", color="blue")
        backend_note(view.status.backend, view.status.backend_reason)
        st.page_link(PAGES["Live"], label="Live", icon=":material/monitoring:", query_params={"run": view.id})
        st.page_link(PAGES["Steps"], label="Steps", icon=":material/grid_on:", query_params={"run": view.id})
        st.page_link(
            PAGES["Export"], label="Export", icon=":material/ios_share:", query_params={"export": view.id}
        )
        report_button(view.id)
        tags_of(view.folder)


def _ending(view: RunView) -> None:
    """Why it did not complete: reason, rank, phase and the last lines."""
    outcome = view.status.outcome or RecordedOutcome()
    rank, phase = outcome.rank, outcome.phase
    place = ", ".join(part for part in (f"rank {rank}" if rank is not None else "", phase or "") if part)
    ending = f"**{words.ending_words(view.outcome)}**" + (f" ({place})" if place else "")
    color, icon = words.look(view.outcome or "")
    draw_box = st.error if color == "red" else st.warning if color == "orange" else st.info
    draw_box(f"{ending}: {words.escape(view.reason or '—')}", icon=icon)
    if view.last_lines:
        st.code("\n".join(view.last_lines), language=None)


def numbers(summary: RunSummary) -> dict[str, tuple[str, str]]:
    """The tiles of a run."""
    times, rates = summary.step_seconds, summary.tokens_per_second_interval
    phases = add_between(summary.phases, summary.between_seconds or 0.0)
    exposed_share = phases["communication_exposed"] / sum(phases.values()) if phases else None
    losses = [loss for loss in summary.losses if loss is not None]
    mfu = summary.mfu
    name = "" if summary.workload in (None, "decoder") else f"{summary.workload}; "
    return {
        "Tokens/s": (
            words.number(summary.tokens_per_second),
            words.interval(rates.low, rates.high) if rates else "",
        ),
        "Step time, mean": (
            words.seconds(times.mean if times else None),
            f"median {words.seconds(times.median)}, p95 {words.seconds(times.p95)}" if times else "",
        ),
        "Communication": (
            words.percent(exposed_share),
            run_text.waits(summary, run_text.share_of_step(summary))
            or "of the mean step spent waiting for it",
        ),
        "Peak memory": (words.gib(summary.peak_memory_bytes), run_text.peak_memory_rank(summary)),
        "Last loss": (
            words.loss(losses[-1] if losses else None),
            _held_out(summary),
        ),
        "Parameters": (
            words.count(summary.parameters or None),
            name
            + ("MFU not known" if mfu is None else f"MFU {words.percent(mfu, 1)}")
            + words.sharing_words(summary.shared_parameters),
        ),
    }


def _roofline(view: RunView, records: Snapshot, summary: RunSummary) -> None:
    series = roofline.roofline_of(view.folder, summary)
    if series is None:
        st.caption("Nothing was measured that could be compared with this machine's calibration.")
        return
    shared_chart(
        lambda: roofline.draw(series, view.id),
        "run-roofline",
        "Products on the roofline, and collectives by size",
        records.version,
        summary.measured_steps,
    )
    st.caption(f":material/info: {words.escape(roofline.roofline_note(series))}", help=roofline.HELP)


def _held_out(summary: RunSummary) -> str:
    if summary.validation_loss is None:
        return "no validation loss"
    loss_text = f"validation {words.loss(summary.validation_loss)}"
    return f"{loss_text}, {metric_text}" if (metric_text := run_text.metric(summary)) else loss_text


def _step_time(view: RunView, records: Snapshot, summary: RunSummary) -> None:
    run_steps.draw_steps(records, summary, view.changes)
    if summary.batches_ahead:
        batches_text = step.batches_ahead(summary.batches_ahead)
        st.caption(f":material/dataset: Batches: {words.escape(batches_text)}.")
    settings.draw_schedule(records.config)


def _anatomy(_: RunView, records: Snapshot, summary: RunSummary) -> None:
    run_steps.draw_anatomy(records, summary)


def _collectives(view: RunView, records: Snapshot, summary: RunSummary) -> None:
    collectives.draw_collectives(records, summary)
    collectives.draw_plans(view.plans)


def _loss_and_memory(view: RunView, records: Snapshot, summary: RunSummary) -> None:
    left, right = st.columns(2)
    with left:
        shared_chart(
            lambda: base.loss(
                steps.losses_of(summary.losses, summary.validation_loss, summary.first_step), records.id
            ),
            "run-loss",
            "Training loss per step",
            records.version,
            summary.measured_steps,
        )
    with right:
        host.memory(records, "run-memory")
    if view.job is None:
        quality.draw(view, summary, records.version)
        quality.draw_adapted(summary)
        quality.draw_partial(summary)
        quality.draw_tasks(summary, records.version)
        quality.draw_experts(summary, records.version)
        quality.draw_sequences(summary)
        quality.draw_update(summary)
        host.draw_memory(records.config, summary.peak_memory_bytes)
        host.draw_memory_plans(view.memory_plans)
    _checkpoints(summary)


def _checkpoints(summary: RunSummary) -> None:
    """Where the run came from, what was saved and what that cost."""
    for label, text in run_text.checkpoint_lines(summary):
        icon_note("save", f"{label.capitalize()}: {text}.")
    if summary.checkpoints:
        st.markdown("**Checkpoints**")
        number_table(run_text.checkpoint_columns(summary.checkpoints), "run-checkpoint-table")


def _host(view: RunView, records: Snapshot, summary: RunSummary) -> None:
    host.draw_host(records, summary)
    commands.draw_commands(view)


def _gpus(_: RunView, records: Snapshot, summary: RunSummary) -> None:
    gpus.draw(records, summary)


def _trace(view: RunView, *_: object) -> None:
    commands.draw_trace(view)


def _configuration(view: RunView, records: Snapshot, summary: RunSummary) -> None:
    if view.job is None:
        commands.draw_live_settings(view)
    settings.draw_environment(summary)
    if view.job is None:
        settings.draw_configuration(records.config)
    else:
        settings.draw_job(view.job)


def _logs(view: RunView, *_: object) -> None:
    logs = sorted((view.folder / run_folder.LOGS).glob("*.log"))
    if not logs:
        st.caption("No log was written.")
        return
    log_name = st.selectbox("Log of", [log.stem for log in logs], key="run-log", width=240)
    log = next((log for log in logs if log.stem == log_name), logs[0])
    lines = jobs.last_lines(log, LOG_LINES)
    height: Literal["content"] | int = "content" if len(lines) <= SHORT_LOG else 480
    st.code("\n".join(lines) or "(empty)", language=None, height=height)


#: Name of a section, which the address keeps, -> what draws it. Only the one that is open is drawn.
SECTIONS: dict[str, Callable[[RunView, Snapshot, RunSummary], None]] = {
    "Step time": _step_time,
    "Anatomy": _anatomy,
    "Collectives": _collectives,
    "Roofline": _roofline,
    "Loss and memory": _loss_and_memory,
    "Host": _host,
    "GPUs": _gpus,
    "Trace": _trace,
    "Configuration": _configuration,
    "Logs": _logs,
}
