"""What all pages use: the home folder, its lists, snapshots for all browsers, and small pieces of layout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from engine.config.errors import WorkbenchError
from profilers.model.run_summary import RunSummary
from workbench.analysis.compare import FEWEST, MOST
from workbench.home.resolve import resolve
from workbench.home.runs import RunView
from workbench.home.settings import home_folder
from workbench.home.store import RunRow, Store, StudyRow
from workbench.pages.navigation import PAGES
from workbench.pages.widgets import login
from workbench.records.live_snapshot import LiveRuns, Snapshot
from workbench.services.access import ROLE_HEADER, Role
from workbench.services.ongoing_runs import RunningSummaries
from workbench.services.report import html
from workbench.text import tile_help, words
from workbench.text.quantities import Column

ASSETS = Path(__file__).parent / "assets"
#: A list that another browser asked for within this time is shown again.
FRESH_SECONDS = 0.8
LOOK_SECONDS = 2.0
#: A chooser offers, and a list shows, so many at a time: a browser that gets 10,000 with each change is slow.
MOST_OPTIONS = 500
ROW_PIXELS = 33
#: What another line in a row adds.
_LINE_PIXELS = 20
#: A tile whose title can be read.
TILE_PIXELS = 165
ONLY_SHOWN = "This link shows the page and does not steer."


def home() -> Path:
    """The home folder that this server shows."""
    return home_folder()


@st.cache_resource
def _live_runs(*, thinned: bool) -> LiveRuns:
    return LiveRuns(thinned=thinned)


def snapshot(run_id: str) -> Snapshot:
    """A look at a run with all its records, made once for all browsers."""
    return _live_runs(thinned=False).snapshot(home() / run_id)


def thin_snapshot(run_id: str) -> Snapshot:
    """A look at a run for a page that stays open for hours: what is held of it is bounded."""
    _live_runs(thinned=False).forget()
    return _live_runs(thinned=True).snapshot(home() / run_id)


@st.cache_resource
def _running(*, recent: bool) -> RunningSummaries:
    return RunningSummaries(recent=recent)


def summary_of(view: RunView) -> RunSummary | None:
    """A run's summary, or that of its records so far; made once for all browsers."""
    return _running(recent=False).summary(view)


def recent_summary_of(view: RunView) -> RunSummary | None:
    """The same, for a page that stays open for hours: of a run that goes on it is of its last steps."""
    return _running(recent=True).summary(view)


@st.cache_resource
def _store(home: Path) -> Store:
    return Store(home)


@st.cache_resource(ttl=FRESH_SECONDS, show_spinner=False)
def _lists(home: Path) -> tuple[list[RunRow], list[StudyRow], str | None]:
    store = _store(home)
    try:
        return *store.lists(), store.note
    except (WorkbenchError, OSError) as error:
        return [], [], str(error)


def run_rows() -> list[RunRow]:
    """All runs, newest first."""
    return _lists(home())[0]


def study_rows() -> list[StudyRow]:
    """All studies, the one that changed last first."""
    return _lists(home())[1]


def read_lists_again() -> None:
    """Somebody changed what the lists say: the next look does not wait until they are old."""
    _lists.clear()


def redraw_on_change(signature: Callable[[], object]) -> None:
    """Runs the whole page again once a list that it shows has changed: something began, ended or went away."""
    st.fragment(_look, run_every=LOOK_SECONDS)(signature, signature())


def _look(signature: Callable[[], object], drawn_signature: object) -> None:
    if signature() != drawn_signature:
        st.rerun()


def may_steer() -> bool:
    """Whether who looks may also steer. The door before the page says so: see ``workbench.services.access``."""
    return st.context.headers.get(ROLE_HEADER, Role.OWNER) == Role.OWNER and login.role() is Role.OWNER


def may_fill_in() -> bool:
    """Whether a form is drawn, read and checked; whoever came by a link that only shows gets a line in its place.

    A browser sends what it likes as the values of widgets, also of those that are switched off. One that is not drawn
    has no value, so what a form's checks read, import or tell of this machine stays out of reach.
    """
    if may_steer():
        return True
    st.caption(f":material/visibility: {ONLY_SHOWN}")
    return False


def button_pressed(draw: Callable[..., object], label: str, key: str, **options: Any) -> bool:
    """Draws a button; true once for each click.

    Streamlit's own answer is not enough for what must happen once: a run that is interrupted by another is
    repeated with the same click. Its callback is called once, so the click is kept here until somebody takes it.
    Whoever came by a link that only shows finds it switched off, and a click that is sent all the same does nothing.
    """
    click_key = f"clicked-{key}"
    if not may_steer():
        draw(label, key=key, **options | {"disabled": True, "help": ONLY_SHOWN})
        st.session_state.pop(click_key, None)
        return False
    draw(label, key=key, on_click=_keep_click, args=(click_key,), **options)
    return bool(st.session_state.pop(click_key, False))


