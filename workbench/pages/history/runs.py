"""Page Runs: everything that ran in this home, newest first, and the details of one."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import streamlit as st

from workbench.home.store import RunRow, StudyRow
from workbench.pages.run import control, details
from workbench.pages.study import details as study_details
from workbench.pages.study import transfer
from workbench.pages.widgets.common import (
    MOST_OPTIONS,
    answer_of_click,
    compare_link,
    draw_guarded,
    home,
    limit_options,
    nothing_yet,
    redraw_on_change,
    restore_choice,
    run_rows,
    save_choice,
    say_gone,
    show_store_note,
    study_rows,
    table_height,
)
from workbench.pages.widgets.heading import heading
from workbench.text import tile_help, words

#: Windows of a confirmation are many and short: the first kind leaves them out.
LISTED_CHOICES = ("Runs and studies", "Runs", "Studies", "Windows")
SHOWN_ROWS = 9
#: What the address holds of the filters.
FILTERS = ("filter", "kind", "outcomes", "tags")


class Line(NamedTuple):
    """A run, a study, or a window (a short run that measured a trial again) as a line of the table."""

    id: str
    kind: str
    when: float
    outcome: str
    layout: str
    rate: float | None
    step_milliseconds: float | None
    part_of: str
    note: str
    tags: list[str]
    said: str


def page() -> None:
    """A table to choose from; below it what was chosen."""
    title, bring = st.columns([2, 2.2], vertical_alignment="bottom")
    with title:
        heading("Runs", f"All runs in {home()}, newest first.")
    with bring.container(horizontal=True, horizontal_alignment="right"):
        control.start_run()
        control.make_room()
        transfer.upload()
    answer_of_click("run-new")
    answer_of_click("prune")
    control.follow_start()
    control.dry_run_result()
    control.pruning_result()
    transfer.draw_import_result()
    show_store_note()
    redraw_on_change(_outcomes)
    lines = all_lines(run_rows(), study_rows())
    if not lines:
        say_gone("id")
        nothing_yet("There are no runs yet.", "workbench train examples/train.yaml")
        return
    is_folded = _asked_for_one([line.id for line in lines])
    with _list(len(lines), folded=is_folded):
        matches = _matching_lines(lines)
        if not matches:
            st.info("No run or study matches the filter.", icon=":material/filter_alt:")
            return
        _table(matches[:MOST_OPTIONS])
        compare_link("runs-ticked")
        _omission_note(matches)
    selected_id = _run_chooser([line.id for line in matches], {line.id for line in lines})
    kind = next(line.kind for line in lines if line.id == selected_id)
    draw_guarded(
        lambda: study_details.draw_study(selected_id) if kind == "study" else details.draw_run(selected_id)
    )


def _asked_for_one(ids: list[str]) -> bool:
    """Whether who came here followed a link to one of them, and asked for no filter: the list is in the way then."""
    linked = st.query_params.get("id")
    if linked != st.session_state.get("linked-id"):
        st.session_state["runs-folded"] = linked in ids and not any(
            st.query_params.get(key) for key in FILTERS
        )
    return bool(st.session_state.get("runs-folded"))


def _list(count: int, *, folded: bool) -> Any:
    """Where the list of them stands; folded it is one line, which opens."""
    if not folded:
        return st.container()
    return st.expander(f"All runs and studies ({count:,})", icon=":material/list:", key="runs-list")


def _outcomes() -> list[tuple[str, str, str, list[str]]]:
    """What is there, how it stands, and what is said of it."""
    runs = [(row.id, row.outcome or row.state, row.note, row.tags) for row in run_rows()]
    return runs + [(row.name, row.state, row.note, row.tags) for row in study_rows()]


def all_lines(runs: Sequence[RunRow], studies: Sequence[StudyRow]) -> list[Line]:
    """Runs and studies together, newest first."""
    lines = [_run_line(row) for row in runs] + [_study_line(row) for row in studies]
    return sorted(lines, key=lambda line: line.when, reverse=True)


def _run_line(row: RunRow) -> Line:
    return Line(
        id=row.id,
        kind="window" if row.purpose == "confirm" else "run",
        when=row.created_unix,
        outcome=row.outcome or row.state,
        layout=words.layout(row.layout),
        rate=row.tokens_per_second,
        step_milliseconds=None if row.step_seconds is None else row.step_seconds * 1e3,
        part_of=f"{row.study} · trial {row.trial}" if row.study else "",
        note=row.reason,
        tags=row.tags,
        said=row.note,
    )


def _study_line(row: StudyRow) -> Line:
    rate = row.best_value if row.objective in (None, "tokens_per_second") else None
    done_text = f"{row.trials_done} of {row.trials_total} trials" if row.trials_total else ""
    result_text, annotations = row.result_line or "", (row.tags, row.note)
    return Line(
        row.name, "study", row.updated_unix, row.state, "", rate, None, done_text, result_text, *annotations
    )


def _matching_lines(lines: list[Line]) -> list[Line]:
    with st.container(horizontal=True, vertical_alignment="bottom", key="runs-filter"):
        text = st.text_input(
            "Filter",
            key="filter",
            placeholder="id, study, layout, reason or note",
            icon=":material/search:",
            width=340,
            bind="query-params",
        )
        kind = st.segmented_control(
            "Kind",
            LISTED_CHOICES,
            default=LISTED_CHOICES[0],
            required=True,
            key="kind",
            bind="query-params",
            help=tile_help.WINDOWS,
        )
        outcomes = sorted({line.outcome for line in lines})
        wanted_outcomes = st.pills(
            "Ending",
            outcomes,
            selection_mode="multi",
            key="outcomes",
            format_func=words.ending_words,
            bind="query-params",
        )
        all_tags = sorted({tag for line in lines for tag in line.tags})
        tags = all_tags and st.pills(
            "Tag", all_tags, selection_mode="multi", key="tags", bind="query-params", format_func=words.escape
        )
    return [
        line for line in lines if matches(line, text or "", kind or LISTED_CHOICES[0], wanted_outcomes, tags)
    ]


def matches(line: Line, text: str, kind: str, outcomes: Sequence[str], tags: Sequence[str] = ()) -> bool:
    """Whether a line passes the filters; every word has to occur somewhere in it, and every tag is one of its."""
    searched_texts = (
        line.id,
        line.layout,
        line.part_of,
        line.note,
        line.said,
        *line.tags,
        words.ending_words(line.outcome),
    )
    heap = " ".join(searched_texts).lower()
    right_kind = (
        line.kind != "window" if kind == LISTED_CHOICES[0] else kind.lower().startswith(line.kind[:3])
    )
    return (
        right_kind
        and (not outcomes or line.outcome in outcomes)
        and set(tags) <= set(line.tags)
        and all(w in heap for w in text.lower().split())
    )


def _table(lines: list[Line]) -> None:
    written_by_people: dict[str, list[Any]] = {
        "tags": [line.tags for line in lines],
        "your note": [line.said for line in lines],
    }
    st.dataframe(
        {
            "id": [line.id for line in lines],
            "kind": [line.kind for line in lines],
            "when": [datetime.fromtimestamp(line.when) for line in lines],
            "outcome": [[words.ending_words(line.outcome)] for line in lines],
            "layout": [line.layout for line in lines],
            "tokens/s": [line.rate for line in lines],
            "step, ms": [line.step_milliseconds for line in lines],
            "study": [line.part_of for line in lines],
            "note": [line.note for line in lines],
            **{title: values for title, values in written_by_people.items() if any(values)},
        },
        key="runs-table",
        hide_index=True,
        height=table_height(len(lines), SHOWN_ROWS),
        placeholder=words.NOTHING,
        column_config=_columns(),
        on_select=lambda: _select(lines),
        selection_mode="multi-row",
    )


def _omission_note(lines: list[Line]) -> None:
    """What the table does not show of thousands, and all of it to download."""
    if len(lines) <= MOST_OPTIONS:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="runs-left-out"):
        st.caption(
            f"Only the newest {MOST_OPTIONS:,} of {len(lines):,} are listed; the filter searches all of them."
        )
        st.download_button(
            "Download all as CSV",
            lambda: as_csv(lines),
            file_name="runs.csv",
            mime="text/csv",
            key="runs-csv",
            icon=":material/download:",
            type="tertiary",
            on_click="ignore",
        )


def as_csv(lines: Sequence[Line]) -> str:
    """Lines as a file, times as ISO 8601 in UTC."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Line._fields)
    for line in lines:
        date = datetime.fromtimestamp(line.when, UTC).isoformat(timespec="seconds")
        writer.writerow([date if name == "when" else value for name, value in line._asdict().items()])
    return text.getvalue()


