"""How much of its rate each link of a lab carries, for a run that has ended and for one under way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.run.run_folder import RunStatus
from profilers.model.rows import InterfaceRow
from profilers.model.run_summary import RunSummary
from workbench.figures.host import LATELY_SECONDS, TITLES, LinkUse, link_uses
from workbench.records.columns import Columns
from workbench.records.live_snapshot import Snapshot

LAB: dict[str, Any] = {"islands": [1, 1], "rates_mbit": [80.0, None], "between_mbit": 16.0}


def seen(
    summary: RunSummary | None = None, lab: dict[str, Any] | None = None, **interfaces: Columns
) -> Snapshot:
    """A look at a run of two ranks; ``rank0`` is what rank 0 read."""
    return Snapshot(
        id="run",
        status=RunStatus(world_size=2),
        config={"lab": LAB if lab is None else lab},
        summary=summary,
        ranks=[],
        steps={},
        communication=[],
        memory={},
        host={},
        gpu={},
        launcher_events=[],
        problems=[],
        interfaces={int(name.removeprefix("rank")): columns for name, columns in interfaces.items()},
    )


def told(rows: list[InterfaceRow]) -> RunSummary:
    """The summary of a run that has ended."""
    return RunSummary("run", {"dp": 2}, 2, "gloo", None, None, interfaces=rows)


def counted(**per_second: float) -> Columns:
    """Readings of interfaces for 20 seconds: nothing for the first 10, then so many bytes sent a second."""
    rows = [(float(t), name, speed * max(0, t - 10)) for t in range(21) for name, speed in per_second.items()]
    times, names, sent = zip(*rows, strict=True)
    return {
        "time_unix": np.array(times),
        "interface": np.array(names),
        "sent_bytes": np.array(sent),
        "received_bytes": np.array(sent) / 2,
    }


def test_the_last_seconds_of_a_run_under_way_count() -> None:
    assert LATELY_SECONDS == 10.0
    read = {"rank0": counted(data=5e6, lo=0.0, uplink=1e6), "rank1": counted(data=2e6)}
    assert link_uses(seen(**read)) == [
        LinkUse("data", "0", 5.0, 2.5, 80.0, 50.0, 25.0),
        LinkUse("uplink", "0", 1.0, 0.5, 16.0, 50.0, 25.0),
        LinkUse("data", "1", 2.0, 1.0, None, None, None),
    ]


def test_a_summary_is_taken_as_it_is() -> None:
    row = InterfaceRow(None, [0, 1], "uplink", sent_bytes_per_second=1e6, received_bytes_per_second=0.0)
    (use,) = link_uses(seen(told([replace(row, rate_mbit=20.0)])))
    assert use == LinkUse("uplink", "0, 1", 1.0, 0.0, 20.0, pytest.approx(40.0), 0.0)
    assert link_uses(seen(told([row])))[0].sent_percent is None  # of a run before rates were told
    assert set(TITLES.values()) == set(LinkUse._fields)


@pytest.mark.parametrize("lab", [{}, {"hosts": 3}, {"islands": 2}])
def test_without_a_lab_there_is_nothing(lab: dict[str, Any]) -> None:
    assert link_uses(seen(lab=lab, rank0=counted(data=1.0))) == []
