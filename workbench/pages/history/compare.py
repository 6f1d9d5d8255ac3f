"""Page Compare: two to eight runs or trials side by side; which ones, the address says."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from engine.config.errors import WorkbenchError
from tuning.storage.study_folder import STUDIES
from workbench.analysis import compare
from workbench.analysis.compare import FEWEST, MOST, Comparison
from workbench.figures import compare as figures
from workbench.home import runs
from workbench.pages.widgets.common import (
    MOST_OPTIONS,
    draw_guarded,
    home,
    nothing_yet,
    number_table,
    run_rows,
    table,
)
from workbench.pages.widgets.heading import heading
from workbench.pages.widgets.plotly_chart import chart
from workbench.pages.widgets.trial_table import study
from workbench.terminal import compare as compare_text
from workbench.text import words

IDS = "ids"
#: Runs that go on are read again after so long.
_FRESH_SECONDS = 5


def page() -> None:
    """A chooser; below it what the runs have in common and what not."""
    heading(
        "Compare",
        "Two to eight runs or trials side by side. Tick them in a list of runs or trials, or choose here.",
    )
    rows = run_rows()
    if not rows:
        nothing_yet("There are no runs yet.", "workbench train examples/train.yaml")
        return
    run_ids = [row.id for row in rows if row.purpose != "confirm"]  # a window is compared by a link to it
    selected_ids = _choose_runs(run_ids, {row.id: _label(row.id, row.study, row.trial) for row in rows})
    if len(selected_ids) < FEWEST:
        st.info("Choose at least two runs.", icon=":material/compare_arrows:")
        return
    draw_guarded(lambda: _draw(selected_ids))


def _label(run: str, study: str | None, trial: str | None) -> str:
    return run if study is None else f"{study} trial {trial} · {run}"


def _choose_runs(ids: list[str], labels: dict[str, str]) -> list[str]:
    """From the address once, afterwards from the chooser; what is gone is said, not dropped in silence."""
    linked = st.query_params.get(IDS, "")
    if linked != st.session_state.get("compare-linked"):
        linked_ids, problems = _resolve_runs([part for part in linked.split(",") if part][:MOST])
        st.session_state["compare-ids"], st.session_state["compare-gone"] = linked_ids, problems
        st.session_state["compare-linked"] = linked
    _leave_out_deleted()
    options = dict.fromkeys([*st.session_state.get("compare-ids", []), *ids[:MOST_OPTIONS]])
    selected_ids = st.multiselect(
        "Runs, the first one is the measure",
        list(options),
        key="compare-ids",
        max_selections=MOST,
        # Who types fast and presses Enter gets what they typed, not all that is offered.
        select_all=False,
        filter_mode="contains",
        format_func=lambda run: labels.get(run, run),
    )
    for line in st.session_state.get("compare-gone", []):
        st.warning(words.escape(line), icon=":material/link_off:")
    st.session_state["compare-linked"] = st.query_params[IDS] = ",".join(selected_ids)
    return list(selected_ids)


def _leave_out_deleted() -> None:
    """Of the chosen ones, those whose folder went away meanwhile: they are said to be gone."""
    selected_ids = st.session_state.get("compare-ids", [])
    deleted_ids = [run for run in selected_ids if not (home() / run).is_dir()]
    if deleted_ids:
        st.session_state["compare-ids"] = [run for run in selected_ids if run not in deleted_ids]
        lines = [f"{run} is not in this home any more: it was deleted" for run in deleted_ids]
        st.session_state["compare-gone"] = [*st.session_state.get("compare-gone", []), *lines]


def _resolve_runs(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The runs that a link names, and a line for each that is not there."""
    run_ids: list[str] = []
    problems: list[str] = []
    for text in texts:
        try:
            run_ids.append(compare.run_of(home(), text).id)
        except WorkbenchError as error:
            problems.append(str(error))
    return list(dict.fromkeys(run_ids)), problems


