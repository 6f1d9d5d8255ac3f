"""The exact sequence of collectives and messages that a rank issues in a step, by formula. Pure.

Axis, operation, payload and order are those that the engine records of a measured step (``CommSample``). Known are dp
with its buckets, ZeRO 1, 2 and 3, hybrid sharding, tp with its chunks and second gathers, cp as a ring or Ulysses,
every pipeline schedule, recomputation, prefetched layers, delayed gradients, and their combinations. Of ep the order is
known, too; without a capacity the tokens decide how many rows come to a rank's experts: those calls have no bytes.
"""

from __future__ import annotations

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from tuning.predict.traffic.calls import Call, Join, NotKnown, Section, Traffic
from tuning.predict.traffic.rank import Pipeline, RankStep

__all__ = [
    "Call",
    "Join",
    "NotKnown",
    "Pipeline",
    "Section",
    "Traffic",
    "traffic",
    "traffic_of",
    "why_not_known",
]


def traffic(config: RunConfig, rank: int = 0, backend: str = "gloo") -> Traffic | NotKnown:
    """What ``rank`` sends in a step of a configuration that keeps every rule.

    ``backend`` decides the order of a ring's two messages: on NCCL they are one batch.
    """
    reason = why_not_known(config)
    return NotKnown(reason) if reason is not None else traffic_of(Pipeline.of(config), rank, backend)


def traffic_of(pipeline: Pipeline, rank: int, backend: str = "gloo") -> Traffic:
    """The same for many ranks of one configuration, of which nothing is unknown."""
    return Traffic(rank, tuple(RankStep(pipeline, rank, backend == "nccl").sections()))


def why_not_known(config: RunConfig) -> str | None:
    """What of a configuration has no formula; None if all has one."""
    compression, parallel = config.compression, config.parallel
    sharded = parallel.zero_stage >= 2 and layout_of(config).inner > 1
    reasons = {
        "compile=true: the compiler decides what is sent when": config.compile,
        f"outer.method={config.outer.method}: what is sent differs from step to step": (
            config.outer.method != "none"
        ),
        f"compression.method={compression.method}: messages depend on how parts are dealt": (
            compression.method != "none" and layout_of(config).inner > 1
        ),
        f"compression.weights={compression.weights}: slices carry scales of their own": (
            compression.weights != "none" and sharded
        ),
        "parallel.ep with zero_stage 2 or 3: experts gather by themselves, once more when they are recomputed": (
            parallel.ep > 1 and sharded
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
