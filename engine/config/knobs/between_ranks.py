"""Knobs of what ranks send each other: compression, outer loops, overlap. A part of the catalogue.

``COMPRESSION_DETAILS`` and ``OUTER_DETAILS`` are tables of those that are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.config.compression_methods import METHODS
from engine.config.knobs import facts as rules
from engine.config.knobs.facts import GRADIENTS, PRODUCTS, ROUNDS, UNSAID, UPDATES, Change, KnobFacts, Values
from engine.config.outer_methods import OUTER_METHODS

#: The word for no value of what a method sets by itself.
BY_METHOD = "as the method has it"
_SPEED_LOSS: tuple[Change, ...] = ("speed", "loss")
_MEMORY_LOSS: tuple[Change, ...] = ("memory", "loss")
#: Fields of the section ``compression`` that a study turns if somebody asks for it: name, title, when each acts,
#: values, what it changes, and the trade.
COMPRESSION_DETAILS: tuple[
    tuple[str, str, Callable[[Values], bool], tuple[Any, ...], tuple[Change, ...], str], ...
] = (
    ("bucket_values", "Values a scale", rules.with_field_of_method("compression.bucket_values"),
     (256, 1024, 4096), _SPEED_LOSS, "fewer share one: finer scales, a few more bytes"),
    ("stochastic", "Stochastic rounding", rules.with_field_of_method("compression.stochastic"),
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

BETWEEN_RANKS: dict[str, KnobFacts] = {
    "parallel.ep_island": KnobFacts(
        "Ranks of ep on an island",
        "ep island",
        unset="none",
        acts=lambda now: bool(now["parallel.ep"] > 2),
        at_rest=None,
        plain=None,
        offered=lambda search: rules.islands_of_experts(search) if rules.has_uneven_links(search) else None,
        usual=rules.never,
        left_alone="it pays with many ranks of ep on several islands alone",
        changes=("speed",),
        trade="fewer and longer messages between islands; inside of them rows travel once more",
    ),
    "parallel.embedding": KnobFacts(
        "Embedding",
        "embedding",
        acts=rules.may_split_columns,
        at_rest="replicated",
        plain="replicated",
        offered=rules.of_decoder(rules.between_ranks("replicated", "columns")),
        usual=rules.has_many_words,
        left_alone="there are few words: the embedding's gradient is small",
        changes=("speed", "memory"),
        trade="each data rank holds some columns: rows and their gradients are exchanged, and no gradient of the table",
    ),
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
        acts=rules.with_field_of_method("compression.ratio"),
        offered=lambda search: {"low": 0.01, "high": 0.25, "log": True} if search.ranks > 1 else None,
        live=GRADIENTS,
        changes=("speed", "loss"),
        loses_more="lower",
        trade="fewer bytes, more is left for later steps",
    ),
    "compression.rank": KnobFacts(
        "PowerSGD rank",
        "rank",
        named_anyway=True,
        acts=rules.with_field_of_method("compression.rank"),
        offered=rules.between_ranks(1, 2, 4, 8, 16),
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
            offered=rules.between_ranks(*values),
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
        changes=("speed", "memory", "loss"),
        trade="ranks meet once a round, weights drift apart meanwhile",
    ),
    "outer.period": KnobFacts(
        "Steps a round",
        "steps a round",
        "outer_period",
        named_anyway=True,
        acts=rules.has_outer,
        offered=rules.between_ranks(2, 4, 8, 12),
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
        changes=("speed", "loss"),
        trade="fewer replicas: more meetings inside, less drift",
    ),
    **{
        f"outer.{name}": KnobFacts(
            title,
            title.lower(),
            unset=unset,
            acts=rules.with_field_of_method(f"outer.{name}"),
            offered=rules.between_ranks(*values),
            usual=rules.never,
            live=ROUNDS if name in _TURNING else "",
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
        offered=rules.between_ranks(1.0, 5.0, 25.0),
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
        offered=rules.between_ranks(0, 1, 2),
        usual=rules.never,
        live=GRADIENTS,
        changes=("speed", "memory"),
        trade="weights arrive in time, memory for them",
    ),
    "overlap.gather_with_optimizer": KnobFacts(
        "Gather beside the update",
        "gather beside update",
        acts=lambda now: rules.reduces(now) and now["parallel.zero_stage"] == 1,
        at_rest=False,
        plain=False,
        offered=rules.between_ranks(False, True),
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
        offered=rules.between_ranks(1, 2, 4),
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
        offered=rules.between_ranks(0, 1),
        usual=rules.never,
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
        offered=rules.between_ranks("none", "int8"),
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
        offered=rules.of_experts(rules.token_formats),
        usual=rules.never,
        changes=("speed", "loss"),
        trade="fewer bytes of tokens, activations are inexact",
    ),
    "compression.expert_rate": KnobFacts(
        "Bytes of expert tokens sent",
        "expert rate",
        acts=rules.buckets_tokens,
        offered=rules.of_experts(rules.between_ranks(0.13, 0.2, 0.4)),
        usual=rules.never,
        changes=("speed", "loss"),
        loses_more="lower",
        trade="fewer tokens travel, each for more others",
    ),
    "compression.expert_residual": KnobFacts(
        "Distances of expert tokens added",
        "token residual",
        acts=rules.buckets_tokens,
        offered=rules.of_experts(rules.between_ranks(True, False)),
        usual=rules.never,
        changes=("loss",),
        trade="a token's own part passes its expert by instead of being left out",
    ),
}
