"""A study on the page Runs: its result and trials, what failed and why, what it was asked for, and the front of several
objectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from tuning.report.failures import EndingRow
from tuning.report.study_result import Entry, StudyResult
from tuning.report.summary_line import signed_percent
from tuning.spec.objectives import text
from workbench.analysis.automatic_choices import AutomaticChoice
from workbench.analysis.command_report import CommandReport
from workbench.analysis.studies import StudySnapshot
from workbench.analysis.winner_explanation import WinnerExplanation, line
from workbench.figures import study as study_figures
from workbench.figures.search import front
from workbench.figures.search.downsampling import downsample_front
from workbench.figures.search.front import front_series
from workbench.pages.navigation import PAGES
from workbench.pages.study import sensitivity, transfer
from workbench.pages.widgets import trial_table
from workbench.pages.widgets.common import badge, metrics, report_button, table
from workbench.pages.widgets.note_form import note_of, tags_of
from workbench.pages.widgets.plotly_chart import chart
from workbench.pages.widgets.trial_table import study, trial_chart, trials_table
from workbench.text import study as study_text
from workbench.text import words

SHOWN_NUMBERS = 20
#: Why a gain is not the best's value over the baseline's.
IN_TURNS = "in turns: the two values are of different times"
_ABOUT = {
    "configuration": "the configuration",
    "outside": "something outside",
    "chance": "chance, or the configuration",
}


def draw_failures(result: StudyResult) -> None:
    """Endings by how often, then rules in words; where nothing failed, that."""
    board = result.failures
    st.markdown("**What failed, and why**")
    if not board or not board.endings:
        line = board.line if board else "no trial has failed"
        st.caption(f"{line.capitalize()}.")
        return
    st.caption(words.escape(f"{board.line}."))
    for rule in board.rules:
        st.markdown(f":material/rule: {words.escape(rule.words)}")
    table(failed_columns(board.endings), "study-failures", _columns())


def _columns() -> dict[str, Any]:
    """Widths in pixels that leave most of a narrow page to the reason."""
    widths = {"ending": 112, "trials": 46, "tried again": 76, "phase": 76, "ranks": 60, "caused by": 112}
    return {name: st.column_config.Column(width=width) for name, width in widths.items()} | {
        "numbers": st.column_config.TextColumn(width=84),
        "reason": st.column_config.TextColumn(width=640),
    }


def failed_columns(endings: Sequence[EndingRow]) -> dict[str, list[Any]]:
    """The table, a row for each ending, phase and kind of cause."""
    return {
        "ending": [words.ending_words(row.outcome) for row in endings],
        "trials": [row.count for row in endings],
        "tried again": [row.tried_again or None for row in endings],
        "phase": [words.ending_words(row.phase) if row.phase else None for row in endings],
        "ranks": [words.ranks(row.ranks) or None for row in endings],
        "caused by": [_ABOUT.get(row.about, row.about) for row in endings],
        "numbers": [_some(row.trials) for row in endings],
        "reason": [row.reason for row in endings],
    }


def _some(numbers: Sequence[int]) -> str:
    """The first few of thousands; ``--json`` has all."""
    more_text = f" and {len(numbers) - SHOWN_NUMBERS:,} more" if len(numbers) > SHOWN_NUMBERS else ""
    return ", ".join(map(str, numbers[:SHOWN_NUMBERS])) + more_text


SHOWN_BROKEN = 5


def terms(result: StudyResult, place: str) -> None:
    """Nothing for a study that has one objective, and neither constraints nor budgets; ``place`` begins the keys."""
    with st.container(key=f"{place}-terms"):
        if budget := study_text.budget(result):
            st.caption(f":material/hourglass_bottom: Budget: {budget}.")
        if kept_constraints := study_text.constraint_words(result):
            st.caption(f":material/check: The best meets every constraint: {kept_constraints}.")
        broken_lines = study_text.constraints(result)
        for line in broken_lines[:SHOWN_BROKEN]:
            st.caption(f":material/block: {words.escape(line)}")
        if len(broken_lines) > SHOWN_BROKEN:
            st.caption(f"and {len(broken_lines) - SHOWN_BROKEN} more, in the table of trials")
        _front(result, place)


def _front(result: StudyResult, place: str) -> None:
    series_list = [downsample_front(series) for series in front_series(result)]
    if not series_list:
        return
    st.markdown("**Front of the objectives**")
    if result.pareto_note:
        st.caption(f":material/info: {result.pareto_note}")
    for column, series in zip(
        st.columns(min(2, len(series_list))) * len(series_list), series_list, strict=False
    ):
        with column:
            key = f"{place}-front-{series.x_aim.name.replace('_', '-')}"
            words = f"{series.y_aim.unit} against {series.x_aim.unit} of each trial"
            chart(front.front(series, result.study), key, words)
            if series.note:
                st.caption(series.note)
    table(study_text.front(result), f"{place}-front-table")


def draw_study(name: str) -> None:
    """Result line, numbers, figure, table, and what mattered."""
    snapshot = study(name)
    with st.container(horizontal=True, vertical_alignment="center", key="study-badges"):
        badge(snapshot.view.state)
        st.markdown(f"**{words.code(name)}**", width="content")
        st.page_link(
            PAGES["Tune"], label="Tune", icon=":material/tune:", query_params={"view": "watch", "study": name}
        )
        st.page_link(
            PAGES["Export"], label="Export", icon=":material/ios_share:", query_params={"export": name}
        )
        transfer.download(name)
        report_button(name)
        tags_of(snapshot.view.folder)
    note_of(snapshot.view.folder)
    result = snapshot.result
    headline(snapshot, "study")
    trial_chart(snapshot, "study-trials")
    trials_table(
        trial_table.select_rows(result.trials, "study-trial-table"),
        snapshot.acts,
        "study-trial-table",
        result.aim,
    )
    trial_table.download(name, "study-trials-csv")
    draw_failures(result)
    sensitivity.draw(snapshot.view)


def headline(study: StudySnapshot, place: str) -> None:
    """What a study comes to: its line, tiles, why it wins, terms and confirmation; ``place`` begins the keys."""
    result_line(study.result)
    metrics(numbers(study.result), f"{place}-numbers")
    if study.document.command:
        _command(study.document.command)
    if study.document.why:
        _why_it_wins(study.document.why)
    if study.document.picks:
        _picks(study.document.picks, place)
    terms(study.result, place)
    if study.result.left_alone:
        with st.expander("Knobs left alone", icon=":material/do_not_touch:", key=f"{place}-left-alone"):
            table(study_text.fixed_knob_columns(study.result), f"{place}-left-alone-table")
    if columns := study_text.confirmation_columns(study.result):
        with st.expander("Measured again", icon=":material/balance:", key="study-rounds"):
            _course(study.result)
            table(columns, "study-rounds-table")
            st.caption(words.escape(study_text.caption(study.result)))


def _command(report: CommandReport) -> None:
    """What is tuned, and what to type now."""
    with st.container(key="study-command"):
        st.caption(
            f"{report.trainer}, started in {report.directory}" + (": the command now" if report.best else "")
        )
        st.code(report.best or report.today, language="bash", wrap_lines=True)


def result_line(result: StudyResult) -> None:
    """What the study says by now, in its own words: at most three lines."""
    if result.result_line:
        with st.container(border=True, key="result-line"):
            icon = "emoji_events" if result.best else "search"
            first, *other_lines = result.result_lines or [result.result_line]
            st.markdown(f":material/{icon}: {words.escape(first)}")
            for line in other_lines:
                st.markdown(words.escape(line))
            if result.space_note:
                st.caption(result.space_note)
            for line in study_text.phases(result):
                st.caption(line)


def _course(result: StudyResult) -> None:
    """How the arms were told apart; nothing where a round or two say it all."""
    series, rounds = study_figures.arm_curves(result), result.confirmation_rounds
    if rounds and max((len(course.rounds) for course in series), default=0) > 2:
        plain = any(arm.is_baseline for arm in rounds.arms)
        yardstick = "the baseline" if plain else "the best of the search"
        title = f"% {result.aim.objective.better} than {yardstick}"
        drawing = study_figures.confirmation(series, rounds.equal_within, title)
        chart(drawing, "study-rounds-chart", "how the leaders were told apart, round by round")


def _why_it_wins(why: WinnerExplanation) -> None:
    """Where the winner's time goes, beside another run."""
    with st.expander(f"Why {why.winner} wins", icon=":material/help:", key="study-why"):
        st.markdown(words.escape(line(why)))
        parts = [part for part in why.parts if part.seconds or part.other_seconds]
        table(
            {
                "part of a step": [part.name for part in parts],
                "winner, ms": [part.seconds * 1e3 for part in parts],
                f"{why.role.replace('_', '-')}, ms": [part.other_seconds * 1e3 for part in parts],
                # To a tenth, as the table has them; never minus nothing.
                "saved, ms": [round(part.saved * 1e3, 1) or 0.0 for part in parts],
            },
            "study-why-table",
            dict.fromkeys(
                ("winner, ms", "baseline, ms", "runner-up, ms", "saved, ms"),
                st.column_config.NumberColumn(format="%,.1f"),
            ),
        )


