"""When a knob acts: conditions on all of a run's values under their dotted keys. Pure, without torch."""

from __future__ import annotations

from collections.abc import Callable

from engine.config.environment import ineffective_reason
from engine.config.knobs.facts import Values
from engine.config.methods.compression_methods import COMPRESSION_METHODS
from engine.config.methods.outer_methods import OUTER_METHODS
from engine.schedules.registry import SCHEDULES


def data_ranks(now: Values) -> int:
    """Ranks that see different tokens."""
    return int(now["parallel.dp"] * now["parallel.cp"])


def reducing_ranks(now: Values) -> int:
    """Of those, the ranks that average gradients at every step: with an outer loop, the ones of a replica."""
    if now["outer.method"] == "none":
        return data_ranks(now)
    return data_ranks(now) // int(now["outer.replicas"] or now["parallel.dp"])


def may_use_gpus(now: Values) -> bool:
    """Whether a run's ranks can be on GPUs, as far as its configuration says."""
    in_lab = now["lab.hosts"] is not None or isinstance(now["lab.islands"], list)
    return bool(now["device"] != "cpu") and not in_lab


def reaches(name: str) -> Callable[[Values], bool]:
    def acts_here(now: Values) -> bool:
        return ineffective_reason(name, "cuda" if may_use_gpus(now) else "cpu", _ranks(now)) is None

    return acts_here


def has_several_ranks(now: Values) -> bool:
    return _ranks(now) > 1


def _ranks(now: Values) -> int:
    return data_ranks(now) * int(now["parallel.tp"] * now["parallel.pp"])


def shares_data(now: Values) -> bool:
    return data_ranks(now) > 1


def pipelines(now: Values) -> bool:
    return bool(now["parallel.pp"] > 1)


def may_skip(now: Values) -> bool:
    """Whether micro-batches can leave out stages."""
    return pipelines(now) and SCHEDULES[now["schedule.kind"]].skips


def has_outer(now: Values) -> bool:
    return bool(now["parallel.dp"] > 1 and now["outer.method"] != "none")


def reduces(now: Values) -> bool:
    return reducing_ranks(now) > 1


def shards(now: Values) -> bool:
    return reduces(now) and now["parallel.zero_stage"] >= 2


def compresses(now: Values) -> bool:
    """ZeRO sends slices to their owners, which few methods can code."""
    return reduces(now) and (now["parallel.zero_stage"] == 0 or method_has("one_way", now))


def buckets(now: Values) -> bool:
    return reduces(now) and now["parallel.zero_stage"] < 2


def treats_blocks_alike(now: Values) -> bool:
    """Whether the same becomes of all blocks' activations."""
    return now["memory.block_actions"] is None and now["memory.budget_gib"] is None


def keeps_inputs(now: Values) -> bool:
    """Whether matrices have products in which they can keep a part of their inputs."""
    plain = not now["parallel.tp_regather"] and now["overlap.tp_chunks"] == 1 and not now["compile"]
    return plain and (now["memory.recompute"] != "full" or now["memory.recompute_layers"] is not None)


def splits_matrices(now: Values) -> bool:
    return bool(now["parallel.tp"] > 1)


def may_split_columns(now: Values) -> bool:
    """Whether data ranks can hold columns of the embedding."""
    whole = now["parallel.tp"] == 1 and now["parallel.zero_stage"] < 2
    return whole and shares_data(now) and now["outer.method"] == "none" and not now["model.tied_embeddings"]


def method_has(fact: str, now: Values) -> bool:
    method = COMPRESSION_METHODS.get(now["compression.method"])
    return method is not None and bool(getattr(method, fact))


def method_has_field(key: str) -> Callable[[Values], bool]:
    """Whether the method of the key's section runs at all, and is one with which this field of the section acts."""
    section, _, field = key.partition(".")
    methods, runs = (
        (COMPRESSION_METHODS, compresses) if section == "compression" else (OUTER_METHODS, has_outer)
    )

    def acts_here(now: Values) -> bool:
        method = methods.get(now[f"{section}.method"])
        return method is not None and method.has(field) and runs(now)

    return acts_here


def loses(now: Values) -> bool:
    return compresses(now) and now["compression.method"] != "none"


def is_planned(now: Values) -> bool:
    return compresses(now) and method_has("errors", now)


def plans(now: Values) -> bool:
    return is_planned(now) and now["compression.plan"] != "none"


def buckets_tokens(now: Values) -> bool:
    """Tokens that are alike travel as one."""
    return bool(now["parallel.ep"] > 1) and now["compression.experts"] in ("lsh", "lsh_int8")
