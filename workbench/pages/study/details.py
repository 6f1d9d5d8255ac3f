"""A study on the Runs page: its result and its trials.

What failed in a study, and why: endings with their reasons, and the settings that lead to them.

What a study was asked for, on a page: its budgets, its constraints, and the front of several objectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tuning.spec.objectives import aim_of, text
from workbench.figures import front
from workbench.figures.front import front_series
from workbench.figures.thinning import thinned_front
from workbench.pages.navigation import PAGES
from workbench.pages.study import sensitivity, transfer
from workbench.pages.widgets import trial_table
from workbench.pages.widgets.plotly_chart import chart
from workbench.pages.widgets.shared import badge, metrics, table
from workbench.pages.widgets.trial_table import study, trial_chart, trials_table
from workbench.text import study as study_text
from workbench.text import words

SHOWN_NUMBERS = 20
_ABOUT = {
    "configuration": "the configuration",
    "outside": "something outside",
    "chance": "chance, or the configuration",
}


def what_failed(document: Mapping[str, Any]) -> None:
    """Endings by how often, then rules in words; where nothing failed, that."""
    failures = document.get("failures") or {}
    endings: Sequence[Mapping[str, Any]] = failures.get("endings") or []
    st.markdown("**What failed, and why**")
    if not endings:
        st.caption(f"{failures.get('line', 'no trial has failed').capitalize()}.")
        return
    st.caption(words.escaped(f"{failures['line']}."))
    for rule in failures.get("rules") or []:
        st.markdown(f":material/rule: {words.escaped(rule['words'])}")
    table(failed_columns(endings), "study-failures", _columns())


def _columns() -> dict[str, Any]:
    """Widths in pixels that leave most of a narrow page to the reason."""
    widths = {"ending": 112, "trials": 46, "tried again": 76, "phase": 76, "ranks": 60, "caused by": 112}
    return {name: st.column_config.Column(width=width) for name, width in widths.items()} | {
        "numbers": st.column_config.TextColumn(width=84),
        "reason": st.column_config.TextColumn(width=640),
    }


def failed_columns(endings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The table, a row for each ending, phase and kind of cause."""
    return {
        "ending": [words.spoken(row["outcome"]) for row in endings],
        "trials": [row["count"] for row in endings],
        "tried again": [row["tried_again"] or None for row in endings],
        "phase": [words.spoken(row["phase"]) if row["phase"] else None for row in endings],
        "ranks": [words.ranks(row["ranks"]) or None for row in endings],
        "caused by": [_ABOUT.get(row["about"], row["about"]) for row in endings],
        "numbers": [_some(row["trials"]) for row in endings],
        "reason": [row["reason"] for row in endings],
    }


def _some(numbers: Sequence[int]) -> str:
    """The first few of thousands; ``--json`` has all."""
    more = f" and {len(numbers) - SHOWN_NUMBERS:,} more" if len(numbers) > SHOWN_NUMBERS else ""
    return ", ".join(map(str, numbers[:SHOWN_NUMBERS])) + more


SHOWN_BROKEN = 5


def terms(document: Mapping[str, Any], place: str) -> None:
    """Nothing for a study that has one objective, and neither constraints nor budgets; ``place`` begins the keys."""
    with st.container(key=f"{place}-terms"):
        if budget := study_text.budget(document):
            st.caption(f":material/hourglass_bottom: Budget: {budget}.")
        _constraints(document)
        _front(document, place)


def _constraints(document: Mapping[str, Any]) -> None:
    if kept := study_text.kept(document):
        st.caption(f":material/check: The best meets every constraint: {kept}.")
    broken = study_text.constraints(document)
    for line in broken[:SHOWN_BROKEN]:
        st.caption(f":material/block: {line}")
    if len(broken) > SHOWN_BROKEN:
        st.caption(f"and {len(broken) - SHOWN_BROKEN} more, in the table of trials")


def _front(document: Mapping[str, Any], place: str) -> None:
    found = front_series(document)
    if not found:
        return
    st.markdown("**Front of the objectives**")
    if document.get("pareto_note"):
        st.caption(f":material/info: {document['pareto_note']}")
    drawn = [thinned_front(series) for series in found]
    for column, series in zip(st.columns(min(2, len(found))) * len(found), drawn, strict=False):
        with column:
            key = f"{place}-front-{series.across.name.replace('_', '-')}"
            words = f"{series.upwards.unit} against {series.across.unit} of each trial"
            chart(front.front(series, str(document.get("study"))), key, words)
            if series.note:
                st.caption(series.note)
    table(study_text.front(document), f"{place}-front-table")


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
        transfer.download(name)
    result_line(found.document)
    metrics(numbers(found.document), "study-numbers")
    why_it_wins(found.document)
    terms(found.document, "study")
    confirmation(found.document)
    trial_chart(found, "study-trials")
    rows = trial_table.chosen(found.document.get("trials") or [], "study-trial-table")
    trials_table(rows, found.acts, "study-trial-table", aim_of(found.document))
    trial_table.download(name, "study-trials-csv")
    what_failed(found.document)
    sensitivity.draw(found.view)


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
    columns = study_text.columns(document)
    if not columns:
        return
    with st.expander("Measured again", icon=":material/balance:", key="study-rounds"):
        table(columns, "study-rounds-table")
        st.caption(words.escaped(study_text.caption(document)))


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
