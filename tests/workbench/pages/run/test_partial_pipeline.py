"""A run with partial pipelines on its page: the schedule with what is left out, and each micro-batch's path."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest


def page() -> None:
    from tests.support.runs import small
    from workbench.pages.run.settings import draw_schedule

    config = small(parallel__pp=4, schedule__skip_share=0.25)
    draw_schedule(config.model_dump(mode="json"))


def test_paths_stand_below_the_schedule() -> None:
    found = AppTest.from_function(page).run()
    assert not found.exception
    (table,) = found.dataframe
    assert list(table.value["micro-batch"]) == list(range(8))
    assert sorted(set(table.value["path"])) == ["leaves out 1", "leaves out 2"]
