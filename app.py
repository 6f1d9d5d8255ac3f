"""The dashboard: `workbench ui` starts it with the home folder in WORKBENCH_HOME."""

import streamlit as st

from workbench.ui.shared import ASSETS, PAGES

st.set_page_config(page_title="Workbench", page_icon=str(ASSETS / "icon.svg"), layout="wide")
st.logo(str(ASSETS / "icon.svg"))
chosen = st.navigation(
    [
        st.Page(PAGES["Runs"], title="Runs", url_path="runs", default=True),
        st.Page(PAGES["Live"], title="Live", url_path="live"),
        st.Page(PAGES["Tune"], title="Tune", url_path="tune"),
        st.Page(PAGES["Export"], title="Export", url_path="export"),
    ],
    position="top",
)
chosen.run()
