"""A study on the Runs page: its result and its trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tuning.spec.objectives import aim_of, text
from workbench import rounds, words
from workbench.ui import portable, study_mattered, study_terms, trial_window
from workbench.ui.shared import PAGES, badge, metrics, table
from workbench.ui.studies import study, trial_chart, trials_table
from workbench.ui.study_failures import what_failed


def details(name: str) -> None:
    """Result line, numbers, figure, table, and what mattered."""
    found = study(name)
    with st.container(horizontal=True, vertical_alignment="center", key="study-badges"):
        badge(found.view.state)
        st.markdown(f"**`{name}`**", width="content")
        st.page_link(
            PAGES["Tune"], label="Tune", icon=":material/tune:", query_params={"view": "watch", "study": name}
        )
        st.page_link(
            PAGES["Export"], label="Export", icon=":material/ios_share:", query_params={"export": name}
        )
        portable.download(name)
    result_line(found.document)
    metrics(numbers(found.document), "study-numbers")
    why_it_wins(found.document)
    study_terms.terms(found.document, "study")
    confirmation(found.document)
    trial_chart(found, "study-trials")
    rows = trial_window.chosen(found.document.get("trials") or [], "study-trial-table")
    trials_table(rows, found.acts, "study-trial-table", aim_of(found.document))
    trial_window.download(name, "study-trials-csv")
    what_failed(found.document)
    study_mattered.draw(found.view)


def result_line(document: Mapping[str, Any]) -> None:
    """What the study says by now, in its own words."""
    if document.get("result_line"):
        with st.container(border=True, key="result-line"):
            icon = "emoji_events" if document.get("best") else "search"
            st.markdown(f":material/{icon}: {words.escaped(document['result_line'])}")
            if document.get("space_note"):
                st.caption(str(document["space_note"]))


def why_it_wins(document: Mapping[str, Any]) -> None:
    """Where the winner's time goes, beside another run."""
    why = document.get("why")
    if not why:
        return
    with st.expander(f"Why {why['winner']} wins", icon=":material/help:", key="study-why"):
        st.markdown(words.escaped(why["line"]))
        parts = [part for part in why["parts"] if part["seconds"] or part["other_seconds"]]
        table(
            {
                "part of a step": [part["name"] for part in parts],
                "winner, ms": [part["seconds"] * 1e3 for part in parts],
                f"{why['role'].replace('_', '-')}, ms": [part["other_seconds"] * 1e3 for part in parts],
                "saved, ms": [_saved_milliseconds(part) for part in parts],
            },
            "study-why-table",
            dict.fromkeys(
                ("winner, ms", "baseline, ms", "runner-up, ms", "saved, ms"),
                st.column_config.NumberColumn(format="%,.1f"),
            ),
        )


def _saved_milliseconds(part: Mapping[str, Any]) -> float:
    """To a tenth, as the table has them; never minus nothing."""
    return round((part["other_seconds"] - part["seconds"]) * 1e3, 1) or 0.0


def confirmation(document: Mapping[str, Any]) -> None:
    """What was measured again, round by round, and what that decided."""
    columns = rounds.columns(document)
    if not columns:
        return
    with st.expander("Measured again", icon=":material/balance:", key="study-rounds"):
        table(columns, "study-rounds-table")
        st.caption(words.escaped(rounds.caption(document)))


def numbers(document: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The tiles of a study."""
    best, baseline = document.get("best") or {}, document.get("baseline") or {}
    trials, aim = document.get("trials") or [], aim_of(document)
    failed = sum(
        1 for row in trials if row.get("value") is None and row.get("outcome") not in (None, "running")
    )
    return {
        f"{name}, {aim.unit}": (
            text(aim.shown(entry.get("value"))),
            words.around(*aim.bounds(entry.get("low"), entry.get("high"))),
        )
        for name, entry in (("Best", best), ("Baseline", baseline))
    } | {
        "Gain": _gain(document),
        "Trials": (
            f"{document.get('trials_done', 0):,} of {document.get('trials_total', 0):,}",
            f"{failed:,} without a value" if failed else "",
        ),
    }


def _gain(document: Mapping[str, Any]) -> tuple[str, str]:
    gain, best = document.get("gain") or {}, document.get("best") or {}
    if not gain:
        return words.NOTHING, "nothing to compare yet"
    if best.get("config") == (document.get("baseline") or {}).get("config"):
        return words.NOTHING, "the baseline itself is the best"
    between = words.interval(gain.get("low"), gain.get("high"), 2)
    return f"{gain['ratio']:.2f} x", " · ".join(part for part in (between, str(gain["verdict"])) if part)
