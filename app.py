"""The dashboard: `workbench ui` starts it with the home folder in WORKBENCH_HOME."""

import streamlit as st

from workbench.pages.widgets.plotly_chart import ROUTE

app = st.App("workbench/pages/main.py", routes=[ROUTE])
