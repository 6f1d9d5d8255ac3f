"""Page Plan: the best layouts of a model on a cluster, why not others, and which rank stands where.

The address holds what was asked, so that a plan can be sent to somebody; a typed cluster stays in the browser.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from engine.config.layout import layout_of
from engine.config.presets import PRESETS
from tuning.predict.cluster import catalogue
from tuning.predict.forecast_document import Forecast
from tuning.predict.placement.place import PlacementReport
from tuning.predict.placement.signatures.mesh import compare, unknown
from tuning.predict.placement.traffic_map import TrafficMap, traffic_of
from tuning.predict.plan import plans
from tuning.predict.plan.plans import PlanResult
from tuning.predict.plan.track_record import Record
from tuning.predict.target import Target
from workbench.analysis import planning
from workbench.figures.cluster import placement
from workbench.home.calibrations import target_of
from workbench.pages.cluster import schedules
from workbench.pages.widgets.common import draw_guarded, home, may_steer, number_table, table
from workbench.pages.widgets.heading import heading
from workbench.pages.widgets.plotly_chart import chart
from workbench.text import plan as plan_text
from workbench.text import words

HERE, TYPED = "this machine", "typed below"
MODEL = "7b"
FRESH_SECONDS = 30.0
EXAMPLE = """\
name = "ours"

