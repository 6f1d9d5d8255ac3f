"""On page Machine: how the newest selftest of this home ended, check by check; without one, the command."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from workbench.pages.widgets.shared import home
from workbench.selftest import results
from workbench.selftest.results import Row, Selftest
from workbench.text import words

#: What stands in the table, in words and with the icon that says it without colour.
_OUTCOMES = {"pass": "✓ pass", "fail": "✗ fail", "not_possible": "– not possible"}


def selftest() -> None:
    """Its state in one line, and a table of its checks, what failed first."""
    newest = results.newest(home())
    if newest is None:
        _none_yet()
        return
    folder, last = newest
    st.subheader("Selftest", anchor=False)
    _state(last)
    if last.checks:
        _checks(sorted(last.checks, key=lambda row: row.outcome != "fail"))
    st.caption(_evidence(folder))


def _none_yet() -> None:
    with st.container(border=True, key="machine-no-selftest"):
        st.markdown("**No selftest has been run on this machine.**")
        st.caption(
            "It checks in a few minutes what this machine can do, and writes a folder to attach to a bug report:"
        )
        st.code(results.COMMAND, language="bash")


def _state(last: Selftest) -> None:
    counts = last.outcomes
    with st.container(horizontal=True, vertical_alignment="center", key="machine-selftest-state"):
        if counts["fail"]:
            st.badge(f"{counts['fail']} failed", icon=":material/error:", color="red")
        if counts["pass"]:
            st.badge(f"{counts['pass']} passed", icon=":material/check_circle:", color="green")
        if counts["not_possible"]:
            st.badge(f"{counts['not_possible']} not possible here", icon=":material/block:", color="gray")
        if not last.complete:
            missing = len(last.asked) - len(last.checks)
            st.badge(f"{missing} without a result", icon=":material/stop_circle:", color="orange")
        when = f"Started {words.when(last.started_unix)}, {words.ago(last.started_unix)}"
        summary = f"{when}, took {words.seconds(last.seconds)}, {last.ranks} ranks, device {last.device}"
        st.caption(summary, width="content")


def _checks(rows: list[Row]) -> None:
    """Reasons are whole: cells of this kind of table wrap."""
    columns = {
        "check": [row.title for row in rows],
        "outcome": [_OUTCOMES.get(row.outcome, row.outcome) for row in rows],
        "reason": [words.escaped(row.reason) for row in rows],
        "seconds": [f"{row.seconds:,.1f}" for row in rows],
    }
    with st.container(key="machine-selftest"):
        st.table(columns, border="horizontal", hide_index=True)


def _evidence(folder: Path) -> str:
    packed = folder.with_name(f"{folder.name}.zip")
    attachment = packed if packed.is_file() else folder
    return f"Evidence to attach to a bug report: `{attachment}`. To run it again: `{results.COMMAND}`."
