"""Real runs that train a part of a network: beside a frozen model, and within a budget of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config.run_config import RunConfig
from engine.session import Session
from tests.support.runs import execute, small

_MODEL: dict[str, Any] = {
    "model__layers": 2,
    "model__hidden": 48,
    "model__heads": 4,
    "model__kv_heads": 4,
    "model__ffn_hidden": 96,
    "data__sequence_length": 32,
    "parallel__dp": 2,
}


def write_special(home: Path) -> tuple[str, str]:
    """The ids of a run that adapted a checkpoint, and of one that trained what fits into 20 KiB."""
    with Session(home) as session:
        first = _ended(session, small(**_MODEL, checkpoint__every_steps=12, train__steps=12))
        side = {"train__adapt": "lora", "train__adapt_rank": 3, "train__learning_rate": 0.01}
        resumed = {"train__resume": str(home / first), "train__steps": 48}
        adapted = _ended(session, small(**_MODEL | side | resumed))
        options = {"width": 8, "layers": 3, "classes": 6, "start": 4, "probe": 1, "budget_kib": 20.0}
        sparse = small(
            model__workload="sparse_update",
            model__options=options,
            train__steps=24,
            train__optimizer="sgd",
            train__learning_rate=0.02,
            train__validation_batches=2,
            batch__global_batch=8,
            batch__micro_batch=4,
            parallel__dp=2,
        )
        return adapted, _ended(session, sparse)


def _ended(session: Session, config: RunConfig) -> str:
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    return summary.id
