"""Which of a study's thousands of trials a table shows, and all of them to download.

A study as the pages need it: its folder read once for all browsers, and its trials as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from engine.config.knobs.catalogue import KNOBS
from tuning.report.study_result import Measurement
from tuning.spec.objectives import Aim
from tuning.storage import study_folder
from tuning.storage.state import CHECK
from workbench.analysis.studies import FollowedStudies, FollowedStudy, StudySnapshot
from workbench.figures import study as study_figures
from workbench.figures.search.downsampling import downsample
from workbench.figures.study import TrialSeries, trial_series
from workbench.pages.widgets.common import compare_link, home, table_height
from workbench.pages.widgets.plotly_chart import clickable_chart
from workbench.text import words
from workbench.text.study import CHOICES, NEWEST, SHOWN, all_rows, as_csv, window
from workbench.text.tile_help import TRIALS

SHOWN_ROWS = 12
TOKENS = Aim()
#: The run whose page is shown next: somebody clicked on its trial.
OPEN_RUN = "open-run"
_VALUES = {
    "tokens/s": st.column_config.NumberColumn(width=74, format="%,.0f"),
    "s": st.column_config.NumberColumn(width=74, format="%,.1f"),
    "ms": st.column_config.NumberColumn(width=74, format="%,.1f"),
    "loss": st.column_config.NumberColumn(width=74, format="%.3f"),
}
_ANY_VALUE = st.column_config.NumberColumn(width=110, format="%,.4g")


def study(name: str) -> StudySnapshot:
    """The study as it stands; of its files only what is new is read.

    Raises:
        InputError: there is no such study.
    """
    return follow_study(name).snapshot()


def follow_study(name: str) -> FollowedStudy:
    """A study that is read as it grows, for all browsers."""
    return _followed_studies().study(home() / study_folder.STUDIES / name)


@st.cache_resource
def _followed_studies() -> FollowedStudies:
    return FollowedStudies()


def trial_chart(study: StudySnapshot, key: str) -> None:
    """Each trial with its interval; of thousands as many as can be told apart, and what that leaves out. A click on a
    trial leads to its run.
    """
    name, aim = study.view.name, study.result.aim

    def draw() -> tuple[TrialSeries, go.Figure]:
        series = downsample(trial_series(study.result))
        return series, study_figures.trials(series, name, aim)

    series, drawing = follow_study(name).more("trial-chart", study.document, draw)
    point = clickable_chart(drawing, key, f"{aim.title}, with intervals")
    if point is not None:
        _open_run(study, point.x)
    if series.note:
        st.caption(series.note)


def _open_run(study: StudySnapshot, number: object) -> None:
    """To the page of a trial's run; what has none, or none any more, says so."""
    trial = next((row for row in all_rows(study.result) if row.number == number), None)
    if trial is None:
        return
    if trial.run and (home() / trial.run).is_dir():
        # A part of a page that leaves it is drawn again by its timer, in the place of the page that it left for.
        st.session_state[OPEN_RUN] = trial.run
        st.rerun()
    why = (
        f"its run {trial.run} is not in this home any more"
        if trial.run
        else trial.reason or "it was never started"
    )
    # A part that is drawn again each second keeps no other message.
    st.toast(words.escape(f"Trial {trial.number:,}: {why}."), icon=":material/link_off:", duration="infinite")


