"""What the rules of a run's verdicts must know of its configuration. No torch."""

from __future__ import annotations

from engine.config import RunConfig
from engine.layout import Layout, accumulation, layout_of
from engine.schedules.actions import Costs
from engine.schedules.closed_forms import busy_seconds, idle_seconds
from engine.schedules.named import KINDS, plan
from engine.schedules.timing import simulate
from profilers.model.verdict import Pipeline, Setting, Thresholds

#: What records call the groups of a layout.
_GROUPS = {
    **{"dp": "data", "dp_cp": "data", "dp_shard": "shard", "dp_replicate": "replicate"},
    **{name: name for name in ("outer", "edp", "ep", "cp", "tp", "pp", "model")},
}


def setting_of(config: RunConfig) -> Setting:
    """Groups, schedule, limits and thresholds of a configuration, which need not keep the rules."""
    where, limit = layout_of(config), config.memory.limit_gib
    return Setting(
        groups=_groups(where),
        pipeline=_pipeline(config),
        memory_limit_bytes=None if limit is None else limit * 2**30,
        thresholds=Thresholds(**config.profile.thresholds.model_dump()),
    )


def _groups(where: Layout) -> dict[str, list[list[int]]]:
    return {label: where.groups(kind) for label, kind in _GROUPS.items()}


def _pipeline(config: RunConfig) -> Pipeline | None:
    ranks, kind, chunks = config.parallel.pp, config.schedule.kind, config.schedule.chunks
    micro_batches = accumulation(config)
    if ranks == 1 or micro_batches < 1 or KINDS[kind].chunks_problem(chunks):
        return None

    def idle(micro_batches: int, forward: float, backward: float) -> float:
        return _idle_seconds(kind, ranks, chunks, micro_batches, forward, backward)

    return Pipeline(kind, chunks, micro_batches, config.batch.micro_batch, idle, _formula(kind))


def _formula(kind: str) -> str:
    return "the simulation of its list" if kind == "zb_v" else "its closed form"


def _idle_seconds(
    kind: str, ranks: int, chunks: int, micro_batches: int, forward: float, backward: float
) -> float:
    """By closed form where one holds for any costs, else by simulation; a split backward has equal halves."""
    half = backward / 2
    costs = Costs(forward, backward, half, half)
    try:
        return idle_seconds(kind, ranks, chunks, micro_batches, costs)
    except ValueError:
        whole = simulate(plan(kind, ranks, chunks, micro_batches), costs).seconds
        return whole - busy_seconds(kind, chunks, micro_batches, costs)
