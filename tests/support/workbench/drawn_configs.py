"""Legal configurations drawn at random over every setting that an export could carry."""

from __future__ import annotations

import random
from typing import Any

from engine.config.knobs.catalogue import acts, deciding_knobs, default_of
from engine.config.layout import layout_of
from engine.config.run_config import AUTOMATIC, RunConfig, flatten, parse
from engine.config.validation import rules
from tuning.space.knobs import Knob, offered_space, other_values

_MODELS = ("tiny", "mini", "350m", "1b", "7b")
#: How often a draw turns a knob that can act there.
_TURNED = 0.2
#: What the tree below has of each draw already: sizes, which have to fit together.
_SIZES = ("parallel.tp", "parallel.pp", "parallel.cp", "batch.micro_batch", "batch.global_batch")


def _tree(pick: random.Random) -> dict[str, Any]:
    """Sizes, and settings of which no entry suggests values."""
    choose = pick.choice
    dp, tp, pp, cp = choose([1, 2, 2, 4, 8]), choose([1, 1, 2, 4]), choose([1, 1, 2, 4]), choose([1, 1, 1, 2])
    micro, accumulation = choose([1, 2, 4]), choose([1, 2, 4, 8])
    experts = choose([None, None, None, 4, 8])
    return {
        "model": {"preset": choose(_MODELS), "experts": experts, "experts_per_token": choose([1, 2]),
                  "capacity_factor": choose([None, 1.5]) if experts else None, "balance_weight": choose([0.01, 0.02])},
        "data": {"sequence_length": choose([128, 512, 2048]), "documents": choose(["joined"] * 5 + ["whole"])},
        "parallel": {"dp": dp, "tp": tp, "pp": pp, "cp": cp,
                     "ep_island": choose([None] * 7 + [2]) if experts else None,
                     "tp_replicated": choose([None, None, ["gate_up"], ["embedding", "head"]]) if tp > 1 else None},
        "batch": {"micro_batch": micro, "global_batch": dp * micro * accumulation},
        "precision": choose(["fp32", "bf16"]),
        "compile": choose([False, False, True]),
        "device": choose(["auto", "cpu", "cuda"]),
        "train": {"steps": choose([24, 100, 2000]), "seed": choose([0, 1, 1234]),
                  "learning_rate_floor": choose([0.0, 0.0, 0.1, 0.25, 1.0]),
                  "beta1": choose([0.9, 0.85]), "beta2": choose([0.999, 0.95]), "epsilon": choose([1e-8, 1e-6]),
                  "momentum": choose([0.9, 0.9, 0.0]), "clip_value": choose([None, None, None, 0.5]),
                  "weight_decay": choose([0.0, 0.1, 0.01]), "clip_norm": choose([None, 1.0, 0.5]),
                  "validation_batches": choose([1, 4]), "validate_every": choose([None, 10])},
        "checkpoint": {"every_steps": choose([None, None, 20]), "keep": choose([1, 2]),
                       "asynchronous": choose([False, True])},
        "environment": choose([{}, {}, {"OMP_NUM_THREADS": 2}]),
    }  # fmt: skip


def _draw(pick: random.Random) -> RunConfig:
    """A tree, and knobs at values that their entries suggest for it, where they act; not always legal."""
    base = parse(_tree(pick))
    now, suggested = base.flat(), _suggested(base)
    turned = [key for key in suggested if pick.random() < _TURNED]
    now |= {key: pick.choice(suggested[key]) for key in turned}
    for key in (*deciding_knobs(), *turned):
        if not acts(key, now):
            now[key] = default_of(key)
    return base.with_values({key: now[key] for key in turned})


def _suggested(base: RunConfig) -> dict[str, list[Any]]:
    """By knob, what a form lists, but for sizes, and lists that a study works out."""
    ranks = layout_of(base).world_size
    others = other_values(base, ranks, in_time=True)
    return {
        key: [*(values if isinstance(values, list) else Knob(key, **values).grid()), *others.get(key, [])]
        for key, values in offered_space(base, ranks, in_time=True).items()
        if key not in _SIZES and key not in AUTOMATIC
    }


def legal(count: int, seed: int | str, **fixed: Any) -> list[RunConfig]:
    """So many of them; ``fixed`` dotted keys (``parallel__tp``) are the same in all."""
    pick, found = random.Random(seed), list[RunConfig]()
    held = {key.replace("__", "."): value for key, value in fixed.items()}
    while len(found) < count:
        config = _draw(pick).with_values(held)
        if next(rules.problems(config), None) is None:
            found.append(config)
    return found


