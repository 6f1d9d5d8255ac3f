"""The upper part of the Live page: what runs, how far it is, and what each rank is doing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping

import numpy as np
import streamlit as st

from engine.config.formulas.batch_ramp import BATCH
from engine.config.layout import Layout
from engine.config.run_config import tokens_per_step_of
from profilers.analysis.rounds import recent_steps, round_steps
from profilers.model.run_summary import RunSummary
from workbench.analysis.stall import RULE, find_stall, idle_seconds, sentence
from workbench.figures.steps import slowest_rank
from workbench.pages.navigation import PAGES
from workbench.pages.widgets.common import backend_note, badge, icon_note, metrics, table_height
from workbench.records.columns import Array, Columns, common_steps, rows_of
from workbench.records.live_snapshot import Snapshot
from workbench.services.ongoing_runs import newest_steps
from workbench.text import run as run_text
from workbench.text import words

SHOWN_RANKS = 8
_COLUMNS = ("step", "step_seconds", "between_seconds", "communication_exposed_seconds", "tokens", "measured")
_IDLE = (
    "Seconds since the rank last went on to another phase, or was seen to move within one. All ranks of a stopped run "
    "grow old together: the phase says who waits. Empty for ranks of another host, whose clock is its own."
)
PHASES_IN_SHORT = {"communication_exposed": "communication"}


def header(snapshot: Snapshot, state: str, ending: str | None, reason: str) -> None:
    """Badges, numbers, progress, and the reason if it ended badly, or of a hang that it is in."""
    with st.container(horizontal=True, vertical_alignment="center", key="live-badges"):
        badge(ending or state)
        st.markdown(f"**`{snapshot.id}`**", width="content")
        _labels(snapshot)
        _links(snapshot, goes_on=snapshot.running and ending is None)
    hang = snapshot.status.hang
    if warning := reason or (hang.reason if hang and ending is None else ""):
        st.warning(words.escape(warning), icon=words.look(ending or "hang")[1])
    slowest = slowest_rank(snapshot.steps)
    metrics(_numbers(snapshot, slowest, snapshot.running and ending is None), "live-numbers")
    if snapshot.job is None:
        st.progress(_share_done(snapshot, slowest, goes_on=snapshot.running and ending is None))
    else:
        st.code(shlex.join(snapshot.job.command), language=None, wrap_lines=True)
        for note in snapshot.job.notes:
            st.info(note, icon=":material/info:")


def _links(snapshot: Snapshot, *, goes_on: bool) -> None:
    """To the run's own page, and to what can be asked of it while it goes on."""
    places = {"Details": ("", "info")}
    if goes_on and snapshot.job is None and not snapshot.status.labels.get("study"):
        places["Change a value"] = ("Configuration", "tune")
    if goes_on:
        places["Record a trace"] = ("Trace", "timeline")
    for label, (section, icon) in places.items():
        query = {"id": snapshot.id} | ({"section": section} if section else {})
        st.page_link(PAGES["Runs"], label=label, icon=f":material/{icon}:", query_params=query)
    if (step := _last_detailed_step(snapshot)) is not None:
        query = {"run": snapshot.id, "step": str(step)}
        st.page_link(PAGES["Steps"], label="Last step", icon=":material/grid_on:", query_params=query)


def _last_detailed_step(snapshot: Snapshot) -> int | None:
    """The last step that all ranks have recorded in detail."""
    written = [columns for columns in snapshot.steps.values() if len(columns.get("step", ()))]
    detailed = [columns["step"][np.isfinite(columns["communication_exposed_seconds"])] for columns in written]
    common = common_steps(detailed)
    return int(common[-1]) if len(common) else None


def stall(snapshot: Snapshot | None) -> None:
    """A line once steps of a run that goes on have stopped to end: for how long, and which rank holds up the others."""
    last_stall = None if snapshot is None else find_stall(snapshot)
    if last_stall is not None:
        with st.container(key="live-stall"):
            st.warning(words.escape(sentence(last_stall)), icon=":material/pause_circle:")
            st.caption(RULE)


def findings(summary: RunSummary | None, *, goes_on: bool) -> None:
    """What the run is bound by so far, or lately, who holds up the others, and what holds now and not for all of it."""
    if summary is None or not summary.findings:
        return
    names = [
        words.bottleneck(verdict.name, verdict.axis)
        + ("" if verdict.share is None else f" {words.percent(verdict.share)}")
        for verdict in summary.verdicts
    ]
    is_recent = goes_on and len(summary.losses) >= newest_steps(summary.world_size or 1)
    steps = f"{'the last ' if is_recent else ''}{summary.measured_steps:,} measured steps"
    parts = run_text.waits(summary, run_text.share_of_step(summary))
    waits = f" Waits for communication over these: {parts}." if parts else ""
    icon_note("lightbulb", f"Bottlenecks over {steps}: {', '.join(names)}.{waits}")
    for verdict in summary.verdicts:
        if verdict.name == "straggler":
            text = f"{words.bottleneck(verdict.name).capitalize()}: {verdict.evidence}"
            st.warning(words.escape(text), icon=":material/person_alert:")
    for episode in summary.episodes:
        if episode.goes_on:
            st.warning(words.escape(run_text.episode(episode)), icon=":material/person_alert:")


