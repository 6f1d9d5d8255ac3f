"""What is tried on the fake device, made from the engine's own tables: a new schedule or method is a case by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from engine.config.knobs.catalogue import facts_of
from engine.config.knobs.facts import Search
from engine.config.run_config import RunConfig
from engine.config.validation.rules import problems
from tests.engine.runs.test_matrix import AXES, EXPERTS, SIZES, combinations, composed
from tests.support.runs import small

#: Two steps with two micro-batches each, and an evaluation at the end; a round of an outer loop is over after one.
STEPS: dict[str, Any] = {
    "device": "cuda",
    "train.steps": 2,
    "train.warmup": 0,
    "train.validation_batches": 1,
    "compression.start_step": 0,
}
#: Settings that take numbers, with one that changes what is computed; of others what their entries suggest.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "compression.ratio": (0.1, 0.6),
    "compression.expert_rate": (0.5,),
    "data.tasks": ([{"name": "a", "share": 3}, {"name": "b"}],),
    "overlap.bucket_mb": (0.01,),
    "overlap.delay": (1,),
    "overlap.prefetch": (1,),
    "overlap.tp_chunks": (2,),
    "data.ahead": (2,),
    "data.longest_document": (8,),
    "batch.ramp_from": (1, 2),
    "memory.recompute_layers": (1,),
    "memory.sample_tokens": (0.3,),
    "schedule.skip_share": (0.25,),
    "schedule.registers": (1, 2),
    "memory.block_actions": (["offload", "full"], ["selective", "offload"]),
    "model.capacity_factor": (1.25,),
    "model.layer_groups": (1,),
    "train.clip_norm": (None,),
    "train.slice_keep": (0.5,),
    "train.validate_every": (1,),
    "checkpoint.every_steps": (1,),
}
#: What else has to be set for a setting to do something.
ALONG: dict[str, dict[str, Any]] = {
    # More values than topk takes a sample of; where most are sent, a sample of half of them is too few.
    "compression.ratio": {"compression.method": "topk", "model.hidden": 256, "model.ffn_hidden": 512},
    "compression.rank": {"compression.method": "powersgd"},
    "compression.bucket_values": {"compression.method": "int8"},
    "compression.stochastic": {"compression.method": "int8"},
    "compression.error_feedback": {"compression.method": "randomk"},
    "compression.plan": {"compression.method": "powersgd"},
    "compression.plan_budget": {"compression.plan": "l_greco", "compression.method": "int8"},
    "compression.weights": {"compression.method": "int8"},
    "compression.expert_rate": {"compression.experts": "lsh"},
    "compression.expert_residual": {"compression.experts": "lsh_int8"},
    "data.longest_document": {"data.documents": "whole"},
    "memory.parameters": {"precision": "bf16"},
    "parallel.sequence_groups": {
        "data.documents": "whole",
        "parallel.dp": 8,
        "model.heads": 8,
        "model.kv_heads": 8,
        "batch.global_batch": 8,
    },
    "parallel.task_ranks": {"data.tasks": [{"name": "a", "share": 3}, {"name": "b"}]},
    "schedule.skip_share": {"schedule.kind": "interleaved"},
    "schedule.skip_order": {"schedule.kind": "interleaved", "schedule.skip_share": 0.25},
    "memory.recompute_layers": {"memory.recompute": "full"},
    "model.capacity_factor": {"model.experts": 8},
    "train.learning_rate_scaling": {"train.learning_rate_batch": 1},
    "schedule.chunks": {"schedule.kind": "interleaved"},
    "outer.period": {"outer.method": "local"},
    "outer.replicas": {"outer.method": "local"},
    "outer.learning_rate": {"outer.method": "diloco"},
    "outer.momentum": {"outer.method": "diloco"},
    "outer.mixing": {"outer.method": "streaming"},
    "outer.gap": {"outer.method": "co2"},
    "outer.variant": {"outer.method": "co2"},
    "checkpoint.asynchronous": {"checkpoint.every_steps": 1},
}
#: Whatever an outer loop does happens within so many steps.
OUTER = {"outer.period": 4, "train.steps": 6}
#: Settings on which no tensor depends.
APART = ("device", "lab", "network", "environment", "profile")
#: What fake tensors cannot show, and why.
UNREACHED: dict[str, str] = {
    "memory.budget_gib": "a plan is made from seconds of copies and kernels, and there are none",
    "compile": "the compiler writes Triton kernels for a GPU that it asks about itself",
    "memory.expert_slots": "slots are of CPU ranks",
    "memory.expert_home": "slots are of CPU ranks",
    "memory.expert_ahead": "slots are of CPU ranks",
    "parallel.sequence_groups=planned": "a plan comes from the ranks' store, and a rank alone has none",
    "train.adapt": "it begins with a checkpoint, of which a rank alone reads its own part alone",
    "train.adapt_rank": "as train.adapt",
    "train.resume": "a rank alone reads its own part of a checkpoint alone",
}
BASES: dict[str, dict[str, Any]] = {
    "alone": {},
    "mixture": EXPERTS,
    **{name: AXES[name] for name in ("dp", "zero1", "zero2", "zero3", "hsdp", "tp", "ring", "ep", "1f1b")},
}


def layouts() -> dict[str, RunConfig]:
    """Each axis alone, with each other one, and with two others."""
    names = [(name,) for name in AXES] + combinations(2) + combinations(3)
    made = {"-".join(one): composed(one) for one in names}
    return {name: _shortened(config) for name, config in made.items() if config is not None}


def settings() -> dict[str, RunConfig]:
    """Each value of each setting on every base that may have it."""
    found = {}
    for key, value in values():
        for base, given in BASES.items():
            if key.startswith("schedule.") and "parallel__pp" not in given:
                continue
            config = _with(given, key, value)
            if config is not None:
                found[f"{base}-{key}={value}"] = config
    return found


def values() -> Iterator[tuple[str, Any]]:
    """Every setting that has few values, with those that are not its usual one."""
    usual = RunConfig().flat()
    for key, annotation in _fields(RunConfig, ""):
        for value in (*_choices(annotation), *(NUMBERS.get(key) or _suggested(key))):
            if value != usual[key] and f"{key}={value}" not in UNREACHED:
                yield key, value


def _suggested(key: str) -> tuple[Any, ...]:
    """A number of a knob's entry that is not its default, of a dense model or one with experts. None of degrees, which
    layouts have, and of micro-batches, of which each step here has two.
    """
    usual = RunConfig()
    if facts_of(key).degree or key == "batch.micro_batch":
        return ()
    for base in (usual, usual.with_values({"model.experts": 8})):
        found = facts_of(key).suggested(Search(base, 4))
        numbers = [one for one in found or () if type(one) in (int, float) and one != usual.value_of(key)]
        if numbers:
            return (numbers[0],)
    return ()


def _fields(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if prefix + name in (*APART, *UNREACHED):
            continue
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a Literal or a bool, also of an optional one."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if annotation is bool:
        return True, False
    parts = get_args(annotation)
    return tuple(
        value for part in parts if part is bool or get_origin(part) is Literal for value in _choices(part)
    )


def _with(base: dict[str, Any], key: str, value: Any) -> RunConfig | None:
    """The base with a setting and what goes along with it; None where a rule forbids it."""
    config = small(**SIZES | base)
    asked = ALONG.get(key, {}) | {key: value}
    if any(name.startswith("outer.") for name in asked):
        asked = OUTER | asked
    for chunks in (1, 2, 4):
        found = _shortened(config.with_values({"schedule.chunks": chunks}), asked)
        if not list(problems(found)):
            return found
    return None


def _shortened(config: RunConfig, asked: dict[str, Any] | None = None) -> RunConfig:
    """Two micro-batches a step."""
    short = config.with_values(STEPS | (asked or {}))
    layers = max(2, short.parallel.pp * short.schedule.chunks)
    batch = 2 * short.parallel.dp
    return short.with_values({"model.layers": layers, "batch.micro_batch": 1, "batch.global_batch": batch})
