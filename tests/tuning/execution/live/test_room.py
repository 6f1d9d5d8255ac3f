"""A turn that is predicted not to fit into memory is left out before it costs the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.footprint.footprint import largest
from engine.run.outcome import Ending
from profilers.model.run_summary import MemoryRow, RunSummary
from tests.support.runs import small
from tests.support.studies.offline import build_summary
from tests.tuning.execution.live.test_live_study import Live, live_study
from tuning.execution.live import limits
from tuning.execution.live.limits import memory_shortage

MIB = 2**20


def held(config: RunConfig, mib: int) -> RunSummary:
    summary = build_summary("one", config, [0.1])
    return RunSummary.from_dict(
        summary.as_dict() | {"memory": [vars_of(MemoryRow(0, "resident set", mib * MIB, None, 3))]}
    )


def vars_of(row: MemoryRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


@pytest.mark.parametrize(
    ("values", "grows"),
    [
        ({"batch.micro_batch": 8}, True),
        ({"memory.recompute": "none"}, True),
        ({"batch.micro_batch": 1}, False),
    ],
)
def test_what_a_turn_adds_by_formula_has_to_be_free_as_measured(values: dict[str, Any], grows: bool) -> None:
    now = small(batch__global_batch=8, batch__micro_batch=2, memory__recompute="full", memory__limit_gib=1.0)
    wanted = now.with_values(values)
    more = (largest(wanted).total_bytes - largest(now).total_bytes) / MIB
    assert (more > 0) is grows
    assert memory_shortage(now, held(now, int(1024 - more) - 2), wanted) == ""
    full = memory_shortage(now, held(now, 1024), wanted)
    assert ("predicted not to fit" in full and f"{more:,.0f} MiB more" in full) is grows
    assert memory_shortage(now, held(now, 4096), now) == "", "what runs fits"
    unlimited = now.with_values({"memory.limit_gib": None})
    assert memory_shortage(unlimited, held(unlimited, 1024), unlimited.with_values(values)) == "", (
        "nothing is known"
    )


@pytest.mark.timeout(120)
def test_a_window_that_would_not_fit_is_no_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live(tmp_path / "home", live_study(live={"steps": 100_000, "max_slowdown": 100.0}))
    live.folder.mkdir(parents=True)

    def window(**values: Any) -> tuple[Ending, str]:
        config = live.file.config.with_values({"parallel.dp": 2} | values)
        outcome = live.windows(config, {"study": "live", "trial": "0"}, lambda: False)[0]
        return outcome.ending, outcome.reason

    try:
        assert window()[0] is Ending.COMPLETED
        monkeypatch.setattr(limits, "free_bytes", lambda summary, limit: 1000.0)
        ending, reason = window(**{"batch.micro_batch": 4})
        assert ending is Ending.ILLEGAL and reason.startswith("predicted not to fit")
        run = live.starter.current
        assert run is not None and run.config.batch.micro_batch == 1 and run.outcome() is None
    finally:
        live.starter.stop()