def _labels(snapshot: Snapshot) -> None:
    labels = snapshot.status.labels
    if labels.get("study"):
        st.badge(
            words.escape_badge(f"{labels['study']} · trial {labels.get('trial', '?')}"),
            icon=":material/tune:",
            color="violet",
        )
    st.badge(words.layout(snapshot.status.layout), icon=":material/grid_view:", color="blue")
    backend_note(snapshot.status.backend, snapshot.status.backend_reason)


def _steps(snapshot: Snapshot, slowest: Columns) -> tuple[int, int]:
    """How many are done, and how many there will be: of a run with a time as it planned last; 0 where nobody knows."""
    train = snapshot.config.get("train") or {}
    planned = snapshot.planned_steps if train.get("seconds") else train.get("steps")
    count = int(slowest["step"][-1]) + 1 if len(slowest.get("step", ())) else 0
    return count, int(planned or 0)


def _budget_left(snapshot: Snapshot) -> tuple[float, float] | None:
    """Of a run with a time: what is left of it, and all of it. None of any other, and before it has started."""
    budget, started_unix = (snapshot.config.get("train") or {}).get("seconds"), snapshot.status.started_unix
    return (max(0.0, started_unix + budget - time.time()), budget) if budget and started_unix else None


def _share_done(snapshot: Snapshot, slowest: Columns, *, goes_on: bool) -> float:
    """Of its time, while a run with one goes on; else of its steps."""
    count, planned = _steps(snapshot, slowest)
    if goes_on and (budget := _budget_left(snapshot)) is not None:
        return min(1.0, max(0.0, 1 - budget[0] / budget[1]))
    return min(1.0, count / planned) if planned else 0.0


def _numbers(snapshot: Snapshot, slowest: Columns, goes_on: bool) -> dict[str, tuple[str, str]]:
    done, planned = _steps(snapshot, slowest)
    recent = recent_columns(snapshot)
    count = len(next(iter(recent.values()))["step"]) if recent else 0
    step_seconds = _wall_seconds(recent) if count else None
    exposed_share = _exposed_share(recent) if count else None
    tokens = _tokens_per_step(snapshot, recent)
    seconds_left = (planned - done) * step_seconds if step_seconds and planned and goes_on else None
    if goes_on and (budget := _budget_left(snapshot)) is not None:
        seconds_left = budget[0]
    qualifier = "about " if goes_on and snapshot.planned_steps is not None else ""
    note = f"mean of the last {words.several(count, 'steps')}" if count else ""
    return {
        "Step": (
            f"{done:,} of {qualifier}{planned:,}" if planned else f"{done:,}",
            _time_left(snapshot, seconds_left),
        ),
        "Step time": (words.seconds(step_seconds), note),
        "Tokens/s": (words.number(tokens / step_seconds if step_seconds and tokens else None), note),
        "Communication": (words.percent(exposed_share), "time waited, mean over ranks" if count else ""),
        "Loss": (words.loss(_last_loss(snapshot)), "mean over ranks"),
        "Memory, largest rank": (words.gib(_peak(snapshot)), "highest so far"),
    }


def _time_left(snapshot: Snapshot, seconds: float | None) -> str:
    """Until the last step or the end of its time, or until the run's own time limit where that comes first."""
    if not seconds:
        return ""
    limit, started_unix = (
        (snapshot.config.get("train") or {}).get("timeout_seconds"),
        snapshot.status.started_unix,
    )
    until_limit = started_unix + limit - time.time() if limit and started_unix else None
    if until_limit is not None and until_limit < seconds:
        return f"its time limit ends it in {words.estimate(max(0.0, until_limit))}"
    return f"{words.estimate(seconds)} left"


def recent_columns(snapshot: Snapshot) -> dict[int, Columns]:
    """Each rank's last steps that all have ended, without warm-up once a step after it has: whole rounds, where there
    are as many.
    """
    written = {rank: columns for rank, columns in snapshot.steps.items() if len(columns.get("step", ()))}
    common = common_steps([columns["step"] for columns in written.values()])
    last = common[-recent_steps(snapshot.config.get("outer")) :]
    if len(last):
        first = next(iter(written.values()))
        settled = np.cumprod(first["measured"][rows_of(first["step"], last)].astype(bool)[::-1]).sum()
        last = last[-_rounded(int(settled), round_steps(snapshot.config.get("outer"))) :] if settled else last
    return {
        rank: {name: columns[name][rows_of(columns["step"], last)] for name in _COLUMNS}
        for rank, columns in written.items()
        if len(last)
    }


