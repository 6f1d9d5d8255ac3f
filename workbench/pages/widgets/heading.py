"""The top of a page: its title, one quiet line, and places of the pages that were given a name."""

from __future__ import annotations

import streamlit as st

from engine.config.errors import InputError
from workbench.home import notes
from workbench.home.notes import SavedView
from workbench.pages.navigation import PAGES
from workbench.pages.widgets.common import (
    answer_of_click,
    button_pressed,
    home,
    may_fill_in,
    remember,
)
from workbench.services.access import PARAMETER
from workbench.text import words


def heading(title: str, caption: str) -> None:
    """A page's title with one quiet line below it, and the saved views."""
    with st.container(gap="xxsmall"):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            st.title(title, anchor=False, width="content")
            _saved_views(title)
        st.caption(words.escape(caption))
        answer_of_click("views")


def _saved_views(page: str) -> None:
    """Places with a name, each a link, and a field to name the one that is shown."""
    with st.popover("Views", icon=":material/bookmark:", type="tertiary", key="views"):
        views = notes.saved_views(home())
        for view in views:
            _line(view)
        if not views:
            st.caption("A view is a place of these pages with its filters, under a name of your own.")
        if not may_fill_in():
            return
        query = {key: value for key, value in st.query_params.items() if key != PARAMETER}
        name = st.text_input("Name of what is shown now", key="view-name", max_chars=notes.LONGEST_TAG)
        if button_pressed(st.button, "Save this view", "view-save", icon=":material/bookmark_add:"):
            _keep(name, page, query)
            st.rerun()


def _line(view: SavedView) -> None:
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        if view.page in PAGES:
            label = f"{words.escape(view.name)} · {view.page}"
            st.page_link(PAGES[view.page], label=label, query_params=view.query)
        else:
            st.caption(f"{words.escape(view.name)}: this version has no page {words.escape(view.page)}")
        if button_pressed(
            st.button, "Forget", f"forget-{view.name}", icon=":material/close:", type="tertiary"
        ):
            notes.forget_view(home(), view.name)
            st.rerun()


def _keep(name: str, page: str, query: dict[str, str]) -> None:
    try:
        notes.save_view(home(), name, page, query)
    except InputError as error:
        remember("views", str(error), is_refused=True)
    else:
        remember("views", f"Saved as {name}.", is_refused=False)
