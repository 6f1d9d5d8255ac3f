"""The dashboard: `workbench ui` starts it with the home folder in WORKBENCH_HOME."""

import streamlit as st
from starlette.middleware import Middleware

from workbench.pages.widgets.chart_files import ROUTES, PreloadMiddleware
from workbench.records import heap
from workbench.services.access import AccessMiddleware
from workbench.services.page_server import rules

heap.limit()
heap.collect_seldom()
app = st.App(
    "workbench/pages/main.py",
    routes=ROUTES,
    middleware=[Middleware(AccessMiddleware, rules=rules()), Middleware(PreloadMiddleware)],
)
