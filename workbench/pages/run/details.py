"""Everything one run left behind: outcome, speed, phases, collectives, verdicts, configuration and logs."""

from __future__ import annotations

from typing import Any, Literal

import streamlit as st

from engine.config.run_config import RunConfig, flatten
from engine.run import run_folder
from workbench.figures import base, steps
from workbench.home import runs
from workbench.pages.navigation import PAGES
from workbench.pages.run import collectives, commands, gpus, host, quality, settings, verdicts
from workbench.pages.run import steps as run_anatomy
from workbench.pages.run import steps as run_steps
from workbench.pages.widgets.plotly_chart import chart
from workbench.pages.widgets.shared import badge, home, metrics, scaled, snapshot, table
from workbench.records.live_snapshot import Snapshot
from workbench.services import jobs
from workbench.text import words

LOG_LINES = 200
SHORT_LOG = 22
VIEWS = (
    "Step time",
    "Anatomy",
    "Collectives",
    "Loss and memory",
    "Host",
    "GPUs",
    "Trace",
    "Configuration",
    "Logs",
)


def details(run_id: str) -> None:
    """The run's headline, then one view of it."""
    seen = snapshot(run_id)
    found = runs.document(runs.load(home() / run_id))
    _headline(found)
    if found["outcome"] not in (None, "completed"):
        _ending(found)
    metrics(_numbers(found), "run-numbers")
    verdicts.draw(found)
    views = st.tabs(VIEWS, key="run-view")
    with views[0]:
        run_steps.draw_steps(seen, found)
        settings.draw_schedule(found)
    with views[1]:
        run_anatomy.draw_anatomy(seen, found)
    with views[2]:
        collectives.draw(seen, found)
        settings.draw_plan(found)
    with views[3]:
        _loss_and_memory(seen, found)
        quality.draw(found)
        host.draw_memory(found)
        _checkpoints(found)
    with views[4]:
        host.draw_host(seen)
        commands.draw_commands(found)
    with views[5]:
        gpus.draw(seen, found)
    with views[6]:
        commands.draw_trace(found)
    with views[7]:
        commands.draw_live_settings(found)
        settings.draw_environment(found)
        _configuration(found["config"] or {})
    with views[8]:
        _logs(run_id)


def _headline(found: dict[str, Any]) -> None:
    labels = found["labels"]
    with st.container(horizontal=True, vertical_alignment="center", key="run-badges"):
        badge(found["outcome"] or found["state"])
        st.markdown(f"**`{found['id']}`**", width="content")
        if labels.get("study"):
            name = f"{labels['study']} · trial {labels.get('trial', '?')}"
            st.badge(name, icon=":material/tune:", color="violet")
        st.badge(words.layout(found["layout"]), icon=":material/grid_view:", color="blue")
        if found["backend"]:
            st.caption(f"{found['backend']}: {found['backend_reason']}", width="content")
        st.page_link(
            PAGES["Live"], label="Live", icon=":material/monitoring:", query_params={"run": found["id"]}
        )
        st.page_link(
            PAGES["Export"], label="Export", icon=":material/ios_share:", query_params={"export": found["id"]}
        )


def _ending(found: dict[str, Any]) -> None:
    """Why it did not complete: reason, rank, phase and the last lines."""
    where = [f"rank {found['rank']}" if found["rank"] is not None else "", found["phase"] or ""]
    place = ", ".join(part for part in where if part)
    text = (
        f"**{words.spoken(found['outcome'])}**"
        + (f" ({place})" if place else "")
        + f": {found['reason'] or '—'}"
    )
    color, icon = words.look(found["outcome"])
    (st.error if color == "red" else st.warning if color == "orange" else st.info)(text, icon=icon)
    if found["last_lines"]:
        st.code("\n".join(found["last_lines"]), language=None)


def _numbers(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    step, rate = found["step_seconds"] or {}, found.get("tokens_per_second_interval") or {}
    phases = found["phases"] or {}
    exposed = phases["communication_exposed"] / sum(phases.values()) if phases else None
    losses = [loss for loss in found["losses"] if loss is not None]
    return {
        "Tokens/s": (
            words.number(found["tokens_per_second"]),
            words.interval(rate.get("low"), rate.get("high")),
        ),
        "Step time, median": (words.seconds(step.get("median")), f"p95 {words.seconds(step.get('p95'))}"),
        "Communication": (words.percent(exposed), "of the step waits for it"),
        "Peak memory": (words.gib(found["peak_memory_bytes"]), host.where(found)),
        "Loss at the end": (words.number(losses[-1] if losses else None, 4), _validation(found)),
        "Parameters": (
            words.count(found.get("parameters")),
            "MFU not known" if found["mfu"] is None else f"MFU {words.percent(found['mfu'], 1)}",
        ),
    }


def _validation(found: dict[str, Any]) -> str:
    loss = found.get("validation_loss")
    return "no validation loss" if loss is None else f"validation {loss:.4f}"


def _loss_and_memory(seen: Snapshot, found: dict[str, Any]) -> None:
    left, right = st.columns(2)
    with left:
        losses = steps.losses_of(found["losses"], found.get("validation_loss"), found["first_step"])
        chart(base.loss(losses, seen.id), "run-loss", "Training loss per step")
    with right:
        host.memory(seen, "run-memory")


def _checkpoints(found: dict[str, Any]) -> None:
    """What was saved and what that cost, and where the run came from."""
    came_from, rows = found["resumed"], found["checkpoints"]
    if came_from:
        st.caption(f"Continues `{came_from['run']}` from step {came_from['step']:,}.")
    if not rows:
        return
    st.markdown("**Checkpoints**")
    numbers = st.column_config.NumberColumn
    table(
        {
            "next step": [row["step"] for row in rows],
            "MB": [scaled(row["bytes"], 1e-6) for row in rows],
            "s": [row["seconds"] for row in rows],
            "training waited, s": [row["paused_seconds"] for row in rows],
            "in the background": [row["asynchronous"] for row in rows],
            "problem": [row["problem"] for row in rows],
        },
        "run-checkpoint-table",
        {
            "next step": numbers(format="%,d"),
            "MB": numbers(format="%,.1f"),
            "s": numbers(format="%,.2f"),
            "training waited, s": numbers(format="%,.2f"),
        },
    )


def _configuration(tree: dict[str, Any]) -> None:
    """What differs from the defaults first; the exact file on request."""
    flat, usual = flatten(tree), RunConfig().flat()
    changed = {key: value for key, value in flat.items() if usual.get(key) != value}
    st.markdown("**What differs from the defaults**")
    if changed:
        values = [words.value(value) for value in changed.values()]
        defaults = [words.value(usual.get(key)) for key in changed]
        table({"key": list(changed), "value": values, "default": defaults}, "run-changed")
    else:
        st.caption("Nothing: every value is the default one.")
    with st.expander("The whole configuration"):
        st.json(tree, expanded=2)


def _logs(run_id: str) -> None:
    logs = sorted((home() / run_id / run_folder.LOGS).glob("*.log"))
    if not logs:
        st.caption("No log was written.")
        return
    chosen = st.selectbox("Log of", [log.stem for log in logs], key="run-log", width=240)
    log = next((log for log in logs if log.stem == chosen), logs[0])
    lines = jobs.last_lines(log, LOG_LINES)
    height: Literal["content"] | int = "content" if len(lines) <= SHORT_LOG else 480
    st.code("\n".join(lines) or "(empty)", language=None, height=height)
