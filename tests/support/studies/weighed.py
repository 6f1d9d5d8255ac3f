"""A made-up machine whose ranks need memory, and GPUs that use energy, as far as a test wants them to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from engine.config.run_config import RunConfig
from engine.run.outcome import RunOutcome
from profilers.model.run_summary import MemoryRow, RunSummary
from tests.support.studies.fake import Machine, study
from tuning.spec.study_file import StudyFile

GIB = 2**30
SPACE = {"parallel.pp": [1, 2, 4], "batch.micro_batch": [1, 2, 4], "memory.recompute": ["none", "full"]}


def peak_bytes(config: RunConfig) -> int:
    """Recomputation halves it, stages of a pipeline share it."""
    kept = 0.5 if config.memory.recompute == "full" else 1.0
    return int(GIB * config.batch.micro_batch * kept / config.parallel.pp)


@dataclass
class Weighed(Machine):
    """As the other machine; ``joules`` is what a token takes, None where nobody measures it."""

    joules: float | None = None

    def _summary(self, run: str, config: RunConfig, outcome: RunOutcome, number: int) -> RunSummary:
        summary = super()._summary(run, config, outcome, number)
        if not outcome.good:
            return summary
        peak = peak_bytes(config)
        return replace(
            summary,
            peak_memory_bytes=peak,
            memory=[MemoryRow(rank, "resident set", peak, "forward", 3) for rank in range(4)],
            joules_per_step=None if self.joules is None else self.joules * summary.tokens_per_step,
            joules_reason=None if self.joules is not None else "no rank computes on a GPU",
        )


def asked(limit_gib: float | None = None, **more: Any) -> StudyFile:
    """A study of four ranks in which speed and memory disagree."""
    base = {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": 24, "warmup": 4}}
    limit = {"memory": {"limit_gib": limit_gib}} if limit_gib else {}
    return study(**({"base": base | limit, "space": SPACE, "trials": 9} | more))
