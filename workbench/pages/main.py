"""The frame around all pages: title, icon and navigation."""

import streamlit as st

from workbench.pages.navigation import PAGES
from workbench.pages.widgets import login
from workbench.pages.widgets.shared import ASSETS

#: Streamlit's colours of code are too pale for 4.5:1 in the light theme, and no option of a theme sets them.
_CODE = "<style>.stCode .token { color: inherit !important; } .stCode .token.property { font-weight: 600; }</style>"


def main() -> None:
    """Show the page that was asked for."""
    icon = str(ASSETS / "icon.svg")
    st.set_page_config(page_title="Workbench", page_icon=icon, layout="wide")
    st.logo(icon)
    st.html(_CODE)
    if not login.let_in():
        return
    pages = [
        st.Page(path, title=name, url_path=name.lower(), default=place == 0)
        for place, (name, path) in enumerate(PAGES.items())
    ]
    st.navigation(pages, position="top").run()


if __name__ == "__main__":
    main()
