"""A plan as tables and sentences: layouts, why not others, what goes over links, and how predictions held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from engine.config.run_config import RunConfig
from engine.schedules.registry import compared
from tuning.predict.forecast_document import Forecast
from tuning.predict.model.hardware import Cluster
from tuning.predict.placement.place import Alternative, PlacementReport
from tuning.predict.placement.signatures.mesh import REPLICATED_KEY, Comparison, MeshSignatures
from tuning.predict.placement.traffic_map import TrafficMap
from tuning.predict.plan.families import Family
from tuning.predict.plan.track_record import PredictionCheck, Record, find_measured_runs
from workbench.text import words
from workbench.text.quantities import (
    COUNT,
    MEGABYTES,
    MILLISECONDS,
    PERCENT,
    RATIO,
    SECONDS,
    Column,
    milliseconds,
)

AXES = {
    "zero_stage": "ZeRO",
    "micro_batch": "micro-batch",
    "chunks": "stages a rank",
    "recompute": "recompute",
}
RANGE = "Holds 9 of 10 measurements, as far as those that were held out tell."
#: What letters and columns of such a table say.
LIES = (
    "How matrices lie on each axis: S(0) split by rows, S(1) by columns, B whole on every rank. Sent is what all ranks "
    "of these axes send in a step, messages what that takes one after the other, with nothing hidden. Memory and "
    "computation are not asked here."
)
HELD = "Predicted from the calibration alone, without what these runs taught the predictions since."


class RefusedValues(NamedTuple):
    """Neighbouring values of an axis that are refused for one reason."""

    axis: str
    values: str
    reason: str


def other_schedule(config: RunConfig) -> str:
    """The schedule that its stages a rank do not tell: neither 1F1B nor its interleaved form; empty if it is."""
    schedule = config.schedule
    return "" if schedule.kind in compared(schedule.chunks)[:1] else schedule.kind


def layout_columns(rows: Sequence[Forecast], record: Record | None) -> list[Column]:
    """One line a layout, with what was measured of it wherever it was."""
    measured_runs = [find_measured_runs(record, row) if record else None for row in rows]
    parallel = [row.config.parallel for row in rows]
    others = [other_schedule(row.config) for row in rows]
    return [
        Column("dp", [layout.dp for layout in parallel], COUNT),
        Column("tp", [layout.tp for layout in parallel], COUNT),
        Column("pp", [layout.pp for layout in parallel], COUNT),
        Column("ZeRO", [layout.zero_stage for layout in parallel], COUNT),
        Column("micro-batch", [row.config.batch.micro_batch for row in rows], COUNT),
        Column("stages a rank", [row.config.schedule.chunks for row in rows], COUNT),
        *([Column("schedule", [row.config.schedule.kind for row in rows])] if any(others) else []),
        Column("recompute", [row.config.memory.recompute for row in rows]),
        Column(
            "step", [row.step_seconds.median for row in rows], SECONDS._replace(format="%,.3f"), "Predicted."
        ),
        Column(
            "90 % interval, s",
            [words.interval(row.step_seconds.low, row.step_seconds.high, 3) for row in rows],
            None,
            RANGE,
        ),
        Column(
            "measured",
            [measured and measured.measured_seconds for measured in measured_runs],
            SECONDS._replace(format="%,.3f"),
            "The mean step of runs of this home with this configuration.",
        ),
        Column("MFU", [row.mfu for row in rows], PERCENT, "Model FLOPs over the peak of all devices."),
        Column(
            "memory",
            [row.memory_bytes.median / row.target.memory_bytes for row in rows],
            PERCENT,
            "Of the fullest device, predicted.",
        ),
        Column(
            "out of memory",
            [row.out_of_memory_probability for row in rows],
            PERCENT,
            "The probability that a rank runs out of memory.",
        ),
        Column("mostly", [", ".join(limit.words for limit in row.limits[:2]) for row in rows]),
    ]


def why_not(families: Sequence[Family]) -> list[RefusedValues]:
    """One line for neighbours that are refused for one reason; the best need none."""
    lines = []
    for (axis, reason), group in groupby(families, lambda family: (family.axis, family.reason)):
        same_family = list(group)
        if same_family[0].verdict != "best":
            lines.append(
                RefusedValues(AXES.get(axis, axis), _span([family.value for family in same_family]), reason)
            )
    return lines


def _span(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 2 else f"{values[0]} ... {values[-1]}"


def track_record_line(record: Record) -> str:
    """How predictions of this machine held, in one line."""
    if not record.rows:
        return f"Predicted against measured: {record.reason}."
    inside = sum(row.inside for row in record.rows)
    errors = [abs(row.ratio - 1) for row in record.rows]
    count_text = words.several(len(record.rows), "configurations")
    return (
        f"Predicted against measured, {count_text} that ran here: {inside} of {len(record.rows)} within the range; "
        f"median error {words.percent(float(np.median(errors)))}, by the calibration alone."
    )


def track_record_columns(rows: Sequence[PredictionCheck]) -> list[Column]:
    """One line for each configuration that ran."""
    return [
        Column("newest run", [row.runs[0] for row in rows]),
        Column("runs", [len(row.runs) for row in rows], COUNT),
        Column("layout", [words.layout(row.layout) for row in rows]),
        Column("model", [row.values["model.preset"] for row in rows]),
        Column(
            "measured", [row.measured_seconds for row in rows], MILLISECONDS, "The mean step of these runs."
        ),
        Column("predicted", [row.predicted_seconds for row in rows], MILLISECONDS, HELD),
        Column("from", [row.low_seconds for row in rows], MILLISECONDS, RANGE),
        Column("to", [row.high_seconds for row in rows], MILLISECONDS, RANGE),
        Column("measured over predicted", [row.ratio for row in rows], RATIO),
        Column("within", ["yes" if row.inside else "no" for row in rows]),
    ]


def traffic(traffic_map: TrafficMap) -> str:
    """What a rank sends on each axis, and how much of it leaves its node."""
    parts = []
    for axis, kinds in traffic_map.as_dict()["axes"].items():
        share = kinds["bytes_between_nodes"] / kinds["bytes"]
        parts.append(f"{axis} {words.gib(kinds['bytes_of_a_rank'])} ({words.percent(share)} between nodes)")
    per_rank, rates = ", ".join(parts) or "nothing", traffic_map.rates()
    within_node, between_nodes = np.diag(rates), rates[~np.eye(len(rates), dtype=bool)]
    kinds_of_links = (("inside a node", within_node), ("between nodes", between_nodes))
    links = [
        f"{_span_of(rates_of_kind)} {link_kind}"
        for link_kind, rates_of_kind in kinds_of_links
        if np.isfinite(rates_of_kind).any()
    ]
    link_text = f" A device's link carries {', '.join(links)}." if links else ""
    return f"Sent by the busiest rank in a step, by formula: {per_rank}.{link_text}"


def signatures(comparison: Comparison) -> str:
    """With which signatures the messages of dp and tp take least, and what that costs."""
    best, now = comparison.best, comparison.now
    if best == now:
        return (
            f"Messages of dp and tp take {words.seconds(now.seconds)} one after the other; no other degrees and list "
            "of replicated matrices that the rules allow take noticeably less."
        )
    whole = (
        " Each rank of tp then holds these matrices whole."
        if (best.settings or {}).get(REPLICATED_KEY)
        else ""
    )
    return (
        f"Messages of dp and tp take {words.seconds(now.seconds)} one after the other; least, "
        f"{words.seconds(best.seconds)}, with {_settings(best)}.{whole}"
    )


def not_told(reason: str) -> str:
    """Where there are no signatures to show."""
    return f"What dp and tp send matrix by matrix is not told: {reason}."


def mesh_columns(comparison: Comparison) -> list[Column]:
    """What each axis divides: the layout as it is, others on as many ranks, and what would take less than all these."""
    rows = [*comparison.runnable, *([comparison.mixed] if comparison.mixed else [])]
    return [
        Column("dp", [row.axes.get("dp", 1) for row in rows], COUNT),
        Column("tp", [row.axes.get("tp", 1) for row in rows], COUNT),
        Column("matrices", [_lies(row) for row in rows]),
        Column("sent", [row.bytes_ for row in rows], MEGABYTES),
        Column("messages", [row.seconds for row in rows], milliseconds(row.seconds for row in rows)),
        Column("runs", [_how_run(row, comparison) for row in rows]),
    ]


def _lies(row: MeshSignatures) -> str:
    """Matrices by how they lie."""
    sorted_matrices = sorted(row.matrices.items(), key=lambda item: str(item[1]))
    groups = groupby(sorted_matrices, key=lambda item: item[1])
    return "; ".join(
        f"({', '.join(map(str, same))}): {', '.join(name for name, _ in matrices)}"
        for same, matrices in groups
    )


def _how_run(row: MeshSignatures, comparison: Comparison) -> str:
    if row.settings is None:
        return "not run here: one axis divides samples and matrices"
    return "as it is" if row is comparison.now else _settings(row)


def _settings(row: MeshSignatures) -> str:
    """As they are typed."""
    settings = row.settings or {}
    return " ".join(f"{key}={_listed(value)}" for key, value in settings.items() if value is not None)


def _listed(value: Any) -> str:
    return f"[{','.join(value)}]" if isinstance(value, list) else str(value)


def _span_of(rates: np.ndarray[Any, Any]) -> str:
    """The slowest and the fastest link."""
    slowest, fastest = np.nanmin(rates), np.nanmax(rates)
    return (
        f"{slowest / 1e9:,.1f} GB/s"
        if slowest == fastest
        else f"{slowest / 1e9:,.1f} to {fastest / 1e9:,.1f} GB/s"
    )


#: The most devices that are listed as a person types them; of more, runs of them are told.
_LISTED = 64
_SUM_HELP = (
    "By formula (Pipette's): it compares orders, and is longer than a step, in which some of it hides."
)


def devices(cluster: Cluster) -> str:
    """All of them, group by group: "8 x h100-sxm + 8 x a100-80gb (ours)"."""
    groups = [(group.accelerator.name, group.size) for group in cluster.groups]
    kinds = {name: sum(size for other, size in groups if other == name) for name, _ in groups}
    return f"{' + '.join(f'{size:,} x {name}' for name, size in kinds.items())} ({cluster.name})"


def placement_lines(report: PlacementReport | None, orders: bool = True) -> Iterator[str]:
    """What the best placement is and what it gains; nothing where all devices and links are alike. With ``orders``:
    what the axes nested in other ways come to.
    """
    if report is None:
        return
    yield f"Best placement of ranks on {report.network}:"
    if report.values:
        yield f"  {100 * report.gain:+6.1f} % tokens/s  {placement_settings(report)}"
    yield f"  {report.reason}"
    if report.values:
        yield f"  {_axes(report)}"
    if report.values and report.configured_seconds is not None:
        yield f"  as configured: {words.seconds(sum(report.configured_seconds.values()))} a step, nothing hidden"
    if orders and len(report.alternatives) > 1:
        text = milliseconds(alternative.total for alternative in report.alternatives).text
        alternatives = [
            f"{nesting(alternative)} {text(alternative.total)}" for alternative in report.alternatives
        ]
        yield f"  axis inside axis, the outermost first: {', '.join(alternatives)}"


def nesting(alternative: Alternative) -> str:
    """Which axis lies inside which: "pp > dp > tp"."""
    in_order = " (ranks in order)" if list(alternative.devices) == sorted(alternative.devices) else ""
    return " > ".join(alternative.axes) + in_order


def alternative_columns(report: PlacementReport) -> list[Column]:
    """One line for each way to nest the axes, the fastest first."""
    rows = report.alternatives
    axes = [axis for axis in report.seconds if any(row.seconds[axis] > 0 for row in rows)]
    unit = milliseconds(row.seconds[axis] for row in rows for axis in axes)
    crossing = [
        ", ".join(f"{axis} {count:,}" for axis, count in row.crossing.items() if count) or "none"
        for row in rows
    ]
    return [
        Column("axis inside axis", [nesting(row) for row in rows]),
        Column("sum", [row.total for row in rows], unit, _SUM_HELP),
        *(Column(axis, [row.seconds[axis] for row in rows], unit) for axis in axes),
        Column("groups across islands", crossing),
    ]


def placement_settings(report: PlacementReport) -> str:
    """Keys and values as ``--set`` takes them; a long order in runs of devices that follow each other."""
    return " ".join(f"{key}={_values_text(values)}" for key, values in report.values.items())


def _values_text(values: Sequence[int]) -> str:
    if len(values) <= _LISTED:
        return f"[{','.join(map(str, values))}]"
    return f"[{', '.join(_runs(values))}] (--json has the whole list)"


def _runs(values: Sequence[int]) -> Iterator[str]:
    first = last = values[0]
    for value in values[1:]:
        if value != last + 1:
            yield f"{first}-{last}" if first < last else str(first)
            first = value
        last = value
    yield f"{first}-{last}" if first < last else str(first)


def _axes(report: PlacementReport) -> str:
    """Seconds of what an order changes, before and after."""
    before, after = report.in_order_seconds, report.seconds
    changed = [name for name in after if abs(after[name] - before[name]) > 0.005 * sum(before.values())]
    parts = [f"{name} {words.seconds(before[name])} -> {words.seconds(after[name])}" for name in changed]
    return f"ranks in order -> placed, nothing hidden: {', '.join(parts)}"
