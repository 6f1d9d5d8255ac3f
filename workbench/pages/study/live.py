"""The run that a live study tunes: where it is, what it runs with, and what tuning has cost and brought."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from tuning.analysis.learning import POWER
from tuning.spec.objectives import Aim, text
from tuning.storage.commands import send
from workbench.analysis import live_report
from workbench.analysis.live_report import LiveReport, WindowRow
from workbench.analysis.studies import StudySnapshot
from workbench.figures.search import live as figures
from workbench.pages.navigation import PAGES
from workbench.pages.widgets import forms
from workbench.pages.widgets.common import button_pressed, table
from workbench.pages.widgets.plotly_chart import chart
from workbench.text import words

_SAVED = (
    "Time that the baseline would take for as many steps, minus the window's own. Negative: it was slower."
)
_REVERT = "The search ends, and the run goes on with the values that it began with."
_VALUE = "Measured over the window's steps, with its 95 % interval."
_RATE_VS_LEADER = (
    "The window's rate divided by the leader's, measured right before and after it. The leader is the fastest "
    "configuration so far. With a 95 % interval where there are enough steps for one; without it, do not rely on small "
    "differences."
)
_VS_BASELINE = (
    "Trials are ranked by this: the window's value relative to the baseline's, corrected for changes in the machine's "
    "speed. Where the two were measured in alternating windows, it comes from those."
)
_DISCARDED = (
    "Steps at the start of the window that are left out of the measurement, because they took a different time than "
    "the rest. Where there were too few steps to detect that, the number of warm-up steps."
)
_LEADER_TIME = (
    "Step time of the leader right before and after the window, relative to when it was first measured. Near 1, the "
    "machine is as fast as it was. Away from 1, intervals are widened to match, and alternating windows decide."
)
_LOSS_GAP = (
    "How far the held-out loss is above the baseline's, both trained for the same steps from the same weights and on "
    "the same text."
)
_LOSS_DECREASE = (
    "How much the held-out loss fell during the window, relative to the baseline's decrease over the same steps. Empty "
    "for values that leave the loss exact, and where the baseline's loss fell too little to compare."
)
_FINAL_LOSS_GAP = (
    "Projected, not measured: how far the loss may end above the baseline's if the relative loss decrease stays as it "
    f"is and the loss follows a power law of the steps with an exponent of at least {POWER:g}. The loss limit applies "
    "to this or the measured gap, whichever is larger."
)

#: Of the column that both tables begin with: "12, loss check".
_TRIAL_PIXELS = 84


def section(snapshot: StudySnapshot) -> None:
    """Nothing of a study that is not live."""
    report = snapshot.document.live
    if report is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="tune-live-run"):
        st.markdown("**The run**", width="content")
        st.page_link(
            PAGES["Live"],
            label=words.escape(report.run),
            icon=":material/monitoring:",
            query_params={"run": report.run},
        )
        st.caption(live_report.run_progress(report))
    if report.measuring and report.state != "ended":
        st.caption(f":material/experiment: Measuring {report.measuring}.")
    if report.over:
        st.caption(f":material/flag: The search ended: {report.over}.")
    tiles = st.columns(4)
    for tile, (name, value, help_text) in zip(tiles, live_report.tiles(report), strict=True):
        tile.metric(name, value, help=help_text)
    chart(
        figures.live(report, snapshot.view.name),
        "tune-live",
        "The run's rate and the seconds that tuning saved",
    )
    if snapshot.view.alive and report.state != "ended" and _reverts():
        sent_key = send(snapshot.view.folder, "revert", by="page")
        forms.remember_command(snapshot.view.name, sent_key, "back to the start")
    if report.since is not None:
        words_of = live_report.since_words(report.since)
        st.caption(f":material/savings: {words_of[0].upper()}{words_of[1:]}.")
    if report.changes:
        with st.expander("Changes", icon=":material/tune:"):
            table(live_report.change_columns(report), "tune-live-changes")
    with st.expander("Windows", icon=":material/view_column:"):
        _windows(report, snapshot.document.result.aim)


def _reverts() -> bool:
    return button_pressed(
        st.button, "Back to the start", "tune-live-revert", icon=":material/undo:", help=_REVERT
    )


def _leader_ratio_text(row: WindowRow) -> str:
    if row.leader_ratio is None:
        return ""
    ends = f" ({row.leader_ratio_low:.2f} to {row.leader_ratio_high:.2f})" if row.leader_ratio_low else ""
    return f"{row.leader_ratio:.2f} x{ends}"


def _trial(row: WindowRow) -> str:
    if row.confirms is None:
        return f"{row.trial}"
    return f"{row.confirms}, {'loss check' if row.checks_loss else 'repeat'}"


def _windows(report: LiveReport, aim: Aim) -> None:
    """Two tables, each as wide as a window of 800 pixels: how fast, and what the run made of it."""
    rows = report.windows[::-1]
    trials = [_trial(row) for row in rows]
    config = st.column_config
    table(
        {
            "trial": trials,
            "values": _differing_labels(rows),
            aim.unit: [_value(row, aim) for row in rows],
            "rate vs. leader": [_leader_ratio_text(row) for row in rows],
            "vs. baseline": [row.over_baseline for row in rows],
        },
        "tune-live-windows",
        {
            "trial": config.TextColumn(width=_TRIAL_PIXELS),
            "values": config.TextColumn(width=220),
            aim.unit: config.TextColumn(width=150, help=_VALUE),
            "rate vs. leader": config.TextColumn(width=142, help=_RATE_VS_LEADER),
            "vs. baseline": config.NumberColumn(width=90, format="%.2f x", help=_VS_BASELINE),
        },
    )
    table(
        {
            "trial": trials,
            "steps": [f"{row.first:,} to {row.end - 1:,}" if row.end > row.first else "none" for row in rows],
            "ended": [words.ending_words(row.outcome) + (", undone" if row.undone else "") for row in rows],
            "saved, s": [row.saved_seconds for row in rows],
            "loss gap": [row.loss_increase for row in rows],
            "loss decrease": [row.learned for row in rows],
            "final loss gap": [row.later_increase for row in rows],
            "discarded": [row.settling_steps for row in rows],
            "leader time": [row.leader_level for row in rows],
        },
        "tune-live-losses",
        {
            "trial": config.TextColumn(width=_TRIAL_PIXELS),
            "steps": config.TextColumn(width=70),
            "ended": config.TextColumn(width=124),
            "saved, s": config.NumberColumn(width=62, format="%+.2f", help=_SAVED),
            "loss gap": config.NumberColumn(width=56, format="percent", help=_LOSS_GAP),
            "loss decrease": config.NumberColumn(width=84, format="%.2f x", help=_LOSS_DECREASE),
            "final loss gap": config.NumberColumn(width=88, format="percent", help=_FINAL_LOSS_GAP),
            "discarded": config.NumberColumn(width=66, format="%d", help=_DISCARDED),
            "leader time": config.NumberColumn(width=72, format="%.2f x", help=_LEADER_TIME),
        },
    )


def _differing_labels(rows: Sequence[WindowRow]) -> list[str]:
    """Labels of windows without what they all have: the layout of one run is always the same."""
    parts = [row.label.split() for row in rows]
    common = set.intersection(*map(set, parts)) if len({row.label for row in rows}) > 1 else set[str]()
    return [" ".join(part for part in label_parts if part not in common) for label_parts in parts]


def _value(row: WindowRow, aim: Aim) -> str:
    if row.value is None:
        return words.NOTHING
    ends = words.interval_ends(*aim.bounds(row.low, row.high))
    return text(aim.to_display(row.value)) + (f" ({ends})" if ends else "")