@st.cache_data(ttl=_FRESH_SECONDS, show_spinner="Comparing", max_entries=16)
def _compare_runs(home_folder: str, ids: tuple[str, ...]) -> Comparison:
    del home_folder
    views = [runs.add_numbers_so_far(runs.load(home() / run)) for run in ids]
    return compare.compare(home(), views)


def _draw(run_ids: Sequence[str]) -> None:
    comparison = _compare_runs(str(home()), tuple(run_ids))
    letters = compare_text.names(comparison)
    table(compare_text.overview(comparison), "compare-overview", _OVERVIEW)
    for note in comparison.notes:
        st.caption(f":material/info: {words.escape(note[:1].upper() + note[1:])}.")
    st.header("Is it real?", anchor=False)
    for pair in comparison.pairs:
        icon = {"better": "trending_up", "worse": "trending_down", "equal": "equal"}.get(pair.verdict, "help")
        st.markdown(f":material/{icon}: {words.escape(compare_text.pair(pair, letters))}")
    st.header("What differs in the configuration", anchor=False)
    if comparison.differences:
        table(compare_text.differences(comparison), "compare-differences")
    same_text = f"{comparison.same_keys:,} keys are the same in all of them."
    st.caption(
        same_text if comparison.differences else f"Nothing: all {comparison.same_keys:,} keys are the same."
    )
    _steps(comparison, list(letters.values()))
    _losses(comparison, letters)
    _study(comparison, letters)


_OVERVIEW = {
    "tokens/s": st.column_config.NumberColumn(
        format="%,.0f", help="Over whole rounds of the measured steps."
    ),
    "step, ms": st.column_config.NumberColumn(format="%,.1f", help="Mean of the measured steps."),
    "peak memory, GiB": st.column_config.NumberColumn(
        format="%.2f", help="Of the rank with the largest peak."
    ),
    "sent, MB a step": st.column_config.NumberColumn(
        format="%,.2f", help="By a rank, by the algorithms' formulas."
    ),
    "last loss": st.column_config.NumberColumn(format="%.4f"),
    "held-out loss": st.column_config.NumberColumn(format="%.4f"),
}


def _steps(comparison: Comparison, letters: list[str]) -> None:
    st.header("A step", anchor=False)
    widest = compare_text.widest(comparison.phases)
    if widest is not None:
        st.caption(f"They are furthest apart in: {compare_text.part(widest.name)}.")
    chart(figures.phases(comparison.phases, letters), "compare-phases", "Parts of the mean step of each run")
    number_table(compare_text.phase_columns(comparison), "compare-phase-table")
    drawing = figures.collectives(comparison.collectives, letters)
    chart(drawing, "compare-collectives", "Exposed time and bytes of each collective in each run")
    if comparison.collectives:
        columns = compare_text.collective_columns(comparison.collectives, letters)
        number_table(columns, "compare-collective-table")


def _losses(comparison: Comparison, letters: dict[str, str]) -> None:
    st.header("Loss", anchor=False)
    x_unit = st.segmented_control(
        "Against", figures.AGAINST, default="steps", required=True, key="compare-against"
    )
    drawing = figures.losses(comparison.losses, letters, x_unit or "steps")
    chart(drawing, f"compare-loss-{x_unit}", f"Training loss of each run against {x_unit}")


def _study(comparison: Comparison, letters: dict[str, str]) -> None:
    """Where all are of one study: where they stand among its trials."""
    names = {side.study for side in comparison.runs}
    name = next(iter(names))
    if len(names) != 1 or name is None or not (home() / STUDIES / name).is_dir():
        return
    snapshot = study(name)
    st.header("Among all trials of their study", anchor=False)
    trials, aim = snapshot.result.trials, snapshot.result.aim
    chart(
        figures.parallel(trials, aim, letters, name),
        "compare-parallel",
        "Each trial as a line across its knobs",
    )
    chart(figures.slices(trials, aim, letters, name), "compare-slices", "Each trial by each knob")


if __name__ == "__main__":
    page()
