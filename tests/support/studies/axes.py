"""Spaces over every axis, and what a configuration makes ranks do, told without the tuner's own rules."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from typing import Any

from engine.config.compression import usual_value
from engine.config.formulas.task_ranks import deal
from engine.config.layout import accumulation, layout_of
from engine.config.run_config import RunConfig
from engine.config.validation.rules import problems
from engine.schedules.registry import SCHEDULES, plan
from tuning.space.space import Space
from tuning.spec.study_file import StudyFile, parse

LAYOUTS: dict[str, Any] = {
    "parallel.tp": [1, 2, 4],
    "parallel.pp": [1, 2, 4],
    "parallel.cp": [1, 2, 4],
    "parallel.cp_method": ["ring", "ulysses"],
    "parallel.zero_stage": [0, 1, 2, 3],
    "parallel.shard_ranks": [None, 2, 4],
}
PIPELINES: dict[str, Any] = {
    "schedule.kind": ["1f1b", "gpipe", "interleaved", "layered", "breadth_first"],
    "schedule.chunks": [1, 2],
    "batch.micro_batch": [1, 2, 4],
}
LOSSY: dict[str, Any] = {
    "compression.method": ["none", "topk"],
    "compression.ratio": [0.01, 0.1],
    "overlap.bucket_mb": [1.0, 25.0],
}
BASE: dict[str, Any] = {"data": {"sequence_length": 64}, "batch": {"global_batch": 8, "micro_batch": 1}}
MIXTURE: dict[str, Any] = BASE | {"model": {"experts": 4, "kv_heads": 4}}


def on_four(name: str, base: dict[str, Any], space: dict[str, Any]) -> StudyFile:
    """A study of four ranks."""
    return parse({"name": name, "ranks": 4, "base": base, "space": space})


DENSE = on_four("dense", BASE, LAYOUTS | PIPELINES).search_space
EXPERTS = on_four("experts", MIXTURE, LAYOUTS | {"parallel.ep": [1, 2, 4]}).search_space
LOSSY_CONTEXT = on_four(
    "lossy", BASE, {"parallel.cp": [1, 2], "parallel.zero_stage": [0, 2]} | LOSSY
).search_space
MESSAGES = on_four("messages", BASE, {
    "parallel.tp": [1, 2], "parallel.tp_regather": [False, True], "parallel.zero_stage": [0, 2],
    "parallel.reduce_every_micro_batch": [False, True], "batch.micro_batch": [1, 2]}).search_space  # fmt: skip
NO_EXPERTS = on_four("plain", BASE, {"parallel.ep": [1, 2], "parallel.tp": [1, 2, 4]}).search_space
#: Degrees that are no powers of two, on six ranks.
THIRDS = parse({"name": "thirds", "ranks": 6, "base": {
    "model": {"hidden": 192, "heads": 6, "kv_heads": 6, "layers": 6, "vocabulary": 258, "ffn_hidden": 384},
    "data": {"sequence_length": 96}, "batch": {"global_batch": 12, "micro_batch": 1}},
    "space": {"parallel.tp": {"low": 1, "high": 3}, "parallel.cp": [1, 2, 3], "parallel.cp_method": ["ring", "ulysses"],
              "parallel.shard_ranks": {"low": 2, "high": 6}, "parallel.zero_stage": [0, 3]}}).search_space  # fmt: skip


def combined(space: Space) -> Iterator[RunConfig]:
    """Every combination of the space's values that the engine takes, whether it is a run of its own or not."""
    keys = [knob.key for knob in space.knobs]
    for values in itertools.product(*(knob.grid() for knob in space.knobs)):
        wanted = space.base.with_values(dict(zip(keys, values, strict=True)))
        parallel = wanted.parallel
        dp, rest = divmod(space.ranks, parallel.tp * parallel.pp * parallel.cp)
        if rest == 0:
            config = wanted.model_copy(update={"parallel": parallel.model_copy(update={"dp": dp})})
            if next(problems(config), None) is None:
                yield config


def what_runs(config: RunConfig) -> Hashable:
    """Everything in which two runs of a study can differ: groups of ranks, lists of actions, what is sent and kept."""
    layout, parallel = layout_of(config), config.parallel
    groups = [
        tuple(map(tuple, layout.groups(name)))
        for name in ("dp", "tp", "pp", "cp", "ep", "ep_island", "shard")
    ]
    stage, method = (
        parallel.zero_stage if layout.data > 1 else 0,
        parallel.cp_method if layout.cp > 1 else None,
    )
    reduces_often = parallel.reduce_every_micro_batch and accumulation(config) > 1
    again = (parallel.tp > 1 and parallel.tp_regather, stage >= 2 and reduces_often)
    whole = frozenset(parallel.tp_replicated or ()) if parallel.tp > 1 else None
    columns = layout.columns and layout.data > 1
    shared = parallel.sequence_groups if layout.dp > 1 else 1
    dealt = tuple(deal(config)) if config.data.tasks else None
    more = (whole, columns, shared, dealt)
    return *groups, stage, method, *again, *more, _work(config, stage), _sent(config, stage)


def _work(config: RunConfig, stage: int) -> Hashable:
    schedule, micro_batches = config.schedule, accumulation(config)
    drawn = plan(schedule.kind, config.parallel.pp, schedule.chunks, micro_batches)
    stays_gathered = stage == 3 and micro_batches > 1 and SCHEDULES[schedule.kind].chunk_by_chunk
    return (
        drawn.actions,
        tuple(drawn.rank_of),
        config.batch.micro_batch,
        stays_gathered,
        config.memory.recompute,
        config.train.slice_keep,
        (config.train.adapt, config.train.adapt_rank if config.train.adapt != "none" else None),
        config.memory.sample_tokens if config.memory.recompute != "full" else 1.0,
    )


def _sent(config: RunConfig, stage: int) -> Hashable:
    compression, averages = config.compression, layout_of(config).data > 1 and stage < 2
    value = usual_value(compression)
    return (config.overlap.bucket_mb, compression.method, value) if averages else None
