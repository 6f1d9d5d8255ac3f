"""Page Steps: from a run to a step, a rank and one call of a collective; each place has a link.

The address says what is shown: a choice changes it, and the page is drawn from it. So a link, a reload and the
browser's back and forward buttons all lead to the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from engine.config.errors import InputError
from profilers.analysis.steps import skew_row
from profilers.collectives.collective_call import CollectiveCall
from profilers.model.rows import SkewRow
from workbench.figures.anatomy import call as call_figure
from workbench.figures.anatomy import heat
from workbench.home.store import RunRow
from workbench.pages.navigation import PAGES
from workbench.pages.run.anatomy.steps import draw_lanes
from workbench.pages.widgets.common import (
    draw_guarded,
    home,
    icon_note,
    limit_options,
    nothing_yet,
    number_table,
    redraw_on_change,
    restore_choice,
    run_rows,
    save_choice,
    say_gone,
    snapshot,
)
from workbench.pages.widgets.heading import heading
from workbench.pages.widgets.plotly_chart import clickable_chart, shared_clickable_chart
from workbench.records import step_view
from workbench.records.live_snapshot import Snapshot
from workbench.records.step_view import StepView
from workbench.text import step as step_text
from workbench.text import step_view as drill_text
from workbench.text import words
from workbench.text.quantities import Column

EVERY_RANK, BY_HOST = "all ranks", "by host"
#: Heat maps that are remembered: of a run that has ended each is made once.
_REMEMBERED = 32
#: Places of the address, each within the one before it.
_DEEPER = ("step", "rank", "call")


def page() -> None:
    """A run on top, then a part for each place that the address names."""
    rows = run_rows()
    title, chooser = st.columns([5, 4], vertical_alignment="bottom")
    with title:
        heading(
            "Steps",
            "From a run to a step, to a rank, to one call of a collective. The address is a link to it.",
        )
    if not rows:
        say_gone("run")
        nothing_yet("There are no runs yet.", "workbench train examples/train.yaml")
        return
    with chooser:
        run = _chosen_run(rows)
    redraw_on_change(lambda: any(row.id == run for row in run_rows()))
    draw_guarded(lambda: _draw(next(row for row in rows if row.id == run)))


def _chosen_run(rows: list[RunRow]) -> str:
    ids = limit_options("run", [row.id for row in rows])
    restore_choice("run", ids)
    run_id = st.selectbox("Run", ids, key="run", on_change=_choose_run)
    save_choice("run", run_id)
    return run_id


def _choose_run() -> None:
    _go(run=st.session_state["run"], step=None)


def _go(**places: object) -> None:
    """To a place of the address; those within it are left. At once: each change of the address is an entry of the
    browser's history, and back is to lead to where somebody was.
    """
    query = st.query_params.to_dict()
    for name, value in places.items():
        for deeper in _DEEPER[_DEEPER.index(name) :] if name in _DEEPER else (name,):
            query.pop(deeper, None)
        if value is not None:
            query[name] = str(value)
    st.query_params.from_dict(query)


def _draw(row: RunRow) -> None:
    records = snapshot(row.id)
    step, rank = _number("step"), _number("rank")
    _path(row, step, rank)
    if not any(len(columns.get("step", ())) for columns in records.steps.values()):
        st.info("No step of this run was recorded yet.", icon=":material/hourglass_top:")
        return
    _heat_map(records)
    if step is not None:
        _one_step(records, step, rank)


def _number(name: str) -> int | None:
    """A number in the address; what is none there is said, and left out."""
    text = st.query_params.get(name)
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    _warn_bad_link(f"{name} {text} in the link is no number")
    return None


def _warn_bad_link(text: str) -> None:
    st.warning(words.escape(f"{text[:1].upper()}{text[1:]}."), icon=":material/link_off:")


def _path(row: RunRow, step: int | None, rank: int | None) -> None:
    """The way back: the study, the run, and each place on the way here."""
    page, call = PAGES["Steps"], st.query_params.get("call")
    with st.container(horizontal=True, vertical_alignment="center", key="steps-path"):
        if row.study:
            study = {"study": row.study}
            st.page_link(
                PAGES["Tune"], label=words.escape(row.study), icon=":material/tune:", query_params=study
            )
        st.page_link(PAGES["Runs"], label=row.id, icon=":material/play_circle:", query_params={"id": row.id})
        place: dict[str, str] = {"run": row.id}
        st.page_link(page, label="all steps", icon=":material/grid_on:", query_params=place)
        parts = (("step", step), ("rank", rank), ("call", call))
        for name, value in [part for part in parts if part[1] is not None]:
            place = place | {name: str(value)}
            label = f"{name} {value:,}" if isinstance(value, int) else str(value)
            st.page_link(page, label=label, icon=":material/chevron_right:", query_params=place)


def _heat_map(records: Snapshot) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", key="steps-choice"):
        name = _choice("Metric", "metric", list(heat.METRICS), heat.OWN_WORK, "What a cell shows.")
        rows = _rows(records)
        relative = st.toggle(
            "beside the median rank",
            key="steps-relative",
            disabled=len(records.steps) < 2,
            help="Shows each rank's time beyond the median rank of the same step: who is behind.",
        )
        st.number_input(
            "Step",
            min_value=0,
            value=_number("step"),
            key=f"steps-number-{st.query_params.get('step')}",
            width=140,
            placeholder="go to",
            on_change=_typed_step,
        )
        if records.running:
            st.button("Update", icon=":material/refresh:", type="tertiary", key="steps-update")
    signature = (name, str(relative), *rows)
    series = _series(
        records.version,
        signature,
        lambda: heat.heat_series(heat.metric_of(records.steps, name), rows, relative),
    )
    point = shared_clickable_chart(
        lambda: heat.heat(series, f"{records.id}-{name}-{relative}-{len(rows)}"),
        "steps-heat",
        f"{name} of each rank in each step",
        records.version,
        *signature,
    )
    if point and isinstance(point.customdata, list):
        _go(step=int(point.customdata[1]), rank=int(point.customdata[0]))
        st.rerun()
    skew = _skew(records.version, name, records)
    st.caption(f":material/person_alert: {words.escape(skew)}", help=step_text.SKEW_HELP)
    exceeds_scale = (
        " Colours are those of the measured steps; warm-up lies beyond them." if series.exceeds_scale else ""
    )
    st.caption(
        f":material/touch_app: Click on a cell to see that rank in that step, or type a step.{exceeds_scale}"
    )


@st.cache_resource(max_entries=_REMEMBERED, show_spinner=False)
def _series(look: str, signature: tuple[str, ...], _make: Callable[[], heat.HeatSeries]) -> heat.HeatSeries:
    del look, signature
    return _make()


def _typed_step() -> None:
    _go(step=st.session_state.get(f"steps-number-{st.query_params.get('step')}"))


def _choice(label: str, name: str, options: list[str], first: str, help_text: str) -> str:
    """A chooser whose value is in the address, unless it is the first one."""
    linked = st.query_params.get(name, first)
    if linked not in options:
        _warn_bad_link(f"{name} {linked} in the link is not known here")
        linked = first
    key = f"steps-{name}"
    st.session_state[key] = linked

    def update_link() -> None:
        value = st.session_state[key]
        _go(**{name: None if value == first else value})

    option: str = st.selectbox(label, options, key=key, width=220, help=help_text, on_change=update_link)
    return option


def _rows(records: Snapshot) -> dict[str, list[int]]:
    """Titles of rows and their ranks: hosts first where there are many ranks on several."""
    ranks = sorted(records.steps)
    by_host = heat.rows_by_host(ranks, records.rank_hosts)
    single_ranks = {f"rank {rank}": [rank] for rank in ranks}
    if len(by_host) < 2:
        return single_ranks
    first = BY_HOST if len(ranks) > heat.MANY_RANKS else EVERY_RANK
    options = [first, EVERY_RANK if first == BY_HOST else BY_HOST, *by_host]
    option = _choice(
        "Rows", "rows", options, first, "Hosts, of which a row shows the largest value, or ranks."
    )
    if option == BY_HOST:
        return by_host
    return single_ranks if option == EVERY_RANK else {f"rank {rank}": [rank] for rank in by_host[option]}


@st.cache_resource(max_entries=_REMEMBERED, show_spinner=False)
def _skew(look: str, name: str, _records: Snapshot) -> str:
    """Of which kind the skew in a metric is, over the measured steps; of all, while none is measured."""
    del look
    if len(_records.steps) < 2:
        return "A single rank has no skew."
    row = _kind(_records, name, True) or _kind(_records, name, False)
    return (
        "No skew was recorded in this metric."
        if row is None
        else f"{name.capitalize()}: {_small(step_text.skew(row))}"
    )


def _small(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"


def _kind(records: Snapshot, name: str, measured: bool) -> SkewRow | None:
    metric = heat.metric_of(records.steps, name, measured).select_known()
    return skew_row(metric.seconds, metric.ranks, metric.steps.tolist())


def _one_step(records: Snapshot, step: int, rank: int | None) -> None:
    try:
        view = step_view.step_view(home() / records.id, step)
    except InputError as error:
        _warn_bad_link(f"step {step:,}: {error.remedy}")
        return
    st.header(f"Step {step:,}", anchor=False, divider=True)
    columns = drill_text.step_columns(view.ranks)
    numbers = [row.rank for row in view.ranks]
    _clickable_table(columns, "steps-ranks", lambda place: _go(rank=numbers[place]), f"{records.id}-{step}")
    st.caption(":material/touch_app: Choose a rank in the table to see the calls of its collectives.")
    _slowest(view)
    draw_lanes(records, step, rank, _go)
    if rank is not None:
        _one_rank(records, view, rank)


def _slowest(view: StepView) -> None:
    """The call to look at first, and the way there."""
    if (slowest := view.slowest) is None:
        return
    place = {
        "run": view.run,
        "step": str(view.step),
        "rank": str(slowest.rank),
        "call": slowest.call.key.link_text(),
    }
    with st.container(horizontal=True, vertical_alignment="center", key="steps-slowest"):
        st.markdown(
            f":material/hourglass_bottom: {words.escape(drill_text.slowest(slowest.call, slowest.rank))}",
            width="content",
        )
        st.page_link(
            PAGES["Steps"], label="See this call", icon=":material/chevron_right:", query_params=place
        )


def _clickable_table(columns: list[Column], key: str, on_row: Callable[[int], None], key_suffix: str) -> None:
    """A table of quantities; a click on a row calls ``on_row`` with its number."""
    numbers_of_titles = {
        column.title: column.numbers for column in columns if any(v is not None for v in column.numbers)
    }
    config = {
        column.title: st.column_config.NumberColumn(format=column.unit.format, help=column.note)
        for column in columns
        if column.unit
    }
    name = f"{key}-{key_suffix}"

    def chosen() -> None:
        rows = st.session_state[name]["selection"]["rows"]
        if rows:
            on_row(rows[0])

    st.dataframe(
        numbers_of_titles,
        key=name,
        hide_index=True,
        column_config=config,
        placeholder=words.NOTHING,
        height=360 if len(next(iter(numbers_of_titles.values()))) > 9 else "content",
        on_select=chosen,
        selection_mode="single-row",
    )


def _one_rank(records: Snapshot, view: StepView, rank: int) -> None:
    try:
        rank_view = step_view.step_view(home() / records.id, view.step, rank)
    except InputError as error:
        _warn_bad_link(f"rank {rank:,}: {error.remedy}")
        return
    st.header(f"Collectives of rank {rank:,} in step {view.step:,}", anchor=False, divider=True)
    if not rank_view.calls:
        st.caption(_no_calls(records, rank_view))
    else:
        keys = [call.key.link_text() for call in rank_view.calls]
        columns = drill_text.call_columns(rank_view.calls, rank)
        _clickable_table(
            columns, "steps-calls", lambda place: _go(call=keys[place]), f"{records.id}-{view.step}-{rank}"
        )
        st.caption(":material/touch_app: Choose a call in the table to see it on all its ranks.")
    if (call_text := st.query_params.get("call")) is not None:
        _one_call(records, view, rank, call_text)


def _no_calls(records: Snapshot, rank_view: StepView) -> str:
    rank_row = next(row for row in rank_view.ranks if row.rank == rank_view.rank)
    if len(records.steps) == 1:
        return "A single rank sends nothing."
    return (
        "No collective was recorded in this step: messages between two ranks are not matched."
        if rank_row.phases
        else "This step was not recorded in detail (profile.budget)."
    )


def _one_call(records: Snapshot, view: StepView, rank: int, call_text: str) -> None:
    try:
        (call,) = step_view.step_view(home() / records.id, view.step, rank, call_text).calls
    except InputError as error:
        _warn_bad_link(f"call {call_text}: {error.remedy}")
        return
    hosts: Mapping[int, str | None] = {row.rank: row.host for row in view.ranks}
    _draw_call(call, rank, hosts)


def _draw_call(call: CollectiveCall, rank: int, hosts: Mapping[int, Any]) -> None:
    title = f"Call {call.number:,} of {call.operation} on {call.axis}"
    st.header(words.escape(title), anchor=False, divider=True)
    st.markdown(f":material/schedule: {words.escape(drill_text.meeting(call, rank))}")
    chart_column, table_column = st.columns([1.3, 1])
    with chart_column:
        drawing = call_figure.call(call, call.key.link_text())
        point = clickable_chart(drawing, "steps-call", f"{title}: waiting and running on each rank")
        if point and isinstance(point.customdata, int):
            st.query_params["rank"] = str(point.customdata)
            st.rerun()
    with table_column:
        number_table(drill_text.collective_call_columns(call, hosts), "steps-call-table")
    icon_note("info", drill_text.collective_call_note(call))


if __name__ == "__main__":
    page()
