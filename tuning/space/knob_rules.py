"""Which knobs change what runs at a point, and which schedules make ranks do the same under other names. Pure.

Asked of all of a run's values under their dotted keys. Measuring both of two equivalent points would waste a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from engine.config.compression_methods import METHODS
from engine.config.environment import SECTION, VARIABLES, silent
from engine.schedules.actions import Action
from engine.schedules.registry import KINDS, plan

Values = dict[str, Any]

#: Knobs on whose values it depends whether others act; each one may depend on those before it.
DECIDING = ("outer.method", "parallel.zero_stage", "compression.method", "compression.plan", "schedule.kind")
#: Where a knob stands that does not act, whatever a study's base says: other values would break a rule.
AT_REST: Values = {
    "parallel.ep": 1,
    "parallel.shard_ranks": None,
    "parallel.reduce_every_micro_batch": False,
    "parallel.tp_regather": False,
    "compression.weights": "none",
    "compression.experts": "none",
    "overlap.prefetch": 0,
    "overlap.gather_with_optimizer": False,
    "overlap.tp_chunks": 1,
    "overlap.delay": 0,
    "outer.replicas": None,
    **dict.fromkeys((f"{SECTION}.{name}" for name in VARIABLES), None),
}


def data_ranks(now: Values) -> int:
    """Ranks that see different tokens."""
    return int(now["parallel.dp"] * now["parallel.cp"])


def reducing_ranks(now: Values) -> int:
    """Of those, the ranks that average gradients at every step: with an outer loop, the ones of a replica."""
    if now["outer.method"] == "none":
        return data_ranks(now)
    return data_ranks(now) // int(now["outer.replicas"] or now["parallel.dp"])


def acts(key: str, now: Values) -> bool:
    """Whether a knob changes what runs; one that nothing is known about does."""
    rule = _RULES.get(key)
    return rule is None or rule(now)


def may_use_gpus(now: Values) -> bool:
    """Whether a run's ranks can be on GPUs, as far as its configuration says."""
    in_lab = now["lab.hosts"] is not None or isinstance(now["lab.islands"], list)
    return bool(now["device"] != "cpu") and not in_lab


def _reaches(name: str) -> Callable[[Values], bool]:
    def acts_here(now: Values) -> bool:
        ranks = data_ranks(now) * int(now["parallel.tp"] * now["parallel.pp"])
        return silent(name, "cuda" if may_use_gpus(now) else "cpu", ranks) is None

    return acts_here


def _shares_data(now: Values) -> bool:
    return data_ranks(now) > 1


def _pipelines(now: Values) -> bool:
    return bool(now["parallel.pp"] > 1)


def _has_outer(now: Values) -> bool:
    return bool(now["parallel.dp"] > 1 and now["outer.method"] != "none")


def _outer_is(*methods: str) -> Callable[[Values], bool]:
    return lambda now: _has_outer(now) and now["outer.method"] in methods


def _reduces(now: Values) -> bool:
    return reducing_ranks(now) > 1


def _shards(now: Values) -> bool:
    return _reduces(now) and now["parallel.zero_stage"] >= 2


def _compresses(now: Values) -> bool:
    """ZeRO sends slices to their owners, which few methods can code."""
    return _reduces(now) and (now["parallel.zero_stage"] == 0 or _method_has("one_way", now))


def _splits_matrices(now: Values) -> bool:
    return bool(now["parallel.tp"] > 1)


def _method_has(fact: str, now: Values) -> bool:
    method = METHODS.get(now["compression.method"])
    return method is not None and bool(getattr(method, fact))


def _with(field: str) -> Callable[[Values], bool]:
    """Whether the method in use is one with which a field of the section ``compression`` acts."""

    def acts_here(now: Values) -> bool:
        method = METHODS.get(now["compression.method"])
        return method is not None and field in method.fields and _compresses(now)

    return acts_here


def _loses(now: Values) -> bool:
    return _compresses(now) and now["compression.method"] != "none"