[[groups]]
accelerator = "h100-sxm"
devices_per_node = 8
nodes = 4
network = "InfiniBand NDR"
inside = {bytes_per_second = 450e9, alpha_seconds = 3e-6}
between = {bytes_per_second_per_node = 400e9, alpha_seconds = 5e-6}
"""


class PlanQuery(NamedTuple):
    """A question: a cluster, its nodes (0: as many as it has, else one), a model, sequences a step and their length."""

    cluster: str
    nodes: int
    model: str
    batch: int
    sequence: int
    text: str


def page() -> None:
    """The question, its answer, and the schedules of runs."""
    heading(
        "Plan",
        "The best layouts of a model on a cluster that you need not have.",
    )
    query = _form()
    draw_guarded(lambda: _answer(query))
    draw_guarded(schedules.draw)


def _form() -> PlanQuery:
    # What is typed is checked: whoever may only look chooses among the named ones.
    clusters = [HERE, *catalogue.names(), *([TYPED] if may_steer() else [])]
    with st.container(border=True, key="plan-form"):
        first, second = st.columns([1.2, 2])
        with first:
            cluster = _choice(
                "Cluster", "cluster", clusters, "dgx-h100", "Named clusters have figures with sources."
            )
            model = _choice("Model", "model", list(PRESETS), MODEL, "A model by name.")
        with second, st.container(horizontal=True, vertical_alignment="bottom"):
            nodes = _number(
                "Nodes", "nodes", 1, "Of the cluster; this machine and a typed one say themselves."
            )
            batch = _number("Sequences a step", "batch", planning.BATCH, "The global batch.")
            sequence = _number("Tokens a sequence", "sequence", planning.SEQUENCE, "Its length.", least=2)
        text = (
            st.text_area("Cluster, as TOML", EXAMPLE, key="plan-typed", height=260)
            if cluster == TYPED
            else ""
        )
    return PlanQuery(cluster, nodes, model, batch, sequence, text)


def _choice(label: str, name: str, options: list[str], first: str, help_text: str) -> str:
    """A chooser whose value is in the address."""
    linked = st.query_params.get(name, first)
    if linked not in options:
        st.warning(
            words.escape(f"{label} {linked} in the link is not known here."), icon=":material/link_off:"
        )
        linked = first
    key = f"plan-{name}"
    st.session_state[key] = linked
    option: str = st.selectbox(label, options, key=key, help=help_text, on_change=lambda: _to_link(name, key))
    return option


def _number(label: str, name: str, first: int, help_text: str, least: int = 1) -> int:
    linked = st.query_params.get(name, "")
    key = f"plan-{name}"
    st.session_state[key] = max(least, int(linked)) if linked.isdecimal() else first
    number: int = st.number_input(
        label,
        min_value=least,
        step=1,
        key=key,
        width=150,
        help=help_text,
        on_change=lambda: _to_link(name, key),
    )
    return number


def _to_link(name: str, key: str) -> None:
    st.query_params[name] = str(st.session_state[key])


@st.cache_data(ttl=600, max_entries=16, show_spinner="Looking through all legal layouts ...")
def _compute_plan(query: PlanQuery, home_folder: Path) -> PlanResult:
    target = _target(query, home_folder)
    values: dict[str, Any] = {
        "model.preset": query.model,
        "batch.global_batch": query.batch,
        "data.sequence_length": query.sequence,
    }
    return plans.plan(planning.model_config([]).with_values(values | _precision(target)), target)


def _precision(target: Target) -> dict[str, str]:
    """What is set where the device has no figure for bf16: a CPU was calibrated in fp32 alone."""
    if "bf16" in target.group.accelerator.peak_flops:
        return {}
    return {"precision": "fp32", "memory.parameters": "fp32"}


def _target(query: PlanQuery, home_folder: Path) -> Target:
    if query.cluster == TYPED:
        return planning.parse_target(query.text)
    if query.cluster == HERE:
        return target_of(home_folder, None, None, None)
    return target_of(home_folder, query.cluster, query.nodes, None)


@st.cache_data(ttl=FRESH_SECONDS, show_spinner=False)
def _record(home_folder: Path) -> Record:
    return planning.record_of_home(home_folder)


def _answer(query: PlanQuery) -> None:
    plan = _compute_plan(query, home())
    record = _record(home()) if query.cluster == HERE else None
    cluster = plan.target.cluster
    caption = (
        f"{query.model} on {plan_text.devices(cluster)}, "
        f"{plan.config.precision}: {plan.looked_at:,} legal layouts, {plan.safe:,} fit safely."
    )
    st.caption(words.escape(caption))
    if not plan.best:
        st.warning(
            "No layout fits safely: use more nodes or a smaller model.",
            icon=":material/memory:",
        )
    else:
        st.markdown("**Fastest layouts that fit**, one for each combination of dp, tp, pp and ZeRO stage")
        number_table(plan_text.layout_columns(plan.best, record), "plan-best")
    _others(plan)
    if plan.best:
        _place(plan)
    if record is not None:
        _draw_track_record(record)
    _command(query, _precision(plan.target))


def _others(plan: PlanResult) -> None:
    with st.expander("Why not other layouts, and what would save memory", expanded=not plan.best):
        lines = plan_text.why_not(plan.families)
        table(
            {
                "axis": [line.axis for line in lines],
                "values": [line.values for line in lines],
                "why not": [line.reason for line in lines],
            },
            "plan-why-not",
        )
        if plan.pareto:
            st.markdown("**Layouts that trade time for memory**")
            number_table(plan_text.layout_columns(plan.pareto, None), "plan-pareto")
        for note in plan.notes:
            st.caption(f":material/info: {words.escape(note)}")


def _place(plan: PlanResult) -> None:
    """Ranks on hosts and what goes between them, of one of the best layouts."""
    st.header("Ranks on hosts", anchor=False, divider=True)
    names = [_name(row) for row in plan.best]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox("Layout", names, key="plan-layout", width=420)
        place = names.index(name) if name in names else 0
        row, report = plan.best[place], plan.placements[place]
        traffic = traffic_of(row.config, row.target)
        if traffic is None:
            st.caption(
                "A single device sends nothing, and more than 1,024 are not mapped: choose fewer nodes."
            )
            return
        axes = list(traffic.bytes_) or ["dp"]
        axis = st.segmented_control(
            "Axis", axes, default=axes[0], required=True, key=f"plan-axis-{'-'.join(axes)}"
        )
    _maps(row, traffic, axis or axes[0])
    if report is not None:
        _orders(report)


def _orders(report: PlacementReport) -> None:
    """Where devices or links differ: which order of the ranks is best, and what others come to."""
    st.markdown(
        "\n".join(
            f"- {words.escape(line.strip())}" for line in plan_text.placement_lines(report, orders=False)
        )
    )
    if len(report.alternatives) > 1:
        number_table(plan_text.alternative_columns(report), "plan-orders")


def _name(row: Forecast) -> str:
    return f"{words.layout(layout_of(row.config).as_dict())}, {words.seconds(row.step_seconds.median)} a step"


def _maps(row: Forecast, traffic: TrafficMap, axis: str) -> None:
    map_column, link_column = st.columns([1.3, 1])
    with map_column:
        series = placement.map_series(row.config, traffic, axis)
        chart(
            placement.rank_map(series, axis),
            "plan-map",
            f"Which rank stands on which node, by group of {axis}",
        )
        st.caption("In a cell: rank · its group. Ranks of one group send to each other.")
    with link_column:
        links = placement.link_series(traffic, axis)
        chart(
            placement.link_matrix(links, axis), "plan-links", f"Bytes of {axis} from node to node in a step"
        )
    st.caption(f":material/cable: {words.escape(plan_text.traffic(traffic))}")
    if (mesh := compare(row.config, row.target)) is not None:
        st.caption(f":material/grid_on: {words.escape(plan_text.signatures(mesh))}")
        st.markdown("**What each axis divides**")
        number_table(plan_text.mesh_columns(mesh), "plan-mesh")
        st.caption(words.escape(plan_text.LIES))
    elif reason := unknown(row.config):
        st.caption(words.escape(plan_text.not_told(reason)))


def _draw_track_record(record: Record) -> None:
    st.header("Predicted against measured", anchor=False, divider=True)
    st.caption(words.escape(plan_text.track_record_line(record)), help=plan_text.HELD)
    if record.rows:
        number_table(plan_text.track_record_columns(record.rows), "plan-held")


def _command(query: PlanQuery, settings: dict[str, str]) -> None:
    """The same on the command line; a typed cluster is a file there."""
    cluster_options = {HERE: "", TYPED: " --cluster FILE.toml"}.get(
        query.cluster, f" --cluster {query.cluster} --nodes {query.nodes}"
    )
    sizes = f"--global-batch {query.batch} --sequence {query.sequence}"
    sets = "".join(f" --set {key}={value}" for key, value in settings.items())
    st.code(f"workbench plan --model {query.model}{cluster_options} {sizes}{sets}", language="bash")


if __name__ == "__main__":
    page()
