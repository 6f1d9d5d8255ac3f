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
    offered = [row.id for row in rows if row.purpose != "confirm"]  # a window is compared by a link to it
    chosen = _choose_runs(offered, {row.id: _label(row.id, row.study, row.trial) for row in rows})
    if len(chosen) < FEWEST:
        st.info("Choose at least two runs.", icon=":material/compare_arrows:")
        return
    draw_guarded(lambda: _draw(chosen))


def _label(run: str, study: str | None, trial: str | None) -> str:
    return run if study is None else f"{study} trial {trial} · {run}"


def _choose_runs(ids: list[str], labels: dict[str, str]) -> list[str]:
    """From the address once, afterwards from the chooser; what is gone is said, not dropped in silence."""
    linked = st.query_params.get(IDS, "")
    if linked != st.session_state.get("compare-linked"):
        found, gone = _resolve_runs([part for part in linked.split(",") if part][:MOST])
        st.session_state["compare-ids"], st.session_state["compare-gone"] = found, gone
        st.session_state["compare-linked"] = linked
    _leave_out_deleted()
    known = dict.fromkeys([*st.session_state.get("compare-ids", []), *ids[:MOST_OPTIONS]])
    chosen = st.multiselect(
        "Runs, the first one is the measure",
        list(known),
        key="compare-ids",
        max_selections=MOST,
        # Who types fast and presses Enter gets what they typed, not all that is offered.
        select_all=False,
        filter_mode="contains",
        format_func=lambda run: labels.get(run, run),
    )
    for line in st.session_state.get("compare-gone", []):
        st.warning(words.escape(line), icon=":material/link_off:")
    st.session_state["compare-linked"] = st.query_params[IDS] = ",".join(chosen)
    return list(chosen)


def _leave_out_deleted() -> None:
    """Of the chosen ones, those whose folder went away meanwhile: they are said to be gone."""
    chosen = st.session_state.get("compare-ids", [])
    deleted = [run for run in chosen if not (home() / run).is_dir()]
    if deleted:
        st.session_state["compare-ids"] = [run for run in chosen if run not in deleted]
        lines = [f"{run} is not in this home any more: it was deleted" for run in deleted]
        st.session_state["compare-gone"] = [*st.session_state.get("compare-gone", []), *lines]


def _resolve_runs(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The runs that a link names, and a line for each that is not there."""
    found: list[str] = []
    gone: list[str] = []
    for text in texts:
        try:
            found.append(compare.run_of(home(), text).id)
        except WorkbenchError as error:
            gone.append(str(error))
    return list(dict.fromkeys(found)), gone


@st.cache_data(ttl=_FRESH_SECONDS, show_spinner="Comparing", max_entries=16)
def _compare_runs(home_folder: str, ids: tuple[str, ...]) -> Comparison:
    del home_folder
    views = [runs.add_numbers_so_far(runs.load(home() / run)) for run in ids]
    return compare.compare(home(), views)


def _draw(chosen: Sequence[str]) -> None:
    compared = _compare_runs(str(home()), tuple(chosen))
    letters = compare_text.names(compared)
    table(compare_text.overview(compared), "compare-overview", _OVERVIEW)
    for note in compared.notes:
        st.caption(f":material/info: {words.escape(note[:1].upper() + note[1:])}.")
    st.header("Is it real?", anchor=False)
    for pair in compared.pairs:
        icon = {"better": "trending_up", "worse": "trending_down", "equal": "equal"}.get(pair.verdict, "help")
        st.markdown(f":material/{icon}: {words.escape(compare_text.pair(pair, letters))}")
    st.header("What differs in the configuration", anchor=False)
    if compared.differences:
        table(compare_text.differences(compared), "compare-differences")
    same = f"{compared.same_keys:,} keys are the same in all of them."
    st.caption(same if compared.differences else f"Nothing: all {compared.same_keys:,} keys are the same.")
    _steps(compared, list(letters.values()))
    _losses(compared, letters)
    _study(compared, letters)


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


def _steps(compared: Comparison, letters: list[str]) -> None:
    st.header("A step", anchor=False)
    widest = compare_text.widest(compared.phases)
    if widest is not None:
        st.caption(f"They are furthest apart in: {compare_text.part(widest.name)}.")
    chart(figures.phases(compared.phases, letters), "compare-phases", "Parts of the mean step of each run")
    number_table(compare_text.phase_columns(compared), "compare-phase-table")
    drawing = figures.collectives(compared.collectives, letters)
    chart(drawing, "compare-collectives", "Exposed time and bytes of each collective in each run")
    if compared.collectives:
        columns = compare_text.collective_columns(compared.collectives, letters)
        number_table(columns, "compare-collective-table")


def _losses(compared: Comparison, letters: dict[str, str]) -> None:
    st.header("Loss", anchor=False)
    against = st.segmented_control(
        "Against", figures.AGAINST, default="steps", required=True, key="compare-against"
    )
    drawing = figures.losses(compared.losses, letters, against or "steps")
    chart(drawing, f"compare-loss-{against}", f"Training loss of each run against {against}")


def _study(compared: Comparison, letters: dict[str, str]) -> None:
    """Where all are of one study: where they stand among its trials."""
    names = {side.study for side in compared.runs}
    name = next(iter(names))
    if len(names) != 1 or name is None or not (home() / STUDIES / name).is_dir():
        return
    found = study(name)
    st.header("Among all trials of their study", anchor=False)
    trials, aim = found.result.trials, found.result.aim
    chart(
        figures.parallel(trials, aim, letters, name),
        "compare-parallel",
        "Each trial as a line across its knobs",
    )
    chart(figures.slices(trials, aim, letters, name), "compare-slices", "Each trial by each knob")


if __name__ == "__main__":
    page()
