"""A run's loss on held-out text, and for a lossy one what the exact baseline of the same seed and data has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import streamlit as st

from engine.config.errors import InputError
from engine.config.knobs.catalogue import lossy
from profilers.model.run_summary import RunSummary
from workbench.analysis import quality
from workbench.figures import quality as quality_figures
from workbench.home import runs
from workbench.home.runs import RunView
from workbench.pages.widgets.common import home, icon_note, number_table
from workbench.pages.widgets.plotly_chart import shared_chart
from workbench.terminal import quality as quality_text
from workbench.text import run as run_text
from workbench.text import step, words

#: Looking for a baseline reads the configuration of every run.
_LASTS_SECONDS = 20


def draw(view: RunView, summary: RunSummary, look: str) -> None:
    """Nothing for an exact run without a curve. ``look`` names what is known of the run, for all of the charts here."""
    if lossy(quality.values_of(view.folder)):
        _baseline_comparison(view.id, view.state)
    elif len(summary.quality) > 1:
        curve = [asdict(row) for row in summary.quality]
        _chart(curve, [], view.id, f"{look} {summary.measured_steps}")


def draw_trained(config: Mapping[str, Any], summary: RunSummary) -> None:
    """In a line, which part of a network learns; nothing where all of it does. A run that adapts tells what became of
    the frozen part at its end.
    """
    draw_adapted(summary)
    draw_partial(summary)
    if summary.adapted is None and (text := step.adapter_text(config.get("train") or {})):
        icon_note("tune", text)
    if summary.update is not None:
        icon_note("memory", f"{step.update(summary.update)}.")


def draw_adapted(summary: RunSummary) -> None:
    """What was trained beside a frozen model; nothing where all of it learned."""
    if summary.adapted is not None:
        text = step.adapted_text(summary.adapted)
        icon_note("tune", f"{text[:1].upper()}{text[1:]}.")


def draw_partial(summary: RunSummary) -> None:
    """What steps leave out of their products; nothing where these are whole."""
    if summary.partial_products is not None:
        text = step.partial_products(summary.partial_products)
        icon_note("content_cut", f"{text[:1].upper()}{text[1:]}.")


def draw_tasks(summary: RunSummary, look: str) -> None:
    """The loss of each task, and which ranks have it; nothing where there is one text."""
    if not summary.tasks:
        return
    shared_chart(
        lambda: quality_figures.tasks(summary.tasks, summary.first_step, summary.id),
        "run-tasks",
        "Training loss of each task per step",
        look,
        summary.measured_steps,
    )
    number_table(step.task_columns(summary.tasks), "run-task-table")
    icon_note("checklist", f"{step.tasks(summary.tasks)}.")


def draw_experts(summary: RunSummary, look: str) -> None:
    """How evenly the experts of each layer are loaded; nothing without experts."""
    if not summary.experts:
        return
    shared_chart(
        lambda: quality_figures.experts(summary.experts, summary.id),
        "run-experts",
        "Each expert's share of the choices, by layer",
        look,
        summary.measured_steps,
    )
    number_table(step.expert_columns(summary.experts), "run-expert-table")
    for row in summary.expert_slots:
        text = step.expert_slots(row)
        icon_note("stacks", f"{text[:1].upper()}{text[1:]}.")


def draw_sequences(summary: RunSummary) -> None:
    """How ranks shared whole documents; nothing where none were shared."""
    if groups := summary.sequence_groups:
        st.markdown("**Whole documents**")
        number_table(run_text.document_columns(groups), "run-sequence-table")
        text = run_text.shared_documents(groups, summary.sequence_plans)
        icon_note("article", f"{text[:1].upper()}{text[1:]}.")


def draw_update(summary: RunSummary) -> None:
    """What is trained within a budget of bytes; nothing where all is."""
    if (row := summary.update) is not None:
        st.markdown("**Trained within a budget**")
        number_table(step.update_columns(row), "run-update-table")
        text = step.update(row)
        icon_note("memory", f"{text[:1].upper()}{text[1:]}.")


def _baseline_comparison(run: str, state: str) -> None:
    try:
        comparison = _report(home(), run, state)
    except InputError as problem:  # it was changed meanwhile
        st.caption(words.escape(str(problem)))
        return
    st.markdown("**Quality compared with the exact baseline**")
    for line in quality_text.lines(comparison):
        icon_note("balance", f"{line[:1].upper()}{line[1:]}")
    if comparison["command"]:
        st.code(comparison["command"], language="shell")
    if comparison["curve"]:
        curves = comparison["curve"], comparison["baseline_curve"]
        _chart(*curves, run, json.dumps(curves))
    for note in comparison["notes"]:
        icon_note("info", f"{note[:1].upper()}{note[1:]}.")


def _chart(curve: list[dict[str, Any]], baseline: list[dict[str, Any]], run: str, look: str) -> None:
    shared_chart(
        lambda: quality_figures.quality(curve, baseline, run),
        "run-quality",
        "Loss on held-out text against steps, seconds and bytes",
        look,
    )


@st.cache_data(ttl=_LASTS_SECONDS, max_entries=16, show_spinner=False)
def _report(place: Path, run: str, state: str) -> dict[str, Any]:
    """``state`` makes a run that has ended another one."""
    return quality.report(place, runs.load(place / run))
