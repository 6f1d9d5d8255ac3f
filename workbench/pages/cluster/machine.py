"""Page Machine: what this machine was measured to reach, whether that still holds, and how its last selftest ended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import streamlit as st

from engine.run.calibration import fingerprint, host_links, store
from engine.run.calibration.table import Calibration, Curve
from workbench.figures import calibration
from workbench.figures.cluster import placement
from workbench.home.calibrations import find_calibration, island_lines, segments, size
from workbench.pages.cluster import measurement_jobs
from workbench.pages.widgets.common import draw_guarded, home, table
from workbench.pages.widgets.heading import heading
from workbench.pages.widgets.plotly_chart import chart
from workbench.selftest import results
from workbench.selftest.results import Row, Selftest
from workbench.text import words

_TRUST = (
    "Filled points were fitted with T(S) = alpha + S / beta; hollow points were held out to measure the fit's error. "
    "A point is the median of windows of calls, by the clock of the slowest rank. Percent of the measured peak, on the "
    "page of a run, is of the best point of its operation and group size."
)
#: How a check of a selftest ended, in words and with the icon that says it without colour.
_OUTCOMES = {"pass": "✓ pass", "fail": "✗ fail", "not_possible": "– not possible"}
_NAMES = {"cpu": "processor", "memory_gib": "memory, GiB", "gpus": "GPUs", "nccl": "NCCL"}


def page() -> None:
    """The calibration that holds here; else the newest one and what changed; else what to do."""
    heading("Machine", "What this machine reaches, as measured on real ranks.")
    draw_guarded(_draw)


def _draw() -> None:
    lookup = find_calibration(home())
    latest = lookup.calibration or lookup.stale
    if latest is None:
        _empty()
    else:
        _state(lookup, latest)
        _calibration_charts(latest)
    measurement_jobs.calibrate()
    _host_links()
    measurement_jobs.doctor()
    _selftest()
    with st.expander("This machine's fingerprint", expanded=latest is None):
        _fingerprint(fingerprint.this_machine(), lookup.stale)


def _empty() -> None:
    with st.container(border=True, key="machine-empty"):
        st.markdown("**This machine is not calibrated.**")
        st.caption(
            "Until it is, runs cannot show the percentage of the measured peak. Calibrate it below, or with:"
        )
        st.code(store.COMMAND, language="bash")


def _state(lookup: store.CalibrationLookup, calibration: Calibration) -> None:
    date_text = (
        f"Measured {words.date_text(calibration.measured_unix)}, {words.age_text(calibration.measured_unix)}"
    )
    with st.container(horizontal=True, vertical_alignment="center", key="machine-state"):
        if lookup.calibration:
            st.badge("valid", icon=":material/check_circle:", color="green")
        else:
            st.badge("stale", icon=":material/history:", color="orange")
        st.markdown(f"**`{calibration.fingerprint.id}`**", width="content")
        st.caption(f"{date_text}, in {words.seconds(calibration.seconds)}", width="content")
        if not calibration.complete:
            st.badge("interrupted", icon=":material/stop_circle:", color="gray")
    if lookup.reason:
        st.warning(words.escape(lookup.reason), icon=":material/warning:")


def _calibration_charts(measurements: Calibration) -> None:
    left, right = st.columns([1.6, 1])
    with left:
        _collectives(measurements)
    with right:
        figure = calibration.gemm(calibration.gemm_series(measurements))
        chart(figure, "machine-gemm", "FLOP/s of matrix products by size and dtype")
        _bandwidths([*measurements.select_curves("memory"), *measurements.select_curves("transfer")])
    st.caption(_TRUST)


def _collectives(measurements: Calibration) -> None:
    groups = {
        f"{backend}, {ranks:,} ranks": (backend, ranks) for backend, ranks in calibration.groups(measurements)
    }
    if not groups:
        st.caption("No collectives were measured: a single rank sends nothing.")
        return
    labels = list(groups)
    label = labels[-1]
    if len(labels) > 1:
        label = st.segmented_control(
            "Group", labels, default=label, required=True, key="machine-group", label_visibility="collapsed"
        )
    group = groups.get(label or "", groups[labels[-1]])
    series = calibration.bandwidth_series(measurements, *group)
    chart(calibration.bandwidth(series), "machine-bandwidth", "Bus bandwidth by payload, with the fit")
    _fits(
        [curve for curve in measurements.select_curves("collective") if (curve.backend, curve.ranks) == group]
    )


def _fits(curves: list[Curve]) -> None:
    rows: list[dict[str, Any]] = []
    for curve in curves:
        errors = curve.fit
        for span, alpha, beta in segments(curve):
            rows.append(
                {
                    "operation": curve.name.replace("_", " "),
                    "for S": span,
                    "alpha": alpha,
                    "beta": beta,
                    "median error": words.percent(errors.median_error if errors else None, 1),
                    "largest error": words.percent(errors.largest_error if errors else None, 1),
                    "best bus bandwidth, GB/s": None if curve.peak is None else curve.peak / 1e9,
                }
            )
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    number = st.column_config.NumberColumn(format="%,.3f")
    table(columns, "machine-fits", {"best bus bandwidth, GB/s": number})


def _bandwidths(curves: list[Curve]) -> None:
    if not curves:
        return
    table(
        {
            "bytes per second": [curve.name.replace("_", " ") for curve in curves],
            "ranks": [curve.ranks for curve in curves],
            "up to": [size(curve.points[-1].size) for curve in curves],
            "largest, GB/s": [(curve.rate(curve.points[-1]) or 0.0) / 1e9 for curve in curves],
            "best, GB/s": [None if curve.peak is None else curve.peak / 1e9 for curve in curves],
        },
        "machine-memory",
        {name: st.column_config.NumberColumn(format="%,.1f") for name in ("largest, GB/s", "best, GB/s")},
    )


def _host_links() -> None:
    """What joins hosts, of each set of them that was measured."""
    stored_links = host_links.stored_links(home())
    if not stored_links:
        return
    with st.expander("Links between hosts", icon=":material/hub:", key="machine-links"):
        names = {links.words(): key for key, links in stored_links.items()}
        title = st.selectbox("Hosts", list(names), key="machine-links-hosts", width=420)
        links = stored_links[names.get(title, next(iter(stored_links)))]
        chart(placement.host_rates(links, links.key), "machine-links-rates", "Mbit/s from host to host")
        st.caption(
            "Two hosts share an island where the link between them carries at least half of the best that either has."
        )
        for line in island_lines(links):
            st.caption(f":material/hub: {words.escape(line)}")


def _selftest() -> None:
    """How the newest of this home ended: its state in one line, and a table of its checks, what failed first."""
    st.header("Selftest", anchor=False)
    newest = results.newest(home())
    if newest is None:
        _no_selftest()
    measurement_jobs.selftest()
    if newest is None:
        return
    folder, last = newest
    _selftest_state(last)
    if last.checks:
        _checks(sorted(last.checks, key=lambda row: row.outcome != "fail"))
    st.caption(_evidence(folder))


def _no_selftest() -> None:
    with st.container(border=True, key="machine-no-selftest"):
        st.markdown("**No selftest has been run on this machine.**")
        st.caption(
            "It checks in a few minutes what this machine can do, and writes a folder to attach to a bug report. "
            "Run it below, or with:"
        )
        st.code(results.COMMAND, language="bash")


def _selftest_state(last: Selftest) -> None:
    counts = last.outcomes
    with st.container(horizontal=True, vertical_alignment="center", key="machine-selftest-state"):
        if counts["fail"]:
            st.badge(f"{counts['fail']} failed", icon=":material/error:", color="red")
        if counts["pass"]:
            st.badge(f"{counts['pass']} passed", icon=":material/check_circle:", color="green")
        if counts["not_possible"]:
            st.badge(f"{counts['not_possible']} not possible here", icon=":material/block:", color="gray")
        if not last.complete:
            unfinished_count = len(last.asked) - len(last.checks)
            st.badge(f"{unfinished_count} without a result", icon=":material/stop_circle:", color="orange")
        date_text = f"Started {words.date_text(last.started_unix)}, {words.age_text(last.started_unix)}"
        place_text = f"{words.several(last.ranks, 'ranks')}, device {last.device}"
        summary = f"{date_text}, took {words.seconds(last.seconds)}, {place_text}"
        st.caption(summary, width="content")


def _checks(rows: list[Row]) -> None:
    """Reasons are whole: cells of this kind of table wrap."""
    columns = {
        "check": [row.title for row in rows],
        "outcome": [_OUTCOMES.get(row.outcome, row.outcome) for row in rows],
        "reason": [words.escape(row.reason) for row in rows],
        "seconds": [f"{row.seconds:,.1f}" for row in rows],
    }
    with st.container(key="machine-selftest"):
        st.table(columns, border="horizontal", hide_index=True)


def _evidence(folder: Path) -> str:
    archive = folder.with_name(f"{folder.name}.zip")
    attachment = archive if archive.is_file() else folder
    return f"Evidence to attach to a bug report: `{attachment}`. To run it again: `{results.COMMAND}`."


def _fingerprint(fingerprint_now: fingerprint.Fingerprint, stale: Calibration | None) -> None:
    parts = fingerprint_now.as_dict()
    columns = {
        "part": [_NAMES.get(name, name.replace("_", " ")) for name in parts],
        "now": [_part(part) for part in parts.values()],
    }
    if stale is not None:
        columns["when it was calibrated"] = [_part(part) for part in stale.fingerprint.as_dict().values()]
    # What differs from machine to machine is longer than its name: a GPU with its clocks takes a line.
    table(columns, "machine-fingerprint", {"part": st.column_config.TextColumn(width="small")})


def _part(value: object) -> str:
    if isinstance(value, list):
        counts = Counter(map(str, value))
        return (
            ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
            or words.NOTHING
        )
    return words.NOTHING if value is None else str(value)


if __name__ == "__main__":
    page()