def _keep_click(click_key: str) -> None:
    """Unless who sent it only looks by now: it would be taken once somebody steers in the same tab."""
    if may_steer():
        st.session_state[click_key] = True


def limit_options(key: str, options: Sequence[str]) -> list[str]:
    """Of thousands of options the first ones, and those that this chooser shows or is linked to."""
    places = (st.query_params.get(key), st.session_state.get(f"linked-{key}"), st.session_state.get(key))
    listed_options, folded_options = list(options[:MOST_OPTIONS]), set(options[MOST_OPTIONS:])
    return listed_options + [name for name in dict.fromkeys(places) if name in folded_options]


def restore_choice(
    key: str, options: Sequence[str], first: str | None = None, hidden_options: Collection[str] = ()
) -> None:
    """Before a chooser is drawn: its value from a new link, else the last one chosen, else ``first``.

    What is in neither ``options`` nor ``hidden_options``, which are there and cannot be chosen now, is gone, and
    :func:`save_choice` says so.
    """
    linked, last = st.query_params.get(key), st.session_state.get(f"linked-{key}")
    if linked != last:
        st.session_state.pop(f"gone-{key}", None)
        if linked in options:
            st.session_state[key] = linked
        elif linked and linked not in hidden_options:
            st.session_state[f"gone-{key}"] = linked
    elif last and last not in options and last not in hidden_options:  # it was deleted while it was shown
        st.session_state[f"gone-{key}"] = st.session_state.pop(f"linked-{key}")
    if st.session_state.get(key) not in options:
        st.session_state[key] = last if last in options else first or options[0]
    # Said anew each time: a browser that missed it, as options changed while the page loaded, shows the first one.
    st.session_state[key] = st.session_state[key]


def save_choice(key: str, option: str) -> None:
    """After a chooser was drawn: keep its value in the address, so that it can be sent to somebody."""
    missing_option, before = st.session_state.get(f"gone-{key}"), st.session_state.get(f"linked-{key}")
    st.query_params[key] = st.session_state[f"linked-{key}"] = option
    if missing_option and option != before and before is not None:
        st.session_state.pop(f"gone-{key}")
    elif missing_option:
        _say_gone(missing_option, f"Shown is {option}.")


def say_gone(key: str) -> None:
    """Where nothing is left to choose from: what the address names, if it names anything."""
    if linked := st.query_params.get(key):
        _say_gone(linked, "")


def _say_gone(name: str, replacement_text: str) -> None:
    text = f"{name} is not in this home: it was deleted, or the link is from another one. {replacement_text}"
    st.warning(words.escape(text.strip()), icon=":material/link_off:")


def show_store_note() -> None:
    """What was wrong with the index, if anything."""
    if note := _lists(home())[2]:
        st.warning(words.escape(note), icon=":material/warning:")


def badge(state: str | None, label: str | None = None) -> None:
    """A coloured badge for an ending or a state."""
    color, icon = words.look(state or "")
    st.badge(label or words.ending_words(state), icon=icon, color=color)  # type: ignore[arg-type]


def backend_note(backend: str | None, reason: str | None) -> None:
    """What ranks send by. Why no GPU does it may be the words of a driver's library, which belong in a tip."""
    if backend:
        text = f"{backend}, on the CPU" if backend == "gloo" else backend
        st.caption(words.escape(text), help=words.escape(reason or "no reason was recorded"), width="content")


def icon_note(icon: str, text: str) -> None:
    """A quiet line with an icon; what it says is shown as it is written."""
    st.caption(f":material/{icon}: {words.escape(text)}")


def metrics(values: Mapping[str, tuple[str, str]], key: str) -> None:
    """A row of tiles: label -> (value, a quiet line below it), each with what its number is."""
    with st.grid(len(values), min_column_width=TILE_PIXELS, gap="small", key=key):
        for label, (value, caption) in values.items():
            with st.container(border=True, gap="xxsmall", height="stretch"):
                st.metric(label, value, help=tile_help.find_help(label))
                st.caption(caption or "&nbsp;")


