"""Why a knob does not turn while a run goes, and what it would take. Pure, without torch."""

from __future__ import annotations

from engine.config.environment import SECTION

_DEGREE = (
    "other ranks would hold other parts of the model; it would take new groups, and moving weights and state"
)
_LEARNING = (
    "steps before and after would not have learned alike, and the learning rate follows the steps of a run"
)
#: By key; each of a knob without ``live``.
AT_START: dict[str, str] = {
    "parallel.tp": _DEGREE,
    "parallel.pp": _DEGREE,
    "parallel.cp": _DEGREE,
    "parallel.ep": _DEGREE,
    "parallel.shard_ranks": _DEGREE,
    "parallel.placement": "ranks would change places; it would take moving all that they hold",
    "parallel.cp_method": "the groups of its messages are made with the model; it would take both kinds at the start",
    "parallel.tp_replicated": "matrices would be gathered or cut on every rank; it would take a checkpoint in between",
    "parallel.ep_island": "the groups of its messages are made with the model; it would take both kinds at the start",
    "parallel.task_ranks": "ranks would go on with other micro-batches; it would take deals that change in a run",
    "parallel.sequence_groups": "groups are made and measured as a run starts; it would take both kinds at the start",
    "memory.expert_slots": "experts move to their homes as the model is made; it would take moving them back",
    "memory.expert_home": "experts move to their homes as the model is made; it would take moving them again",
    "memory.expert_ahead": "as the slots, which have it",
    "data.ahead": "its thread begins with the run; it would take one that begins and ends between two steps",
    "parallel.embedding": "columns would change ranks; it would take moving weights and state",
    "parallel.tp_regather": "it is built into each matrix product; it would take products that ask in every forward",
    "schedule.stage_layers": "layers would change ranks; it would take moving weights and state",
    "schedule.chunks": "layers would change ranks; it would take moving weights and state",
    "memory.budget_gib": "blocks are measured before the model is there; it would take measuring them beside it",
    "memory.parameters": "parameters would get another dtype; it would take new master weights and buckets",
    "compile": "compiled blocks stand in for the plain ones; it would take both beside each other",
    "outer.method": "each method keeps a state of its own; it would take one that begins in the middle of a run",
    "outer.replicas": "replicas have groups and states of their own; it would take new groups and merging states",
    "outer.gap": "it keeps typical distances, which depend on its kind; it would take measuring them from anew",
    "outer.variant": "variants keep other copies of the weights; it would take making them at a round's border",
    "outer.fragments": "anchors and momenta lie in fragments; it would take dealing them out anew",
    "overlap.delay": "a gradient of the step before is under way; it would take a step with two updates or none",
    "compression.experts": "exchanges of tokens are made with the model; it would take ones that ask in every forward",
    "compression.expert_rate": "as the exchanges, which have it",
    "compression.expert_residual": "as the exchanges, which have it",
    "batch.global_batch": _LEARNING,
    "batch.ramp_from": _LEARNING,
    "batch.ramp_share": _LEARNING,
    "train.learning_rate": _LEARNING,
    "train.learning_rate_warmup": _LEARNING,
    "train.learning_rate_schedule": _LEARNING,
    "train.learning_rate_scaling": _LEARNING,
    "train.optimizer": _LEARNING,
    "train.adapt": "what is frozen has no gradients; it would take buckets and an optimizer for all of it",
    "train.adapt_rank": "factors have that many rows as the model is made; it would take new ones",
}
#: By the beginning of a variable's name: when its library reads it.
_ENVIRONMENT: dict[str, str] = {
    "NCCL_": "NCCL reads it once, as its first communicator is made; it would take new processes",
    "TORCH_NCCL_": "torch reads it as process groups are made; it would take new groups",
    "MALLOC_": "the C library reads it as a process begins; it would take new processes",
    "CUDA_": "the driver reads it as a process first uses its GPU; it would take new processes",
    "allocator_": "what the GPU allocator holds was cut by the old setting; it would take giving all of it back",
}


def why_at_start(key: str) -> str:
    """In words; empty of a key that turns, or that is no knob."""
    section, _, name = key.partition(".")
    if section == SECTION:
        return next((why for begin, why in _ENVIRONMENT.items() if name.startswith(begin)), "")
    return AT_START.get(key, "")
