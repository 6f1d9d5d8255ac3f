"""The knobs that a study can be offered, and which of them it turns when nobody says."""

from __future__ import annotations

from typing import Any

from engine.config.run_config import RunConfig

#: From this length on, activations of one sequence are what a rank may not hold: context parallelism splits them.
LONG_SEQUENCE = 8_192
#: More ranks than usual machines have: copies that are whole on each machine spare the network between them.
MANY_RANKS = 9
#: Widths of hybrid sharding that are offered: no wider than one usual machine.
WIDEST_SHARD = 8
#: Overlap and formats whose gain depends on the network, or that change the arithmetic.
ONLY_IF_ASKED: dict[str, Any] = {
    "overlap.prefetch": [0, 1, 2],
    "overlap.gather_with_optimizer": [False, True],
    "overlap.tp_chunks": [1, 2, 4],
    "overlap.delay": [0, 1],
    "compression.weights": ["none", "int8"],
}


def default_space(base: RunConfig, ranks: int) -> dict[str, Any]:
    """A sensible space for a machine: layouts and how they communicate, or on one device what is left.

    Context parallelism is in it from 8,192 tokens a sequence on, or when a step has fewer sequences than ranks;
    expert parallelism when the model has experts; hybrid sharding from nine ranks on. Outer loops never are: what they
    do to the loss shows after more steps than a usual trial has.
    """
    offered = offered_space(base, ranks)
    return {key: values for key, values in offered.items() if _suits(key, base, ranks)}


def offered_space(base: RunConfig, ranks: int) -> dict[str, Any]:
    """Every knob with sensible values, also those that are not turned unless somebody asks for them."""
    space: dict[str, Any] = {
        "batch.micro_batch": _micro_batches(base),
        "memory.recompute": ["none", "selective", "full"],
    }
    if ranks == 1:
        return space | {"compile": [False, True]}
    degrees = [degree for degree in range(1, ranks + 1) if ranks % degree == 0]
    return {
        "parallel.tp": degrees,
        "parallel.pp": degrees,
        "parallel.cp": degrees,
        "parallel.cp_method": ["ring", "ulysses"],
        **({} if base.model.experts is None else {"parallel.ep": degrees}),
        "parallel.zero_stage": [0, 1, 2, 3],
        "parallel.shard_ranks": [None, *(width for width in degrees[1:-1] if width <= WIDEST_SHARD)],
        **space,
        "schedule.kind": ["1f1b", "gpipe", "interleaved", "zb_h1", "breadth_first"],
        "schedule.chunks": [1, 2],
        "compression.method": ["none", "fp16", "int8", "int4", "topk", "powersgd", "sign"],
        "compression.ratio": {"low": 0.01, "high": 0.25, "log": True},
        "compression.rank": [1, 2, 4, 8],
        "outer.method": ["none", "local", "diloco", "streaming", "co2"],
        "outer.period": [2, 4, 8, 12],
        "overlap.bucket_mb": [1.0, 5.0, 25.0],
        **ONLY_IF_ASKED,
        **({} if base.model.experts is None else {"compression.experts": ["none", "bf16", "int8"]}),
    }


def _suits(key: str, base: RunConfig, ranks: int) -> bool:
    if key in ("parallel.cp", "parallel.cp_method"):
        return base.data.sequence_length >= LONG_SEQUENCE or base.batch.global_batch < ranks
    if key.startswith("outer.") or key in ONLY_IF_ASKED or key == "compression.experts":
        return False
    return key != "parallel.shard_ranks" or ranks >= MANY_RANKS


def _micro_batches(base: RunConfig) -> list[int]:
    whole = base.batch.global_batch
    powers = [2**power for power in range(5) if whole % 2**power == 0]
    return sorted({*powers, base.batch.micro_batch})


def space_note(ranks: int, given: bool) -> str:
    """What the space covers and why, in words; of one that the user gave only that it has no layouts."""
    if ranks == 1:
        turned = "" if given else "; the study turns micro-batch, recomputation and compile"
        return f"one device: there is no layout to choose{turned}"
    if given:
        return ""
    return f"no space given: the study turns layout, batch, memory and communication knobs for {ranks} ranks"
