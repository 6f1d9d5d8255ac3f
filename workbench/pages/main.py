"""The frame around all pages: title, icon and navigation."""

import gc

import streamlit as st

from workbench.pages.navigation import ENTRIES, PAGES
from workbench.pages.widgets import login
from workbench.pages.widgets.common import ASSETS
from workbench.pages.widgets.forms import keep_typed
from workbench.pages.widgets.plotly_chart import begin_page
from workbench.pages.widgets.trial_table import OPEN_RUN

#: Streamlit's colours of code are too pale for 4.5:1 in the light theme, and no option of a theme sets them.
_CODE = """<style>
.stCode .token, .stCode .linenumber { color: inherit !important; }
.stCode .token.property { font-weight: 600; }
</style>"""
#: White words stand on these, which the dark theme's own primary colour, made for words on black, is too pale for.
_FILLED = """<style>
[data-testid=stMultiSelectTagsContainer] [data-tag], [data-testid=stBaseButton-primary]:not(:disabled) {
  background-color: #2f5fd0 !important; border-color: #2f5fd0 !important; color: #ffffff !important;
}
</style>"""
#: What stands side by side on a wide window stands one below the other where a table would lose its last column.
_NARROW = """<style>
@media (max-width: 1000px) {
  [class*="st-key-stacked-"] > [data-testid=stLayoutWrapper] > [data-testid=stHorizontalBlock] { flex-wrap: wrap; }
  [class*="st-key-stacked-"] > [data-testid=stLayoutWrapper] > * > [data-testid=stColumn] { min-width: 100%; }
}
</style>"""
#: What is being drawn anew fades only where that takes long: a page that draws itself each second would flicker.
_STEADY = """<style>
[data-testid=stElementContainer][data-stale=true] { transition: opacity 1s ease-in 4s !important; }
</style>"""
#: A link to the page that is open looks as one with the focus does: crumbs of a drill-down all do.
_FOCUSED = """<style>
[data-testid=stPageLink-NavLink]:focus-visible { box-shadow: 0 0 0 2px #2f5fd0 !important; }
</style>"""
#: A chart fills its place, and one that can be clicked says so.
_CHARTS = """<style>
.workbench-chart { width: 100%; height: 100%; }
.workbench-clickable .nsewdrag { cursor: pointer !important; }
</style>"""


def main() -> None:
    """Show the page that was asked for."""
    icon = str(ASSETS / "icon.svg")
    st.set_page_config(page_title="Workbench", page_icon=icon, layout="wide")
    st.logo(icon)
    st.html(_CODE + _FILLED + _NARROW + _STEADY + _FOCUSED + _CHARTS)
    if not login.let_in():
        return
    begin_page()
    pages = [
        st.Page(entry.file, title=entry.title, url_path=entry.address, default=place == 0)
        for place, entry in enumerate(ENTRIES)
    ]
    page = st.navigation(pages, position="top")
    if run := st.session_state.pop(OPEN_RUN, None):
        st.switch_page(PAGES["Runs"], query_params={"id": run})
    if not any(entry.has_the_form for entry in ENTRIES if entry.title == page.title):
        keep_typed()
    page.run()
    _left_out_of_collections(page.title)


@st.cache_resource(show_spinner=False)
def _left_out_of_collections(title: str) -> None:
    """Streamlit collects all garbage after each run, a fragment's too. What the first look at a page brought in, mostly
    modules, stays: without it a collection takes a tenth of the time. Once for each page, so that little that would be
    garbage is kept.
    """
    del title
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