def _picks(choices: Sequence[AutomaticChoice], place: str) -> None:
    """What was picked for the best trial, beside the baseline, and what speaks for it."""
    with st.expander("What it picked, and why", icon=":material/checklist:", key=f"{place}-picks"):
        table(
            {
                "setting": [pick.title for pick in choices],
                "picked": [pick.picked for pick in choices],
                "baseline": [pick.baseline for pick in choices],
                "what speaks for it": [pick.reason for pick in choices],
            },
            f"{place}-picks-table",
            {"what speaks for it": st.column_config.TextColumn(width="large")},
            lines=3,
        )


def numbers(result: StudyResult) -> dict[str, tuple[str, str]]:
    """The tiles of a study."""
    aim, tried_again = result.aim, result.tried_again
    failed_count = sum(row.failed and row.number not in tried_again for row in result.trials)
    repeated_count = sum(row.number in tried_again for row in result.trials)
    tiles = {
        f"{name}, {aim.unit}": (text(aim.to_display(entry.value)), _interval_text(entry, result))
        if entry
        else (words.NOTHING, "")
        for name, entry in (("Best", result.best), ("Baseline", result.baseline))
    }
    done_text = f"{result.trials_done:,} of {result.trials_total:,}"
    of_these = [f"{failed_count:,} without a value"] if failed_count else []
    retries_text = [f"besides {repeated_count:,} that had to be tried again"] if repeated_count else []
    return tiles | {"Gain": _gain(result), "Trials": (done_text, "; ".join(of_these + retries_text))}


def _interval_text(entry: Entry, result: StudyResult) -> str:
    """The interval of a value: of one that was measured again, where another run falls."""
    bounds = words.interval_ends(*result.aim.bounds(entry.low, entry.high))
    arms = result.confirmation_rounds.arms if result.confirmation_rounds else []
    if entry.trial not in [arm.trial for arm in arms]:
        return bounds
    return f"measured again, 95 % of runs: {bounds}" if bounds else "measured again"


def _gain(result: StudyResult) -> tuple[str, str]:
    gain, best, baseline = result.gain, result.best, result.baseline
    if not gain:
        return words.NOTHING, "nothing to compare yet"
    if best and baseline and best.config == baseline.config:
        undecided_text = " · undecided" if gain.verdict == "undecided" else ""
        return words.NOTHING, f"the baseline itself is the best{undecided_text}"
    interval = ""
    if gain.low is not None and gain.high is not None:
        interval = f"{signed_percent(gain.low)} to {signed_percent(gain.high)} %"
    parts = (interval, gain.verdict, IN_TURNS if gain.in_turns else "")
    return f"{signed_percent(gain.ratio)} %", " · ".join(part for part in parts if part)
