"""A made-up machine for benchmarks of the tuner: ``execute`` without ranks, from a cheap pure cost of a point."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.config.run_config import RunConfig
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.offline import OfflineExecutor, build_summary
from tuning.execution.executor import Ran

_STEPS = 20
_NOISE = 0.01


def step_seconds(values: dict[str, Any]) -> float:
    """Seconds of a step by a formula with the shape of real ones: compute shrinks with parallelism and with larger
    micro-batches, each kind of parallelism costs communication, pipelines wait, recomputation computes twice.
    """
    dp, tp, pp = (values[f"parallel.{axis}"] for axis in ("dp", "tp", "pp"))
    micro = values["batch.micro_batch"]
    micro_batches = values["batch.global_batch"] / (dp * micro)
    compute = (1 + 0.35 / micro) * {"none": 1.0, "selective": 1.1, "full": 1.3}[values["memory.recompute"]]
    bubble = (pp - 1) / (micro_batches + pp - 1)
    bucket = values["overlap.bucket_mb"]
    exposed = 0.3 * (1 - 1 / dp) / pp * (1 + 0.15 * abs(math.log2(bucket / 8)))
    exposed *= {0: 1.0, 1: 0.95, 2: 1.0, 3: 1.4}[values["parallel.zero_stage"]]
    return compute * (1 + 0.12 * math.log2(tp) ** 1.5) / (1 - bubble) + exposed


class MadeUp(OfflineExecutor):
    """Executes at once; one configuration in ``fails_one_in`` runs out of memory, always the same ones."""

    def __init__(self, fails_one_in: int = 0) -> None:
        super().__init__("run")
        self._random = np.random.default_rng(0)
        self._fails_one_in = fails_one_in

    def play(self, config: RunConfig, run: str) -> Ran:
        """One of the made-up steps."""
        base = step_seconds(config.flat())
        fails = self._fails_one_in and round(base * 1e6) % self._fails_one_in == 0
        outcome = RunOutcome(Ending.OOM, "out of memory", 0) if fails else RunOutcome(Ending.COMPLETED)
        samples = (base * (1 + _NOISE * self._random.standard_normal(_STEPS))).tolist()
        loss = {"validation_loss": 2.4} if outcome.good else {}
        known = {"backend": "made up", "losses": [2.5] * config.train.steps}
        return outcome, build_summary(run, config, samples if outcome.good else [], **known, **loss)
