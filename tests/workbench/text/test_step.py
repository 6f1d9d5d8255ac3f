"""Where the time of a step goes, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from profilers.model.rows import ClockRow, LateStep, PipelineRow, SkewRow
from profilers.model.run_summary import RunSummary
from workbench.text import run, step, words


def summary(**values: Any) -> RunSummary:
    return RunSummary("x", {"dp": 1}, 1, "gloo", 1, 1, **values)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "A single rank has no skew."),
        (
            {
                "slowest_rank": 2,
                "slowest_rank_share": 0.5,
                "slowest_rank_host": "node7",
                "rank_skew_seconds": 0.02,
            },
            "Rank 2 on node7 computes longest, 20.0 ms more than the least busy rank in a mean step; it is the busiest "
            "in 50 % of the steps.",
        ),
        (
            {
                "slowest_rank": 1,
                "slowest_rank_share": 0.55,
                "rank_skew_seconds": 0.2,
                "skew": SkewRow("rotating", 0.9, 0.0, 0.9, 0.0, ranks=[]),
            },
            "Rank 1 computes longest, 200.0 ms more than the least busy rank in a mean step; it is the busiest in 55 % "
            "of the steps, which is no more than chance explains.",
        ),
        (
            {
                "slowest_rank": 1,
                "slowest_rank_share": 0.95,
                "rank_skew_seconds": 0.2,
                "skew": SkewRow("fixed", 0.2, 0.2, 0.0, 0.0, ranks=[1], ranks_share=0.95),
            },
            "Rank 1 computes longest, 200.0 ms more than the least busy rank in a mean step; it is the busiest in 95 % "
            "of the steps.",
        ),
    ],
)
def test_the_straggler_in_words(found: dict[str, Any], text: str) -> None:
    assert step.straggler(summary(**found)) == text


def test_what_waits_for_communication_are_made_of() -> None:
    found = summary(phases={"forward": 0.8, "communication_exposed": 0.15}, between_seconds=0.05)
    assert run.waits(found, words.seconds) == "", "written by an older version"
    found = replace(found, late_rank_seconds=0.11)
    assert run.waits(found, words.seconds) == "40.0 ms for the calls, 110.0 ms for late ranks"
    assert run.waits(found, run.share_of_step(found)) == "4.0 % for the calls, 11.0 % for late ranks"
    assert run.waits(summary(late_rank_seconds=0.0), words.seconds) == "", "no step was measured"


def test_the_anatomy_in_words() -> None:
    row = PipelineRow(
        2, 8, 0.25, 0.041, 0.03, 0.01, 0.001, formula_fraction=0.2, formula_source="closed form"
    )
    clocks = [ClockRow(1, 2.0, 0.0005)]
    found = summary(pipeline=row, warmup_steps=4, warmup_steps_found=6, clocks=clocks)
    bubble, warmup, told = step.anatomy(found)
    assert bubble.startswith(
        "Bubble as the actions ran: 25.0 % of the pipeline's span; 20.0 % by closed form"
    )
    assert warmup == "Warm-up: 4 steps left out, 6 by their times."
    assert told == "Clocks: rank 1 is +2,000.000 ms from rank 0, the largest; known within 0.500 ms."
    assert list(step.anatomy(summary())) == []


def test_a_skew_says_its_kind_what_each_costs_and_who() -> None:
    row = SkewRow("fixed", 0.012, 0.009, 0.002, 0.001, [5, 4], 0.95, 2, [LateStep(1200, 7, 0.4)])
    assert step.skew(row) == (
        "The skew is fixed: the same ranks are behind, more often than by chance. The last rank is 12.0 ms behind the "
        "median of the others in the mean step: fixed 9.0 ms, rotating 2.0 ms, one-off 1.0 ms. Ranks 4, 5 are last in "
        "95 % of the steps. 2 steps stand out; worst: rank 7 in step 1,200, 400.0 ms behind."
    )
    other = SkewRow("rotating", 0.012, 0.0, 0.012, 0.0)
    assert step.skew(other).endswith("fixed 0.0 ms, rotating 12.0 ms, one-off 0.0 ms.")
    few = "no rank is behind more often than chance explains"
    assert few in step.skew(other), "of one step the same rank is last in all"
    assert few not in step.skew(replace(other, ranks=[2]))


def test_a_run_that_adapts_says_so_before_its_end() -> None:
    told = step.adapter_text({"adapt": "lora", "adapt_rank": 3, "resume": "20260101-000000-5e1f"})
    assert told == "LoRA of rank 3 learns beside a frozen model, from 20260101-000000-5e1f."
    assert step.adapter_text({"adapt": "none"}) == step.adapter_text({}) == ""
