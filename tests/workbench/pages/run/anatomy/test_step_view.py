"""Page Steps without a browser: running, ended, one rank, 64 ranks, links to places that are gone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.support.workbench.sent_figures import figures_of
from tests.support.workbench.skewed_run import write_skewed
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import charts, texts, visit
from workbench.text import words


def late_in_16(rank: int, step: int) -> float:
    return 0.08 * ((rank, step) == (2, 16))


def heat(app: AppTest) -> Any:
    return next(
        one["data"][0] for one in figures_of(app) if one["data"] and one["data"][0]["type"] == "heatmap"
    )


def table(app: AppTest, column: str) -> Any:
    return next(one.value for one in app.dataframe if column in one.value)


def test_a_link_leads_to_a_call_and_says_for_whom_it_waited(home: Path) -> None:
    run = write_skewed(home, late_in_16)
    app = visit("steps", run=run, step="16", rank="0", call="dp.all_reduce.0")
    assert not app.exception
    assert not app.warning
    said = texts(app)
    assert re.search(r"waited (79\.9|80\.0)\d\d ms for rank 2, the last to come", said)
    assert "Own work: the skew is one-off" in said
    assert {"Own work, by rank and step", "Step 16 by rank", "all_reduce · dp, call 0 of step 16"} <= set(
        charts(app)
    )
    ranks = table(app, "behind the others, ms")
    assert ranks["behind the others, ms"].idxmax() == 2
    assert table(app, "last rank")["last rank"].tolist() == [2]
    links = [link.label for link in app.get("page_link")]
    assert links[-5:] == ["all steps", "step 16", "rank 0", "dp.all_reduce.0", "See this call"]


def test_a_step_names_its_slowest_collective_and_leads_there(home: Path) -> None:
    run = write_skewed(home, late_in_16)
    app = visit("steps", run=run, step="16")
    assert re.search(
        r"slowest collective: all_reduce on dp, call 0\. Rank \d was in it for 8[34]\.\d", texts(app)
    )
    (link,) = [one.proto for one in app.get("page_link") if one.proto.label == "See this call"]
    assert re.fullmatch(rf"run={run}&step=16&rank=[013]&call=dp\.all_reduce\.0", link.query_string)


def test_the_heat_map_shows_another_metric_and_rows(home: Path) -> None:
    run = write_skewed(home, lambda rank, _: 0.03 * (rank == 5), ranks=8, steps=20, ranks_per_host=4)
    app = visit("steps", run=run)
    assert heat(app)["y"] == [f"rank {rank}" for rank in range(8)]
    assert heat(app)["z"][5][10] == pytest.approx(80, abs=1)
    app.selectbox(key="steps-metric").set_value("exposed communication").run()
    assert app.query_params["metric"] == "exposed communication"
    assert heat(app)["z"][5][10] == pytest.approx(4, abs=1)
    app.selectbox(key="steps-rows").set_value("by host").run()
    assert heat(app)["y"] == ["node-0", "node-1"]
    app.toggle(key="steps-relative").set_value(True).run()
    assert not app.exception
    assert "Exposed communication beside the median rank, by host and step" in charts(app)


def test_of_64_ranks_hosts_come_first_and_then_the_ranks_of_one(home: Path) -> None:
    run = write_skewed(home, lambda rank, _: 0.03 * (rank == 42), ranks=64, steps=12, ranks_per_host=8)
    app = visit("steps", run=run)
    assert not app.exception
    assert heat(app)["y"] == [f"node-{node}" for node in range(8)]
    assert heat(app)["customdata"][5][6] == [42, 6]
    assert "Own work: the skew is fixed" in texts(app)
    assert "Rank 42 is last in 100 % of the steps." in texts(app)
    linked = visit("steps", run=run, rows="node-5", step="6", rank="40", call="dp.all_reduce.0")
    assert heat(linked)["y"] == [f"rank {rank}" for rank in range(40, 48)]
    assert "for rank 42, the last to come" in texts(linked)
    assert len(table(linked, "behind the others, ms")) == 64
    assert not linked.exception


def test_a_single_rank_has_no_skew_and_sends_nothing(home: Path) -> None:
    run = write_skewed(home, lambda rank, step: 0.0, ranks=1, steps=6)
    app = visit("steps", run=run, step="3", rank="0")
    assert not app.exception
    assert "A single rank has no skew." in texts(app)
    assert "A single rank sends nothing." in texts(app)


def test_a_run_that_goes_on_is_shown_as_far_as_it_came(home: Path) -> None:
    running = full_home(home)
    app = visit("steps", run=running)
    assert not app.exception
    assert max(heat(app)["x"]) == 69
    assert "steps-update" in [button.key for button in app.button]


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({"step": "99"}, "Step 99: not recorded; there are steps 0 to 39."),
        ({"step": "x"}, "Step x in the link is no number."),
        ({"step": "16", "rank": "7"}, "Rank 7: no such rank recorded step 16; those that did: 0 to 3."),
        ({"step": "16", "rank": "0", "call": "tp.all_reduce.0"}, "up to dp.all_reduce.0."),
        ({"metric": "happiness"}, "Metric happiness in the link is not known here."),
    ],
)
def test_what_is_gone_says_so(home: Path, places: dict[str, str], said: str) -> None:
    run = write_skewed(home, late_in_16)
    app = visit("steps", run=run, **places)
    assert not app.exception
    assert words.escape(said) in "\n".join(one.value for one in app.warning)


def test_a_run_that_is_gone_says_so_and_another_is_shown(home: Path) -> None:
    run = write_skewed(home, late_in_16)
    app = visit("steps", run="20200101-000000-dead")
    assert "20200101-000000-dead is not in this home" in texts(app)
    assert app.selectbox(key="run").value == run


def test_typing_a_step_changes_the_address(home: Path) -> None:
    run = write_skewed(home, late_in_16)
    app = visit("steps", run=run, step="3", rank="1")
    app.number_input[0].set_value(16).run()
    assert app.query_params["step"] == "16"
    assert "rank" not in app.query_params
    assert "Step 16" in [part.value for part in app.header]


def test_steps_that_kept_no_spans_name_the_nearest_that_did(home: Path) -> None:
    run = write_skewed(home, late_in_16)
    app = visit("steps", run=run, step="18")
    assert "were not kept as spans; the nearest that were: 8, 16, 24." in texts(app)
