"""What a run's step is bound by: one card a verdict, and thresholds that can be changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import streamlit as st

from engine.config.errors import InputError
from profilers.model.run_summary import RunSummary
from profilers.model.verdict import Thresholds, Verdict, judge, rate
from workbench.analysis.verdicts import minor_verdicts, thresholds_of
from workbench.text import run as run_text
from workbench.text import words

_MEANINGS = Thresholds.meanings()
_COLUMNS = 4
_BELOW = (
    "Each beside its threshold, which can be changed below. What is called exposed is what the calls cost by "
    "themselves; waits for a rank that comes late count as straggler, by what the last rank is behind, and the tile "
    "Communication has both."
)


def draw(run: str, summary: RunSummary, config: Mapping[str, Any]) -> None:
    """Nothing for a run that measured no step."""
    findings, usual_thresholds = summary.findings, _thresholds(config)
    if not findings:
        _cards(summary.verdicts)
        return
    thresholds = _threshold_fields(run, usual_thresholds)
    ratings, verdicts = rate(findings, thresholds), judge(findings, thresholds)
    _cards(verdicts)
    for episode in summary.episodes:
        st.markdown(f":material/schedule: {_sentence(_escape_markup(run_text.episode(episode)))}.")
    if text := _shares_text(minor_verdicts(ratings, verdicts)):
        st.caption(f"Below their thresholds: {text}.", help=_BELOW)
    with st.expander("Change thresholds", icon=":material/tune:", key="run-thresholds"):
        _controls(run, usual_thresholds, thresholds)


def _cards(verdicts: Sequence[Verdict]) -> None:
    for place, verdict in enumerate(verdicts):
        with st.container(border=True, gap="xxsmall", key=f"run-verdict-{place}"):
            with st.container(horizontal=True, vertical_alignment="center"):
                icon = "check_circle" if verdict.share is None and verdict.threshold is None else "lightbulb"
                name = _sentence(words.bottleneck(verdict.name, verdict.axis))
                st.markdown(f":material/{icon}: **{name}**", width="content")
                if verdict.share is not None:
                    share = words.percent(verdict.share, 1)
                    st.badge(f"{share}, above {words.percent(verdict.threshold)}", color="orange")
                if verdict.gain is not None:
                    st.badge(
                        f"up to {words.percent(verdict.gain.fraction, 1)} of a step to gain", color="green"
                    )
            st.markdown(f"{_sentence(_escape_markup(verdict.evidence))}.")
            st.caption(f"Change next: {_keys(verdict)}.")
            if gain := run_text.gain(verdict):
                st.caption(f"Expect {gain}.")


def _shares_text(findings: Sequence[Verdict]) -> str:
    return ", ".join(
        f"{words.bottleneck(finding.name, finding.axis)} "
        f"{words.percent(finding.share, 1)} of {words.percent(finding.threshold)}"
        for finding in findings
    )


def _keys(verdict: Verdict) -> str:
    """The advice, with keys of the configuration set as code."""
    text = verdict.advice
    for key in sorted(verdict.knobs, key=len, reverse=True):
        text = re.sub(rf"{re.escape(key)}(?!\w)", f"`{key}`", text)
    return text


def _escape_markup(text: str) -> str:
    return text.replace("$", r"\$").replace("~", r"\~")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _threshold_fields(run: str, usual_thresholds: Thresholds) -> Thresholds:
    """The run's own thresholds, with those that were changed on this page in their place."""
    return Thresholds(
        **{
            name: st.session_state.get(_key(run, name), fraction * 100) / 100
            for name, fraction in asdict(usual_thresholds).items()
        }
    )


def _thresholds(config: Mapping[str, Any]) -> Thresholds:
    try:
        return thresholds_of(dict(config))
    except InputError:
        return Thresholds()


def _controls(run: str, usual_thresholds: Thresholds, thresholds: Thresholds) -> None:
    columns = st.columns(_COLUMNS)
    for place, (name, fraction) in enumerate(asdict(thresholds).items()):
        st.session_state.setdefault(_key(run, name), round(fraction * 100, 6))
        columns[place % _COLUMNS].number_input(
            f"{name}, %",
            help=_MEANINGS[name],
            min_value=0.0,
            max_value=100.0,
            step=1.0,
            format="%g",
            key=_key(run, name),
        )
    options = [
        f"--threshold {name}={after:g}"
        for (name, before), after in zip(
            asdict(usual_thresholds).items(), asdict(thresholds).values(), strict=True
        )
        if abs(after - before) > 1e-9
    ]
    st.button(
        "As the run has them",
        on_click=lambda: _reset(run, usual_thresholds),
        disabled=not options,
        key="run-thresholds-reset",
    )
    if options:
        st.caption("On the command line:")
        st.code(f"workbench show {run} {' '.join(options)}", language="bash")


def _reset(run: str, usual_thresholds: Thresholds) -> None:
    for name, fraction in asdict(usual_thresholds).items():
        st.session_state[_key(run, name)] = round(fraction * 100, 6)


def _key(run: str, name: str) -> str:
    return f"run-threshold-{name}-{run}"