def _rounded(steps: int, period: int) -> int:
    """So many of the last steps that they are whole rounds; all, if they are less than one."""
    return steps // period * period or steps


def _wall(columns: Columns) -> Array:
    """Seconds of each step and of what comes before it."""
    return np.asarray(columns["step_seconds"] + np.nan_to_num(columns["between_seconds"]))


def _wall_seconds(recent: Mapping[int, Columns]) -> float:
    """The mean over ranks and steps."""
    return float(np.mean([_wall(columns) for columns in recent.values()]))


def _exposed_share(recent: Mapping[int, Columns]) -> float | None:
    """Of the steps that were recorded in detail, on all ranks."""
    exposed_seconds, wall_seconds = 0.0, 0.0
    for columns in recent.values():
        finite = np.isfinite(columns["communication_exposed_seconds"])
        exposed_seconds += float(columns["communication_exposed_seconds"][finite].sum())
        wall_seconds += float(_wall(columns)[finite].sum())
    return exposed_seconds / wall_seconds if wall_seconds else None


def _tokens_per_step(snapshot: Snapshot, recent: Mapping[int, Columns]) -> float | None:
    """Of documents, whose lengths are their own, what ranks had in the last steps."""
    if snapshot.job is not None:
        return snapshot.job.tokens_per_step
    if (snapshot.config.get("data") or {}).get("documents") == "whole" and recent:
        return float(np.nansum([np.nanmean(columns["tokens"]) for columns in recent.values()]))
    batches = [row.new for row in snapshot.changes if row.key == BATCH]
    return tokens_per_step_of(snapshot.config, batches[-1] if batches else None)


def _last_loss(snapshot: Snapshot) -> float | None:
    finite_losses = [columns["loss"][np.isfinite(columns["loss"])] for columns in snapshot.steps.values()]
    last = [float(losses[-1]) for losses in finite_losses if len(losses)]
    return sum(last) / len(last) if last else None


def _peak(snapshot: Snapshot) -> float | None:
    for name in ("cuda_peak_bytes", "peak_rss_bytes"):
        columns = [memory[name] for memory in snapshot.memory.values()]
        peaks = [
            float(np.max(values[np.isfinite(values)])) for values in columns if np.isfinite(values).any()
        ]
        if peaks:
            return max(peaks)
    return None


def ranks_table(snapshot: Snapshot) -> None:
    """One line per rank: its place, step and phase; its host, where there are several."""
    st.markdown("**Ranks**")
    if not snapshot.ranks:
        st.caption("No rank has reported yet.")
        return
    _, planned = _steps(snapshot, {})
    layout = snapshot.status.layout or {}
    st.dataframe(
        {
            "rank": [rank.rank for rank in snapshot.ranks],
            **_hosts(snapshot),
            "place": [_place(layout, rank.rank) for rank in snapshot.ranks],
            "step": [rank.step for rank in snapshot.ranks],
            "phase": [PHASES_IN_SHORT.get(rank.phase, rank.phase) for rank in snapshot.ranks],
            **_idle(snapshot),
        },
        key="live-ranks",
        hide_index=True,
        height=table_height(len(snapshot.ranks), SHOWN_RANKS),
        column_config={
            "rank": st.column_config.NumberColumn(width=40),
            "host": st.column_config.TextColumn(width=72),
            "place": st.column_config.TextColumn(width=66),
            "step": (
                st.column_config.ProgressColumn(width=66, max_value=max(1, planned - 1), format="%d")
                if planned
                else st.column_config.NumberColumn(width=66, format="%,d")
            ),
            "phase": st.column_config.TextColumn(width=76),
            "idle, s": st.column_config.NumberColumn(width=50, format="%.1f", help=_IDLE),
        },
    )


def _idle(snapshot: Snapshot) -> dict[str, list[float | None]]:
    """Of a run that goes on: how long each rank has not moved, where that is known."""
    ages = idle_seconds(snapshot)
    return {"idle, s": ages} if any(age is not None for age in ages) else {}


def _hosts(snapshot: Snapshot) -> dict[str, list[str]]:
    if len(set(snapshot.rank_hosts.values())) < 2:
        return {}
    return {"host": [snapshot.rank_hosts.get(rank.rank, words.NOTHING) for rank in snapshot.ranks]}


def _place(layout: Mapping[str, int], rank: int) -> str:
    try:
        coordinates = Layout(layout["dp"], layout["tp"], layout["pp"], layout["cp"]).coordinates(rank)
    except (KeyError, TypeError, ZeroDivisionError):
        return words.NOTHING
    degrees = {"dp": coordinates.dp, "tp": coordinates.tp, "pp": coordinates.pp}
    return " ".join(f"{axis}{place}" for axis, place in degrees.items() if layout[axis] > 1) or "alone"