def _columns() -> dict[str, Any]:
    states = list(words.LOOKS)
    colors: Any = [words.LOOKS[state][0] for state in states]
    spoken = [words.ending_words(state) for state in states]
    return {
        "id": st.column_config.TextColumn(width=175, pinned=True),
        "kind": st.column_config.TextColumn(width=55),
        "when": st.column_config.DatetimeColumn(width=125, format="DD MMM HH:mm:ss"),
        "outcome": st.column_config.MultiselectColumn(width=120, options=spoken, color=colors),
        "layout": st.column_config.TextColumn(width=125),
        "tokens/s": st.column_config.NumberColumn(width=85, format="%,.0f"),
        "step, ms": st.column_config.NumberColumn(width=80, format="%,.1f"),
        "study": st.column_config.TextColumn(width=140),
        "note": st.column_config.TextColumn(width=330),
        "tags": st.column_config.ListColumn(width=140),
        "your note": st.column_config.TextColumn(width=260),
    }


def _select(lines: list[Line]) -> None:
    """The row that was ticked last is shown below; several are for comparing."""
    rows = st.session_state["runs-table"]["selection"]["rows"]
    ticked_ids = [lines[row].id for row in rows if row < len(lines)]
    before = st.session_state.get("runs-ticked", [])
    new = [name for name in ticked_ids if name not in before] or ticked_ids
    if new:
        st.session_state["id"] = new[-1]
    st.session_state["runs-ticked"] = ticked_ids


def _run_chooser(run_ids: list[str], listed_ids: set[str]) -> str:
    """Of those that match the filter."""
    ids = limit_options("id", run_ids)
    restore_choice("id", ids, hidden_options=listed_ids)
    selected_id = st.selectbox("Details of", ids, key="id", width=420)
    save_choice("id", selected_id)
    return selected_id


if __name__ == "__main__":
    page()
