"""Verdicts from phases."""

import pytest

from profilers.diagnosis import Thresholds, diagnose
from profilers.records import PHASES


def phases(**shares: float) -> dict[str, float]:
    """A step of two seconds; the rest is forward."""
    found = {name: 2 * shares.get(name, 0.0) for name in PHASES}
    found["forward"] += 2.0 - sum(found.values())
    return found


@pytest.mark.parametrize(
    ("share", "limit", "name", "knob"),
    [
        ("communication_exposed", 0.20, "communication_exposed", "compression.method"),
        ("bubble", 0.15, "pipeline_bubble", "schedule.kind"),
        ("data", 0.10, "data_loading", "data.path"),
        ("other", 0.20, "host_gaps", "batch.micro_batch"),
    ],
)
def test_each_share_has_its_threshold(share: str, limit: float, name: str, knob: str) -> None:
    assert [verdict.name for verdict in diagnose(phases(**{share: limit - 0.01}))] == ["compute_bound"]
    (verdict,) = diagnose(phases(**{share: limit + 0.01}))
    assert (verdict.name, verdict.threshold) == (name, limit)
    assert knob in verdict.knob
    assert verdict.evidence.startswith(f"{limit + 0.01:.0%} of the step")


def test_rank_skew_is_measured_against_the_step() -> None:
    assert [verdict.name for verdict in diagnose(phases(), 0.19)] == ["compute_bound"]
    assert [verdict.name for verdict in diagnose(phases(), 0.21)] == ["rank_skew"]


def test_the_worst_excess_comes_first() -> None:
    found = diagnose(phases(communication_exposed=0.25, bubble=0.45, data=0.2), 0.3)
    assert [verdict.name for verdict in found] == [
        "pipeline_bubble",
        "data_loading",
        "rank_skew",
        "communication_exposed",
    ]


def test_thresholds_can_be_set() -> None:
    assert diagnose(phases(data=0.05), thresholds=Thresholds(data=0.01))[0].name == "data_loading"


def test_nothing_measured_gives_no_verdict() -> None:
    assert diagnose({}) == []
    assert diagnose(dict.fromkeys(PHASES, 0.0)) == []
