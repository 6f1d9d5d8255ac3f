"""The run that a live study tunes: where it is, what it runs with, and what tuning has cost and brought."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

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

_SAVED = "What as many steps of the baseline would have taken more; negative where the window was slower."

_REVERT = "The search ends, and the run goes on with the values that it began with."
_RANGE = "95 % interval of the value."
_LEADER = (
    "What a step of the fastest values took right before and after the window, over what it took when they were "
    "measured: 1 where the machine is as it was. Elsewhere the interval is as much wider, and rounds side by side "
    "decide."
)
_BESIDE = (
    "The window's rate over that of the fastest values right before and after it, with its 95 % interval where there "
    "are enough steps for one."
)
_OVER = (
    "By which trials rank: its value over the baseline's as if the machine had been the same for both, by windows in "
    "turns where there are some."
)
_SETTLING = (
    "Steps at the start that took another time than the rest; where too few tell, the warm-up. Not measured."
)
_LOSS = "Held-out loss above the baseline's after the same steps, from the same weights and on the same text."
_LEARNED = (
    "By how much the held-out loss fell in these steps, over what it fell by for the baseline. Empty for exact values, "
    "and where the baseline learned too little to tell."
)
_IN_THE_END = (
    "By how much the loss may be above the baseline's after as many steps if this share stays: losses fall about as a "
    "power of the steps, here at least 0.76. What is guarded is the larger one of both."
)

#: Of the column that both tables begin with: "12, loss again".
_TRIAL_PIXELS = 84


def section(found: StudySnapshot) -> None:
    """Nothing of a study that is not live."""
    report = found.document.live
    if report is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="tune-live-run"):
        st.markdown("**The run**", width="content")
        st.page_link(
            PAGES["Live"], label=report.run, icon=":material/monitoring:", query_params={"run": report.run}
        )
        st.caption(live_report.run_progress(report))
    if report.measuring and report.state != "ended":
        st.caption(f":material/experiment: Measuring {report.measuring}.")
    if report.over:
        st.caption(f":material/flag: The search ended: {report.over}.")
    tiles = st.columns(4)
    for tile, (name, value, about) in zip(tiles, live_report.tiles(report), strict=True):
        tile.metric(name, value, help=about)
    chart(
        figures.live(report, found.view.name), "tune-live", "The run's rate and the seconds that tuning saved"
    )
    if found.view.alive and report.state != "ended" and _reverts():
        sent = send(found.view.folder, "revert", by="page")
        forms.remember_command(found.view.name, sent, "back to the start")
    if report.since is not None:
        words_of = live_report.since_words(report.since)
        st.caption(f":material/savings: {words_of[0].upper()}{words_of[1:]}.")
    if report.changes:
        with st.expander("Changes", icon=":material/tune:"):
            table(live_report.change_columns(report), "tune-live-changes")
    with st.expander("Windows", icon=":material/view_column:"):
        _windows(report, found.document.result.aim)


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
    return f"{row.confirms}, {'loss again' if row.checks_loss else 'again'}"


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
            "beside it": [_leader_ratio_text(row) for row in rows],
            "over the start": [row.over_baseline for row in rows],
        },
        "tune-live-windows",
        {
            "trial": config.TextColumn(width=_TRIAL_PIXELS),
            "values": config.TextColumn(width=220),
            aim.unit: config.TextColumn(width=150, help=_RANGE),
            "beside it": config.TextColumn(width=142, help=_BESIDE),
            "over the start": config.NumberColumn(width=90, format="%.2f x", help=_OVER),
        },
    )
    table(
        {
            "trial": trials,
            "steps": [f"{row.first:,} to {row.end - 1:,}" if row.end > row.first else "none" for row in rows],
            "ended": [words.ending_words(row.outcome) + (", undone" if row.undone else "") for row in rows],
            "saved, s": [row.saved_seconds for row in rows],
            "loss": [row.loss_increase for row in rows],
            "learned": [row.learned for row in rows],
            "loss in the end": [row.later_increase for row in rows],
            "settling": [row.settling_steps for row in rows],
            "leader": [row.leader_level for row in rows],
        },
        "tune-live-losses",
        {
            "trial": config.TextColumn(width=_TRIAL_PIXELS),
            "steps": config.TextColumn(width=80),
            "ended": config.TextColumn(width=130),
            "saved, s": config.NumberColumn(width=62, format="%+.2f", help=_SAVED),
            "loss": config.NumberColumn(width=56, format="percent", help=_LOSS),
            "learned": config.NumberColumn(width=60, format="%.2f x", help=_LEARNED),
            "loss in the end": config.NumberColumn(width=96, format="percent", help=_IN_THE_END),
            "settling": config.NumberColumn(width=56, format="%d", help=_SETTLING),
            "leader": config.NumberColumn(width=56, format="%.2f x", help=_LEADER),
        },
    )


def _differing_labels(rows: Sequence[WindowRow]) -> list[str]:
    """Labels of windows without what they all have: the layout of one run is always the same."""
    parts = [row.label.split() for row in rows]
    common = set.intersection(*map(set, parts)) if len({row.label for row in rows}) > 1 else set[str]()
    return [" ".join(part for part in each if part not in common) for each in parts]


def _value(row: WindowRow, aim: Aim) -> str:
    if row.value is None:
        return words.NOTHING
    ends = words.interval_ends(*aim.bounds(row.low, row.high))
    return text(aim.to_display(row.value)) + (f" ({ends})" if ends else "")