def _is_planned(now: Values) -> bool:
    return _compresses(now) and _method_has("errors", now)


def _plans(now: Values) -> bool:
    is_whole = now["parallel.zero_stage"] == 0
    return is_whole and _is_planned(now) and now["compression.plan"] != "none"


_RULES: dict[str, Callable[[Values], bool]] = {
    "outer.method": lambda now: bool(now["parallel.dp"] > 1),
    **dict.fromkeys(("outer.period", "outer.replicas"), _has_outer),
    **dict.fromkeys(("outer.learning_rate", "outer.momentum"), _outer_is("co2", "diloco", "streaming")),
    **dict.fromkeys(("outer.clip", "outer.gap", "outer.variant"), _outer_is("co2")),
    **dict.fromkeys(("outer.fragments", "outer.overlap", "outer.mixing"), _outer_is("streaming")),
    "parallel.cp_method": lambda now: bool(now["parallel.cp"] > 1),
    "parallel.ep": lambda now: now["model.experts"] is not None and _shares_data(now),
    "parallel.zero_stage": _shares_data,
    "parallel.shard_ranks": _shards,
    "parallel.reduce_every_micro_batch": _shards,
    "parallel.tp_regather": lambda now: bool(now["parallel.tp"] > 1),
    "schedule.kind": _pipelines,
    "schedule.chunks": lambda now: _pipelines(now) and len(KINDS[now["schedule.kind"]].chunks) > 1,
    "compression.method": _compresses,
    **{f"compression.{name}": _loses for name in ("start_step", "error_feedback", "layers")},
    **{f"compression.{name}": _with(name) for name in ("ratio", "rank", "bucket_values", "stochastic")},
    "compression.plan": _is_planned,
    **dict.fromkeys(("compression.plan_every", "compression.plan_alpha"), _plans),
    "compression.weights": _shards,
    "compression.experts": lambda now: bool(now["parallel.ep"] > 1),
    "overlap.prefetch": _shards,
    "overlap.gather_with_optimizer": lambda now: _reduces(now) and now["parallel.zero_stage"] == 1,
    "overlap.tp_chunks": _splits_matrices,
    "overlap.delay": lambda now: _reduces(now) and now["parallel.zero_stage"] < 2,
    "overlap.bucket_mb": lambda now: _reduces(now) and now["parallel.zero_stage"] < 2,
    **{f"{SECTION}.{name}": _reaches(name) for name in VARIABLES},
}


#: Lists that are equal for two micro-batches are equal for more.
TELLING = 2
#: From this stage on it matters whether parameters stay gathered from one micro-batch to the next.
GATHERING_STAGE = 3

Listed = tuple[tuple[tuple[Action, ...], ...], tuple[int, ...]]


def best_known(
    kind: str, kinds: Iterable[str], ranks: int, chunks: int, micro_batches: int, zero_stage: int
) -> str:
    """The best known of ``kinds`` that runs exactly as ``kind``; ``kind`` itself if there is none.

    ``chunks`` are the stages per rank, ``micro_batches`` those of one step and data rank.
    """
    if micro_batches < 1 or chunks not in KINDS[kind].chunks:
        return kind
    found = (other for other in KINDS if other in kinds and chunks in KINDS[other].chunks)
    few, gathers = min(micro_batches, TELLING), zero_stage >= GATHERING_STAGE and micro_batches > 1
    same = (
        other for other in found if _listed(other, ranks, chunks, few) == _listed(kind, ranks, chunks, few)
    )
    alike = (
        other for other in same if not gathers or KINDS[other].chunk_by_chunk == KINDS[kind].chunk_by_chunk
    )
    return next(alike, kind)


@lru_cache(maxsize=4_096)
def _listed(kind: str, ranks: int, chunks: int, micro_batches: int) -> Listed:
    drawn = plan(kind, ranks, chunks, micro_batches)
    return drawn.actions, tuple(drawn.rank_of)