def table(
    columns: Mapping[str, list[Any]], key: str, config: Mapping[str, Any] | None = None, lines: int = 1
) -> None:
    """A read-only table; a column without any value is left out. Words go on in so many lines of a row."""
    cells = {
        name: [words.plain_commands(value) if isinstance(value, str) else value for value in values]
        for name, values in columns.items()
        if any(value is not None for value in values)
    }
    st.dataframe(
        cells,
        key=key,
        hide_index=True,
        column_config=config,
        height="content",
        row_height=None if lines == 1 else ROW_PIXELS + (lines - 1) * _LINE_PIXELS,
        placeholder=words.NOTHING,
    )


def number_table(columns: Sequence[Column], key: str) -> None:
    """A read-only table of quantities; units are in the titles, notes are shown where one points at a title."""
    config = {
        column.title: st.column_config.NumberColumn(format=column.unit.format, help=column.note)
        for column in columns
        if column.unit
    }
    table({column.title: column.numbers for column in columns}, key, config)


def table_height(rows: int, most: int) -> int | Literal["content"]:
    """All rows of a table, or as many as are allowed and a half, so that one sees that there are more."""
    return "content" if rows <= most else round((most + 1.5) * ROW_PIXELS)


def report_button(identity: str) -> None:
    """The report of a run or a study to download; it is made when it is clicked."""
    st.download_button(
        "Report",
        lambda: html(home(), resolve(home(), identity)),
        file_name=f"{identity}.html",
        mime="text/html",
        key="report",
        icon=":material/description:",
        type="tertiary",
        on_click="ignore",
        help="One HTML file with all figures, which opens without a network.",
    )


def compare_link(ids_key: str, *, leads_to_run: bool = False) -> None:
    """A link to the comparison of the runs whose ids a table left in the session under this key; of a single one, where
    nothing below the table shows it, a link to it.
    """
    ids = st.session_state.get(ids_key, [])
    if leads_to_run and len(ids) == 1:
        query = {"id": ids[0]}
        st.page_link(PAGES["Runs"], label=f"Open {ids[0]}", icon=":material/play_circle:", query_params=query)
    if FEWEST <= len(ids) <= MOST:
        st.page_link(
            PAGES["Compare"],
            label=f"Compare these {len(ids)}",
            icon=":material/compare_arrows:",
            query_params={"ids": ",".join(ids)},
        )
    elif len(ids) > MOST:
        st.caption(f"At most {MOST} can be compared; {len(ids)} are ticked.")
    elif ids:
        st.caption("Tick another row to compare them.")


def nothing_yet(text: str, command: str) -> None:
    """An empty page that says what to do."""
    with st.container(border=True):
        st.markdown(f"**{text}**")
        st.page_link(
            PAGES["Tune"], label="Start a study here", icon=":material/tune:", query_params={"view": "new"}
        )
        st.caption("or on the command line:")
        st.code(command, language="bash")


def remember(place: str, text: str, *, is_refused: bool) -> None:
    """Keeps what became of a click for :func:`answer_of_click`."""
    st.session_state[f"answer-{place}"] = (text, is_refused)


def answer_of_click(place: str) -> None:
    """What became of the last click here. A refusal stays until somebody says that it was read."""
    text, is_refused = st.session_state.get(f"answer-{place}", ("", False))
    if not text:
        return
    answer_key = f"answer-{place}"
    answer_until_read(place, text, lambda: st.session_state.pop(answer_key, None), is_refused=is_refused)


def answer_until_read(place: str, text: str, on_read: Callable[[], None], *, is_refused: bool) -> None:
    """An answer with the button that says that it was read."""
    with st.container(horizontal=True, vertical_alignment="center", key=f"answer-{place}-shown"):
        draw_box, icon = (st.error, ":material/block:") if is_refused else (st.success, ":material/check:")
        draw_box(words.escape(text), icon=icon)
        st.button("OK", key=f"answer-{place}-read", on_click=on_read)


def grid(count: int, columns: int) -> list[Any]:
    """Places row by row, so that what stands beside each other begins at one height."""
    return [place for _ in range(0, count, columns) for place in st.columns(columns)]


def side_by_side(key: str, *shares: float) -> list[Any]:
    """Columns of these shares; one below the other in a window too narrow for tables in them."""
    with st.container(key=f"stacked-{key}"):
        return list(st.columns(shares))


def wrong_value(line: str) -> None:
    """What is wrong with a field, below or beside it."""
    st.markdown(f":small[:red[:material/error: {words.escape(line)}]]")


def draw_guarded(part: Callable[[], None]) -> None:
    """Runs a part of a page; what a file or the command line refuses becomes a line on the page."""
    try:
        part()
    except WorkbenchError as error:
        st.error(words.escape(str(error)), icon=":material/error:")
    except OSError as error:
        st.error(words.escape(f"a file cannot be read: {error}"), icon=":material/error:")
