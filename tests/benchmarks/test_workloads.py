"""The benchmark of workloads: its runs are legal, and its lines say what was kept, whichever way it falls."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import _workloads as workloads
from engine.config.validation.rules import check


def kept(completion: float) -> dict[str, Any]:
    """As if the largest minibatch had gained so much by route completion, and nothing by the shaped reward."""
    names = [name for system in workloads.SYSTEMS for name in workloads.runs_of(system)]
    found: dict[str, Any] = {name: {"metric": 0.5, "bytes": 8.0, "loss": 1.0} for name in names}
    for name in names:
        if name.startswith("saddle"):
            good = "masha" in name or "plain" in name
            found[name] |= {"steps": [5, 10] if good else [None, None], "least": 1e-13 if good else 0.5}
            found[name] |= {"last": 1e-13, "line": -0.999}
        if "completion, 1024" in name:
            found[name] = {"metric": 0.5 + completion + 0.001 * int(name[-1])}
    return found | {
        "saved": {"folded": 10, "branches": 40},
        "seconds": {"folded": [1.0, 1.1], "branches": [2.0, 2.1]},
        "loss": {"folded": 2.0, "branches": 2.0 + 1e-7},
    }


def test_every_run_is_legal() -> None:
    for system in workloads.SYSTEMS:
        for config, _ in workloads.runs_of(system).values():
            check(config)


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.2, "as in the paper"), (-0.2, "the other way"), (0.0, "chance")]
)
def test_the_interaction_is_told_whichever_way_it_falls(gain: float, verdict: str) -> None:
    lines = {name: line(kept(gain)) for name, line in workloads.LINES.items()}
    assert verdict in lines["carl"][-1]
    assert "10 of 10" in lines["masha"][1] and "does not keep" not in lines["masha"][-1]
    assert lines["orepa"][-1] == "pays"
    assert [len(workloads.rows(system, kept(gain))) for system in workloads.SYSTEMS] == [10, 6, 5, 6]
