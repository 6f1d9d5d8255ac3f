"""The dashboard: `workbench ui` starts it with the home folder in WORKBENCH_HOME."""

import streamlit as st

from workbench.ui.chart import ROUTE

app = st.App("workbench/ui/main.py", routes=[ROUTE])