def trials_table(
    rows: Sequence[Measurement],
    has_effect: Callable[[str, Mapping[str, Any]], bool],
    key: str,
    aim: Aim = TOKENS,
) -> None:
    """One line per trial, the newest first; a knob that does nothing at a point is left blank."""
    newest = list(rows)[::-1]
    keys = list(dict.fromkeys(name for row in newest for name in row.config))
    layout_keys = {f"parallel.{name}" for name in words.IN_LAYOUT}
    varying_keys = [name for name in keys if name not in layout_keys]
    st.dataframe(
        {
            "trial": [row.number for row in newest],
            "outcome": [[words.ending_words(row.outcome)] for row in newest],
            aim.unit: [aim.to_display(row.value) for row in newest],
            "95 % interval": [words.interval_ends(*aim.bounds(row.low, row.high)) for row in newest],
            "layout": [_layout(row.config) for row in newest],
            **{
                words.short(name): [
                    words.choice(name, row.config[name]) if has_effect(name, row.config) else ""
                    for row in newest
                ]
                for name in varying_keys
            },
            "seconds": [row.seconds or None for row in newest],
            "proposed by": [_source(row) for row in newest],
            "reason": [row.reason for row in newest],
        },
        key=key,
        hide_index=True,
        height=table_height(len(newest), SHOWN_ROWS),
        placeholder=words.NOTHING,
        column_config=_columns() | {aim.unit: _VALUES.get(aim.unit, _ANY_VALUE)},
        on_select=lambda: _tick(newest, key),
        selection_mode="multi-row",
    )
    compare_link(f"{key}-ticked", leads_to_run=True)


def _tick(newest: Sequence[Measurement], key: str) -> None:
    """Rows move down when trials arrive: what was ticked is kept by its run."""
    rows = st.session_state[key]["selection"]["rows"]
    runs = [newest[row].run for row in rows if row < len(newest)]
    st.session_state[f"{key}-ticked"] = [run for run in runs if run]


def _columns() -> dict[str, Any]:
    states = list(words.LOOKS)
    colors: Any = [words.LOOKS[state][0] for state in states]
    spoken = [words.ending_words(state) for state in states]
    text = st.column_config.TextColumn
    return {
        "trial": st.column_config.NumberColumn(width=46, pinned=True),
        "outcome": st.column_config.MultiselectColumn(width=112, options=spoken, color=colors),
        "95 % interval": text(width=108, help=TRIALS["95 % interval"]),
        "layout": text(width=100),
        **{name: text(width=_wide(name)) for name in {knob.short for knob in KNOBS.values() if knob.short}},
        "compression": text(width=90),
        "micro-batch": text(width=82),
        "seconds": st.column_config.NumberColumn(width=60, format="%.1f", help=TRIALS["seconds"]),
        "proposed by": text(width=84, help=TRIALS["proposed by"]),
        "reason": text(width=360),
    }


def _wide(name: str) -> int:
    """Pixels that a column's name is not cut in."""
    return max(74, 16 + 7 * len(name))


def _layout(config: Mapping[str, Any]) -> str:
    parallel = {name: value for name, value in config.items() if name.startswith("parallel.")}
    return words.layout({name.removeprefix("parallel."): value for name, value in parallel.items()})


def _source(row: Measurement) -> str:
    if row.confirms is not None:
        return f"{'loss of' if row.source == CHECK else 're-measures'} {row.confirms}"
    if row.retry_of is not None:
        return f"retry of {row.retry_of}"
    return "by hand" if row.source == "enqueued" else row.source


def select_rows(rows: Sequence[Measurement], key: str) -> list[Measurement]:
    """The rows that were chosen above the table; all of a short list, without a choice."""
    if len(rows) <= SHOWN:
        return list(rows)
    with st.container(horizontal=True, vertical_alignment="center", key=f"{key}-window"):
        choice = st.segmented_control(
            "Trials",
            CHOICES,
            default=NEWEST,
            required=True,
            key=f"{key}-choice",
            label_visibility="collapsed",
        )
        window_rows, note = window(rows, choice or NEWEST)
        st.caption(note)
    return window_rows


def download(name: str, key: str) -> None:
    """A button; the file is made when it is clicked. Not for a part of a page that is drawn again by itself."""
    st.download_button(
        "Download all trials as CSV",
        lambda: as_csv(study(name).result),
        file_name=f"{name}-trials.csv",
        mime="text/csv",
        key=key,
        icon=":material/download:",
        type="tertiary",
        on_click="ignore",
    )
