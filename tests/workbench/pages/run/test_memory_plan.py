"""The plan of activations on a run's page: its words, and what each action costs."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from profilers.model.rows import MemoryPlanRow
from workbench.text import step


def page() -> None:
    from profilers.model.rows import MemoryPlanRow
    from workbench.pages.run import host

    cost = {"resident": 1e6, "forward_seconds": 0.01, "backward_seconds": 0.02}
    actions = ["keep", "full", "full"]
    costs = {"keep": cost, "full": cost, "disk": cost}
    host.draw_memory_plans(
        [MemoryPlanRow(1, 3, actions, 10 << 20, 9 << 20, 1 << 20, 0.2, "full", 0.25, costs)]
    )


def test_it_says_what_each_block_does_and_what_that_is_worth() -> None:
    found = AppTest.from_function(page).run()
    assert not found.exception
    (told,) = [caption.value for caption in found.caption]
    assert r"Stage 1 holds at most 9.0 MiB of activations of 10.0 MiB\: keep 3, full 4-5" in told
    assert "full for all blocks would take 25.0 % longer" in told
    table = found.dataframe[0].value
    assert list(table["action"]) == ["keep", "full", "disk"]
    assert list(table["blocks"]) == [1, 2, 0]
    assert list(table["stays, MB"]) == [1.0, 1.0, 1.0]


def test_a_plan_that_treats_all_blocks_alike_is_not_set_beside_itself() -> None:
    alike = MemoryPlanRow(0, 0, ["keep", "keep"], 10 << 20, 9 << 20, 1 << 20, 0.2, "keep", 0.2, {})
    assert step.memory_plan(alike).endswith("a micro-batch as planned, as all blocks alike")


def test_without_a_budget_there_is_nothing_to_see() -> None:
    def empty() -> None:
        from workbench.pages.run import host

        host.draw_memory_plans([])

    found = AppTest.from_function(empty).run()
    assert not found.exception
    assert not found.markdown


def test_where_nothing_uniform_fits_it_says_so() -> None:
    row = MemoryPlanRow(0, 0, ["disk"], 10, 9, 8, 0.2)
    assert step.memory_plan(row).endswith("no way to treat all blocks alike fits")
