"""Knobs of what ranks send each other: compression, outer loops, overlap. A part of the catalogue.

``COMPRESSION_DETAILS`` and ``OUTER_DETAILS`` are tables of those that are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.config.knobs import conditions, suggestions
from engine.config.knobs.facts import (
    GRADIENTS,
    PRODUCTS,
    ROUNDS,
    UPDATES,
    Change,
    Context,
    KnobFacts,
    Refusal,
    Values,
)
from engine.config.methods.compression_methods import COMPRESSION_METHODS
from engine.config.methods.outer_methods import OUTER_METHODS

#: The word for no value of what a method sets by itself.
BY_METHOD = "as the method has it"
_SPEED_LOSS: tuple[Change, ...] = ("speed", "loss")
_MEMORY_LOSS: tuple[Change, ...] = ("memory", "loss")
#: Fields of the section ``compression`` that a study turns if somebody asks for it: name, title, when each acts,
#: values, what it changes, and the trade.
COMPRESSION_DETAILS: tuple[
    tuple[str, str, Callable[[Values], bool], tuple[Any, ...], tuple[Change, ...], str], ...
] = (
    ("bucket_values", "Values per scale", conditions.method_has_field("compression.bucket_values"),
     (256, 1024, 4096), _SPEED_LOSS, "fewer share one: finer scales, a few more bytes"),
    ("stochastic", "Stochastic rounding", conditions.method_has_field("compression.stochastic"),
     (None, False, True), _SPEED_LOSS, "rounding without bias, more noise"),
    ("start_step", "First compressed step", conditions.loses, (0, 2, 10), _SPEED_LOSS,
     "the first steps in full, when gradients change most"),
    ("error_feedback", "Error feedback", conditions.loses, (None, False, True), _MEMORY_LOSS,
     "what was not sent comes later, memory for it"),
    ("plan", "Per-layer plan", conditions.is_planned, ("none", "l_greco"), _SPEED_LOSS,
     "each layer its own value by what it costs and loses, time to plan"),
    ("plan_every", "Steps between plans", conditions.plans, (50, 200), _SPEED_LOSS,
     "plans follow the training, time to plan"),
    ("plan_budget", "Plan budget", conditions.plans, ("loss", "error"), _SPEED_LOSS,
     "the effect on the loss of one value for all, or as much error: fewer bytes, a higher loss"),
    ("plan_alpha", "Plan budget factor", conditions.plans, (0.5, 1.0, 2.0), _SPEED_LOSS,
     "fewer bytes, more is lost than with one value for all"),
)  # fmt: skip
#: Why those of the section ``outer`` that do not turn are decided when a run starts.
_OUTER_AT_START = {
    "gap": "it keeps typical distances, which depend on its kind; it would take measuring them from anew",
    "variant": "variants keep other copies of the weights; it would take making them at a round's border",
    "fragments": "anchors and momenta lie in fragments; it would take dealing them out anew",
}
#: The same of the section ``outer``: name, title, the word for no value, values, and the trade.
OUTER_DETAILS: tuple[tuple[str, str, str, tuple[Any, ...], str], ...] = (
    (
        "learning_rate",
        "Outer learning rate",
        BY_METHOD,
        (None, 0.4, 0.7, 1.0),
        "how far the mean of a round is followed",
    ),
    (
        "momentum",
        "Outer momentum",
        BY_METHOD,
        (None, 0.0, 0.5, 0.9),
        "earlier rounds go on to count",
    ),
    ("clip", "Outer momentum clip", "no clip", (1.0, None), "bounds a round's step that came late"),
    (
        "gap",
        "Staleness gap",
        "",
        ("none", "scalar", "tensor", "element"),
        "late averages count less the further weights moved",
    ),
    (
        "variant",
        "Weights at round start",
        "",
        ("keep_local", "delayed", "paper"),
        "from which weights a round begins",
    ),
    ("fragments", "Fragments", "", (2, 4), "smaller messages, spread over the round"),
    (
        "overlap",
        "Fragment overlap (steps)",
        "",
        (1, 2, 4),
        "more time to travel, averages come later",
    ),
    (
        "mixing",
        "Weight of own parameters",
        "",
        (0.25, 0.5, 0.75),
        "how much of the own weights is kept beside the mean",
    ),
)

#: Those of them that no state of an outer loop depends on.
_TURNING = ("learning_rate", "momentum", "clip", "overlap", "mixing")

_SHARDS = "only zero_stage 2 or 3 on several dp x cp ranks"

COMMUNICATION: dict[str, KnobFacts] = {
    "compression.method": KnobFacts(
        "Gradient compression",
        "compression",
        "compression",
        always_in_label=True,
        acts=conditions.compresses,
        neutral_default=True,
        reset_when_inactive=False,  # to what the space has
        searched_by_default=True,
        suggested=suggestions.names_of(COMPRESSION_METHODS),
        unselected_values=suggestions.other_names_of(COMPRESSION_METHODS),
        live=GRADIENTS,
        reset_order=3,
        changes=("speed", "loss"),
        trade="fewer bytes between ranks, time to code them, gradients are inexact",
        not_predicted="its own computation is not counted",
        refused={
            Context.OWN_STEP: "sends what it sends itself",
            Context.FROZEN_MODEL: "gradients of factors are small, and go as they are",
        },
    ),
    "compression.ratio": KnobFacts(
        "Compression ratio",
        "ratio",
        always_in_label=True,
        acts=conditions.method_has_field("compression.ratio"),
        searched_by_default=True,
        suggested=lambda search: {"low": 0.01, "high": 0.25, "log": True} if search.ranks > 1 else None,
        live=GRADIENTS,
        changes=("speed", "loss"),
        loses_more="lower",
        trade="fewer bytes, more is left for later steps",
    ),
    "compression.rank": KnobFacts(
        "Compression rank",
        "rank",
        always_in_label=True,
        acts=conditions.method_has_field("compression.rank"),
        searched_by_default=True,
        suggested=suggestions.on_several_ranks(1, 2, 4, 8, 16),
        live=GRADIENTS,
        changes=("speed", "loss"),
        loses_more="lower",
        trade="fewer bytes, coarser gradients",
    ),
    **{
        f"compression.{name}": KnobFacts(
            title,
            title.lower(),
            acts=acts_here,
            reset_when_inactive=name == "plan",
            suggested=suggestions.on_several_ranks(*values),
            changes=changes,
            trade=trade,
            live=GRADIENTS,
            reset_order=4 if name == "plan" else 0,
            unset=BY_METHOD,
        )
        for name, title, acts_here, values, changes, trade in COMPRESSION_DETAILS
    },
    # A table by parameter: no list of values could offer it. A plan chooses such tables.
    "compression.layers": KnobFacts(
        acts=conditions.loses, live=GRADIENTS, why_not_searched="a plan chooses such tables"
    ),
    "outer.method": KnobFacts(
        "Outer loop",
        "outer loop",
        "outer",
        always_in_label=True,
        acts=lambda now: bool(now["parallel.dp"] > 1),
        inactive_problem="with dp=1 there is one replica; set it to none or raise dp",
        neutral_default=True,
        reset_when_inactive=False,  # to what the space has
        suggested=suggestions.names_of(OUTER_METHODS),
        unselected_values=suggestions.other_names_of(OUTER_METHODS),
        reset_order=1,
        why_only_at_start="each method keeps a state of its own; it would take one that begins in the middle of a run",
        changes=("speed", "memory", "loss"),
        trade="ranks meet once a round, weights drift apart meanwhile",
        not_predicted="its own step and what replicas average at every step are not counted",
        refused={
            Context.OWN_STEP: "meets the other ranks itself",
            Context.FROZEN_MODEL: "replicas meet in all that they hold",
            Context.WHOLE_DOCUMENTS: "",
            Context.TASKS: "replicas of an outer loop would learn from unequal batches",
            Context.EXPERT_SLOTS: "goes without an outer loop, which keeps copies of all weights",
        },
    ),
    "outer.period": KnobFacts(
        "Steps per round",
        "steps per round",
        "outer_period",
        always_in_label=True,
        acts=conditions.has_outer,
        suggested=suggestions.on_several_ranks(2, 4, 8, 12),
        live=ROUNDS,
        changes=("speed", "loss"),
        loses_more="higher",
        trade="fewer meetings, more drift",
    ),
    "outer.replicas": KnobFacts(
        "Outer-loop replicas",
        "replicas",
        unset="one a dp rank",
        acts=conditions.has_outer,
        reset_when_inactive=True,
        suggested=lambda search: [None, *search.degrees[1:-1]] if search.ranks > 2 else None,
        why_only_at_start="replicas have groups and states of their own; it would take new groups and merging states",
        changes=("speed", "loss"),
        trade="fewer replicas: more meetings inside, less drift",
    ),
    **{
        f"outer.{name}": KnobFacts(
            title,
            title.lower(),
            unset=unset,
            acts=conditions.method_has_field(f"outer.{name}"),
            suggested=suggestions.on_several_ranks(*values),
            live=ROUNDS if name in _TURNING else "",
            why_only_at_start=_OUTER_AT_START.get(name, ""),
            changes=("loss",) if name not in ("fragments", "overlap") else ("speed", "loss"),
            trade=trade,
        )
        for name, title, unset, values, trade in OUTER_DETAILS
    },
    "overlap.bucket_mb": KnobFacts(
        "Bucket size, MB",
        "bucket MB",
        user_extendable=True,
        acts=conditions.buckets,
        searched_by_default=True,
        suggested=suggestions.on_several_ranks(1.0, 5.0, 25.0),
        live=GRADIENTS,
        changes=("speed",),
        trade="small buckets leave early, large ones cost fewer calls",
    ),
    "overlap.prefetch": KnobFacts(
        "Prefetched layers",
        "prefetched layers",
        acts=conditions.shards,
        inactive_problem=f"{_SHARDS} gathers layers; set it to 0",
        neutral_default=True,
        suggested=suggestions.on_several_ranks(0, 1, 2),
        live=GRADIENTS,
        changes=("speed", "memory"),
        trade="weights arrive in time, memory for them",
        not_predicted="what it hides is not modelled",
    ),
    "overlap.fused_gathers": KnobFacts(
        "Fused weight gathers",
        "fused gathers",
        acts=lambda now: conditions.shards(now) and now["compression.weights"] == "none",
        inactive_problem=f"{_SHARDS} gathers layers, and in int8 they come with their scales; set it to true",
        neutral_default=True,
        suggested=suggestions.on_several_ranks(True, False),
        live=GRADIENTS,
        changes=("speed", "memory"),
        trade="apart, each parameter is a message of its own",
        not_predicted="messages are taken to be of whole layers",
    ),
    "overlap.gather_with_optimizer": KnobFacts(
        "Gather during optimizer step",
        "gather with optimizer",
        acts=lambda now: conditions.reduces(now) and now["parallel.zero_stage"] == 1,
        inactive_problem="only zero_stage 1 on several dp x cp ranks gathers what it updated; set it to false",
        neutral_default=True,
        suggested=suggestions.on_several_ranks(False, True),
        live=UPDATES,
        changes=("speed",),
        trade="weights travel while others are updated",
        not_predicted="the gather is taken to come after the update",
        refused={
            Context.FROZEN_MODEL: "factors are gathered after the update",
            Context.OUTER_LOOP: "",
        },
    ),
    "overlap.tp_chunks": KnobFacts(
        "Tensor-parallel chunks",
        "tp chunks",
        acts=conditions.splits_matrices,
        inactive_problem="with tp=1 nothing is gathered; set it to 1 or raise tp",
        neutral_default=True,
        suggested=suggestions.on_several_ranks(1, 2, 4),
        live=PRODUCTS,
        changes=("speed",),
        trade="messages beside computation, smaller products",
        not_predicted="what tp hides is not modelled",
        refused={
            Context.PARTIAL_PRODUCTS: "products in chunks keep all of their inputs",
        },
    ),
    "overlap.delay": KnobFacts(
        "Gradient delay (steps)",
        "gradient delay",
        acts=conditions.buckets,
        inactive_problem="only zero_stage 0 or 1 on several dp x cp ranks has buckets that can wait; set it to 0",
        neutral_default=True,
        suggested=suggestions.on_several_ranks(0, 1),
        why_only_at_start="a gradient of the step before is under way; it would take a step with two updates or none",
        changes=("speed", "memory", "loss"),
        trade="gradients travel beside the next step and come a step late",
        not_predicted="gradients are taken to be waited for",
        refused={
            Context.OWN_STEP: "waits for what it sends",
            Context.WHOLE_DOCUMENTS: "",
            Context.OUTER_LOOP: "",
        },
    ),
    "compression.weights": KnobFacts(
        "Weight gather format",
        "weight format",
        acts=conditions.shards,
        inactive_problem=f"{_SHARDS} gathers weights; set it to none",
        neutral_default=True,
        suggested=suggestions.on_several_ranks("none", "int8"),
        live=GRADIENTS,
        changes=("speed", "loss"),
        trade="fewer bytes to gather, weights are inexact",
        not_predicted="parameters are taken to be gathered as they are",
    ),
    "compression.experts": KnobFacts(
        "Expert token format",
        "token format",
        acts=lambda now: bool(now["parallel.ep"] > 1),
        inactive_problem="with ep=1 no token is sent; set it to none or raise ep",
        neutral_default=True,
        suggested=suggestions.with_experts(suggestions.token_formats),
        why_only_at_start="exchanges of tokens are made with the model; it would take ones that ask in every forward",
        changes=("speed", "loss"),
        trade="fewer bytes of tokens, activations are inexact",
        refused={
            Context.WHOLE_DOCUMENTS: Refusal(legal=("bf16", "int8")),
        },
    ),
    "compression.expert_rate": KnobFacts(
        "Share of expert token bytes sent",
        "expert rate",
        acts=conditions.buckets_tokens,
        suggested=suggestions.with_experts(suggestions.on_several_ranks(0.13, 0.2, 0.4)),
        why_only_at_start="as the exchanges, which have it",
        changes=("speed", "loss"),
        loses_more="lower",
        trade="fewer tokens travel, each for more others",
    ),
    "compression.expert_residual": KnobFacts(
        "Expert token residuals",
        "token residuals",
        acts=conditions.buckets_tokens,
        suggested=suggestions.with_experts(suggestions.on_several_ranks(False, True)),
        why_only_at_start="as the exchanges, which have it",
        changes=("loss",),
        trade="a token's own part passes its expert by instead of being left out; lost more wherever it was measured",
    ),
}