_TWO_TASKS = [{"name": "a", "share": 3}, {"name": "b"}]
#: Settings that ``legal`` leaves as they are, turned: each with what else it needs to be legal, or to act.
TURNS: tuple[dict[str, Any], ...] = (
    {"memory.budget_gib": 0.5, "memory.recompute": "none", "memory.offload": "none"},
    {"memory.block_actions": ["keep", "full"], "model.layers": 2, "memory.recompute": "none", "memory.offload": "none"},
    {"memory.recompute_layers": 1, "memory.recompute": "full"},
    {"memory.recompute_layers": 1, "memory.recompute": "selective"},
    {"memory.limit_gib": 8.0},
    {"memory.expert_slots": 2, "memory.expert_home": "disk", "memory.expert_ahead": False, "model.experts": 4,
     "device": "cpu", "parallel.zero_stage": 0, "memory.parameters": "fp32", "memory.offload": "none"},
    {"model.tied_embeddings": True},
    {"model.layer_groups": 1},
    {"model.layers": 8, "model.hidden": 256, "model.heads": 8, "model.kv_heads": 4, "model.ffn_hidden": 512,
     "model.vocabulary": 512},
    {"model.experts": 4, "model.expert_ffn_hidden": 64},
    {"data.path": "text.txt", "data.held_out_fraction": 0.1},
    {"data.tasks": _TWO_TASKS},
    {"data.tasks": _TWO_TASKS, "parallel.dp": 2, "parallel.task_ranks": "even"},
    {"data.documents": "masked"},
    {"data.documents": "whole", "data.longest_document": 100},
    {"data.ahead": 2},
    {"parallel.dp": 2, "parallel.tp": 1, "parallel.pp": 1, "parallel.cp": 1, "parallel.placement": [1, 0],
     "parallel.world_size": 2},
    {"parallel.dp": 2, "batch.micro_batch": 1, "batch.global_batch": 8, "batch.ramp_from": 2, "batch.ramp_share": 0.5},
    {"parallel.pp": 2, "schedule.chunks": 1, "schedule.kind": "1f1b", "model.layers": 4,
     "schedule.stage_layers": [1, 3]},
    {"parallel.pp": 4, "schedule.kind": "interleaved", "schedule.skip_share": 0.25, "schedule.skip_order": "unplanned"},
    {"parallel.pp": 2, "schedule.registers": 4},
    {"compression.method": "topk", "compression.ratio": 0.1, "compression.start_step": 0,
     "compression.layers": {"*.norm*": "none"}},
    {"compression.method": "powersgd", "compression.rank": 2, "compression.error_feedback": False,
     "compression.plan": "l_greco", "compression.plan_every": 100, "compression.plan_budget": "error",
     "compression.plan_alpha": 2.0},
    {"compression.method": "int8", "compression.bucket_values": 512, "compression.stochastic": True},
    {"outer.method": "co2", "outer.clip": None, "outer.gap": "tensor", "outer.variant": "delayed"},
    {"outer.method": "diloco", "outer.learning_rate": 0.5, "outer.momentum": 0.8, "outer.replicas": 2},
    {"outer.method": "streaming", "outer.fragments": 3, "outer.overlap": 2, "outer.mixing": 0.25},
    {"train.seconds": 4.0, "train.learning_rate_schedule": "cosine", "train.learning_rate_warmup": 5000,
     "train.steps": 71},
    {"train.learning_rate_schedule": "one_cycle", "train.learning_rate_warmup": 0},
    {"train.learning_rate_scaling": "linear", "train.learning_rate_batch": 8},
    {"train.optimizer": "lars", "train.trust": 0.01},
    {"train.optimizer": "sgd", "train.momentum": 0.0},
    {"train.adapt": "lora", "train.adapt_rank": 4, "train.resume": "a/run"},
    {"train.warmup": 2, "train.timeout_seconds": 60.0, "train.step_timeout_seconds": 10.0},
    {"parallel.dp": 4, "parallel.tp": 1, "parallel.pp": 1, "parallel.cp": 1, "lab.hosts": 2, "lab.islands": 2,
     "lab.rate_mbit": 100.0, "lab.between_mbit": 50.0, "lab.inside_mbit": 1000.0, "network.inside": "data",
     "device": "cpu"},
    {"lab.hosts": 2, "lab.islands": [1, 1], "lab.rates_mbit": [100.0, None], "parallel.dp": 2, "device": "cpu"},
    {"network.inside": "mlx5_1", "network.between": "mlx5_0", "network.island_devices": 2, "parallel.dp": 4},
    {"environment.NCCL_ALGO": "Ring", "environment.allocator_expandable_segments": True},
    {"profile.budget": None, "profile.memory": False},
)  # fmt: skip


def turned(values: dict[str, Any], seed: int | str) -> RunConfig:
    """A legal configuration with these values, which are among ``TURNS``: everything else is drawn as in ``legal``, or
    most of it as usual where draws do not allow them.
    """
    pick = random.Random(seed)
    for _ in range(10_000):
        drawn, share = _draw(pick).flat(), pick.choice([0.1, 0.5, 1.0])
        kept = {key: value for key, value in drawn.items() if pick.random() < share}
        config = RunConfig().with_values(kept | values)
        if next(rules.problems(config), None) is None:
            return config
    raise AssertionError(f"no legal configuration has {values}")


def settings_drawn() -> set[str]:
    """What ``legal`` and ``TURNS`` give values."""
    drawn = set(flatten(_tree(random.Random(0)))).union(*TURNS)
    for values in ({}, {"model.experts": 4}, {"precision": "bf16"}, {"data.documents": "whole"}):
        drawn |= _suggested(RunConfig().with_values(values | {"parallel.dp": 4})).keys()
    return drawn
