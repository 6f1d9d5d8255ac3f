"""Knobs of what ranks send each other: compression, outer loops, overlap. A part of the catalogue.

``COMPRESSION_DETAILS`` and ``OUTER_DETAILS`` are tables of those that are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.config.knobs import facts as rules
from engine.config.knobs.facts import GRADIENTS, PRODUCTS, ROUNDS, UNSAID, UPDATES, Change, KnobFacts, Values
from engine.config.methods.compression_methods import METHODS
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
    ("bucket_values", "Values a scale", rules.method_has_field("compression.bucket_values"),
     (256, 1024, 4096), _SPEED_LOSS, "fewer share one: finer scales, a few more bytes"),
    ("stochastic", "Stochastic rounding", rules.method_has_field("compression.stochastic"),
     (None, False, True), _SPEED_LOSS, "rounding without bias, more noise"),
    ("start_step", "First compressed step", rules.loses, (0, 2, 10), _SPEED_LOSS,
     "the first steps in full, when gradients change most"),
    ("error_feedback", "Error feedback", rules.loses, (None, False, True), _MEMORY_LOSS,
     "what was not sent comes later, memory for it"),
    ("plan", "Plan by layer", rules.is_planned, ("none", "l_greco"), _SPEED_LOSS,
     "each layer its own value by what it costs and loses, time to plan"),
    ("plan_every", "Steps between plans", rules.plans, (50, 200), _SPEED_LOSS,
     "plans follow the training, time to plan"),
    ("plan_budget", "Budget of a plan", rules.plans, ("loss", "error"), _SPEED_LOSS,
     "the effect on the loss of one value for all, or as much error: fewer bytes, a higher loss"),
    ("plan_alpha", "Budget of a plan, times", rules.plans, (0.5, 1.0, 2.0), _SPEED_LOSS,
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
        "Start of a round",
        "",
        ("keep_local", "delayed", "paper"),
        "from which weights a round begins",
    ),
    ("fragments", "Fragments", "", (2, 4), "smaller messages, spread over the round"),
    (
        "overlap",
        "Steps a fragment travels",
        "",
        (1, 2, 4),
        "more time to travel, averages come later",
    ),
    (
        "mixing",
        "Own weights kept",
        "",
        (0.25, 0.5, 0.75),
        "how much of the own weights is kept beside the mean",
    ),
)

#: Those of them that no state of an outer loop depends on.
_TURNING = ("learning_rate", "momentum", "clip", "overlap", "mixing")

COMMUNICATION: dict[str, KnobFacts] = {
    "compression.method": KnobFacts(
        "Gradient compression",
        "compression",
        "compression",
        named_anyway=True,
        acts=rules.compresses,
        plain="none",
        exact="none",
        offered=rules.offered_methods(METHODS),
        rare=rules.not_offered(METHODS),
        live=GRADIENTS,
        decides=3,
        changes=("speed", "loss"),
        trade="fewer bytes between ranks, time to code them, gradients are inexact",
    ),
    "compression.ratio": KnobFacts(
        "Compression ratio",
        "ratio",
        named_anyway=True,
        acts=rules.method_has_field("compression.ratio"),
        offered=lambda search: {"low": 0.01, "high": 0.25, "log": True} if search.ranks > 1 else None,
        live=GRADIENTS,
        changes=("speed", "loss"),
        loses_more="lower",
        trade="fewer bytes, more is left for later steps",
    ),
    "compression.rank": KnobFacts(
        "Compression rank",
        "rank",
        named_anyway=True,
        acts=rules.method_has_field("compression.rank"),
        offered=rules.offer_several_ranks(1, 2, 4, 8, 16),
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
            at_rest="none" if name == "plan" else UNSAID,
            offered=rules.offer_several_ranks(*values),
            usual=rules.never,
            changes=changes,
            trade=trade,
            live=GRADIENTS,
            decides=4 if name == "plan" else 0,
            unset=BY_METHOD,
        )
        for name, title, acts_here, values, changes, trade in COMPRESSION_DETAILS
    },
    # A table by parameter: no list of values could offer it. A plan chooses such tables.
    "compression.layers": KnobFacts(acts=rules.loses, live=GRADIENTS),
    "outer.method": KnobFacts(
        "Outer loop",
        "outer loop",
        "outer",
        named_anyway=True,
        acts=lambda now: bool(now["parallel.dp"] > 1),
        plain="none",
        exact="none",
        offered=rules.offered_methods(OUTER_METHODS),
        rare=rules.not_offered(OUTER_METHODS),
        usual=rules.never,
        decides=1,
        at_start="each method keeps a state of its own; it would take one that begins in the middle of a run",
        changes=("speed", "memory", "loss"),
        trade="ranks meet once a round, weights drift apart meanwhile",
    ),
    "outer.period": KnobFacts(
        "Steps a round",
        "steps a round",
        "outer_period",
        named_anyway=True,
        acts=rules.has_outer,
        offered=rules.offer_several_ranks(2, 4, 8, 12),
        usual=rules.never,
        live=ROUNDS,
        changes=("speed", "loss"),
        loses_more="higher",
        trade="fewer meetings, more drift",
    ),
    "outer.replicas": KnobFacts(
        "Replicas of the outer loop",
        "replicas",
        unset="one a dp rank",
        acts=rules.has_outer,
        at_rest=None,
        offered=lambda search: [None, *search.degrees[1:-1]] if search.ranks > 2 else None,
        usual=rules.never,
        at_start="replicas have groups and states of their own; it would take new groups and merging states",
        changes=("speed", "loss"),
        trade="fewer replicas: more meetings inside, less drift",
    ),
    **{
        f"outer.{name}": KnobFacts(
            title,
            title.lower(),
            unset=unset,
            acts=rules.method_has_field(f"outer.{name}"),
            offered=rules.offer_several_ranks(*values),
            usual=rules.never,
            live=ROUNDS if name in _TURNING else "",
            at_start=_OUTER_AT_START.get(name, ""),
            changes=("loss",) if name not in ("fragments", "overlap") else ("speed", "loss"),
            trade=trade,
        )
        for name, title, unset, values, trade in OUTER_DETAILS
    },
    "overlap.bucket_mb": KnobFacts(
        "Bucket size, MB",
        "bucket MB",
        extend=True,
        acts=rules.buckets,
        offered=rules.offer_several_ranks(1.0, 5.0, 25.0),
        live=GRADIENTS,
        changes=("speed",),
        trade="small buckets leave early, large ones cost fewer calls",
    ),
    "overlap.prefetch": KnobFacts(
        "Layers gathered ahead",
        "prefetched layers",
        acts=rules.shards,
        at_rest=0,
        plain=0,
        offered=rules.offer_several_ranks(0, 1, 2),
        usual=rules.never,
        live=GRADIENTS,
        changes=("speed", "memory"),
        trade="weights arrive in time, memory for them",
    ),
    "overlap.fused_gathers": KnobFacts(
        "Layers gathered in one message",
        "fused gathers",
        acts=lambda now: rules.shards(now) and now["compression.weights"] == "none",
        at_rest=True,
        plain=True,
        offered=rules.offer_several_ranks(True, False),
        usual=rules.never,
        live=GRADIENTS,
        changes=("speed", "memory"),
        trade="apart, each parameter is a message of its own",
    ),
    "overlap.gather_with_optimizer": KnobFacts(
        "Gather beside the update",
        "gather beside update",
        acts=lambda now: rules.reduces(now) and now["parallel.zero_stage"] == 1,
        at_rest=False,
        plain=False,
        offered=rules.offer_several_ranks(False, True),
        usual=rules.never,
        live=UPDATES,
        changes=("speed",),
        trade="weights travel while others are updated",
    ),
    "overlap.tp_chunks": KnobFacts(
        "Tensor parallel in chunks",
        "tp chunks",
        acts=rules.splits_matrices,
        at_rest=1,
        plain=1,
        offered=rules.offer_several_ranks(1, 2, 4),
        usual=rules.never,
        live=PRODUCTS,
        changes=("speed",),
        trade="messages beside computation, smaller products",
    ),
    "overlap.delay": KnobFacts(
        "Steps gradients come late",
        "late gradients",
        acts=rules.buckets,
        at_rest=0,
        plain=0,
        exact=0,
        offered=rules.offer_several_ranks(0, 1),
        usual=rules.never,
        at_start="a gradient of the step before is under way; it would take a step with two updates or none",
        changes=("speed", "memory", "loss"),
        trade="gradients travel beside the next step and come a step late",
    ),
    "compression.weights": KnobFacts(
        "Weights sent in",
        "weights sent in",
        acts=rules.shards,
        at_rest="none",
        plain="none",
        exact="none",
        offered=rules.offer_several_ranks("none", "int8"),
        usual=rules.never,
        live=GRADIENTS,
        changes=("speed", "loss"),
        trade="fewer bytes to gather, weights are inexact",
    ),
    "compression.experts": KnobFacts(
        "Expert tokens sent in",
        "tokens sent in",
        acts=lambda now: bool(now["parallel.ep"] > 1),
        at_rest="none",
        plain="none",
        exact="none",
        offered=rules.offer_experts(rules.token_formats),
        usual=rules.never,
        at_start="exchanges of tokens are made with the model; it would take ones that ask in every forward",
        changes=("speed", "loss"),
        trade="fewer bytes of tokens, activations are inexact",
    ),
    "compression.expert_rate": KnobFacts(
        "Bytes of expert tokens sent",
        "expert rate",
        acts=rules.buckets_tokens,
        offered=rules.offer_experts(rules.offer_several_ranks(0.13, 0.2, 0.4)),
        usual=rules.never,
        at_start="as the exchanges, which have it",
        changes=("speed", "loss"),
        loses_more="lower",
        trade="fewer tokens travel, each for more others",
    ),
    "compression.expert_residual": KnobFacts(
        "Distances of expert tokens added",
        "token residual",
        acts=rules.buckets_tokens,
        offered=rules.offer_experts(rules.offer_several_ranks(False, True)),
        usual=rules.never,
        at_start="as the exchanges, which have it",
        changes=("loss",),
        trade="a token's own part passes its expert by instead of being left out; lost more wherever it was measured",
    ),
}
