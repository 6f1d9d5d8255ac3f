"""Knobs of what is learned: batch, learning rate, optimizer, and which parts of a model are trained.

A part of the catalogue.
"""

from __future__ import annotations

from engine.config.formulas.learning import OPTIMIZERS
from engine.config.knobs import suggestions
from engine.config.knobs.facts import ACTIVATIONS, SCHEDULE, Context, KnobFacts, Search, Values

#: Why none of the batch and the learning rate turns while a run goes.
_LEARNED_OTHERWISE = (
    "steps before and after would not have learned alike, and the learning rate follows the steps of a run"
)
KINDS = ("none", "lora", "losa")
_RANKS = (4, 8, 16)


def _may_freeze(now: Values) -> bool:
    """Where there is a checkpoint, and a rank has all of a stage."""
    whole = now["parallel.tp"] == 1 and now["parallel.pp"] == 1 and now["parallel.cp"] == 1
    return now["train.resume"] is not None and whole and now["parallel.zero_stage"] < 2


def _adapts(now: Values) -> bool:
    return _may_freeze(now) and now["train.adapt"] != "none"


def _from_checkpoint(search: Search, values: tuple[str | int, ...]) -> list[str | int] | None:
    return list(values) if search.base.train.resume is not None else None


MICRO_BATCH: dict[str, KnobFacts] = {
    "batch.micro_batch": KnobFacts(
        "Micro-batch",
        "micro-batch",
        user_extendable=True,
        searched_by_default=True,
        suggested=suggestions.micro_batches,
        live=SCHEDULE,
        changes=("speed", "memory"),
        trade="larger products, more memory, fewer micro-batches to fill a pipeline",
        alters_numbers=True,
        in_budget_plan=True,
    ),
}
#: What a step trains of a model.
TRAINED_PARTS: dict[str, KnobFacts] = {
    "train.slice_keep": KnobFacts(
        "Trained share of heads and width",
        "trained slice",
        neutral_default=True,
        suggested=suggestions.of_the_decoder(suggestions.anywhere(1.0, 0.75)),
        live=ACTIVATIONS,
        changes=("speed", "memory", "loss"),
        loses_more="lower",
        trade="less is computed, kept and sent in a step, which trains a part of each layer",
        product_share=True,
        not_predicted="seconds are those of whole matrices",
        refused={
            Context.FROZEN_MODEL: "factors are not cut",
            Context.WHOLE_DOCUMENTS: "",
        },
    ),
    "train.adapt": KnobFacts(
        "Adapter for a frozen model",
        "adapter",
        acts=_may_freeze,
        neutral_default=True,
        suggested=lambda search: _from_checkpoint(search, KINDS),
        why_only_at_start="what is frozen has no gradients; it would take buckets and an optimizer for all of it",
        changes=("speed", "memory", "loss"),
        reset_order=9,
        trade="gradients, their messages and the optimizer are of a few factors; what can be learned is of low rank",
        not_predicted="seconds are those of training everything; bytes and memory are its own",
        refused={
            Context.WHOLE_DOCUMENTS: "",
        },
    ),
    "train.adapt_rank": KnobFacts(
        "Adapter rank",
        "adapter rank",
        acts=_adapts,
        suggested=lambda search: _from_checkpoint(search, _RANKS),
        why_only_at_start="factors have that many rows as the model is made; it would take new ones",
        changes=("speed", "memory", "loss"),
        trade="more can be learned; more is sent, kept and saved",
    ),
}


def _optimizers(offered: bool) -> list[str]:
    return [name for name, facts in OPTIMIZERS.items() if facts.offered == offered]


LEARNING: dict[str, KnobFacts] = {
    "batch.global_batch": KnobFacts(
        "Global batch",
        "global batch",
        alters_learning=True,
        searched_by_default=True,
        suggested=suggestions.global_batches,
        why_only_at_start=_LEARNED_OTHERWISE,
        changes=("speed", "memory", "loss"),
        trade="larger: fewer messages a token, fewer updates",
    ),
    "batch.ramp_from": KnobFacts(
        "Initial batch",
        "initial batch",
        alters_learning=True,
        suggested=suggestions.first_batches,
        why_only_at_start=_LEARNED_OTHERWISE,
        changes=("speed", "loss"),
        trade="small batches teach most a token at first, whole ones later",
        refused={
            Context.WHOLE_DOCUMENTS: "",
            Context.TASKS: "shares are of one batch, and batch.ramp_from has it grow",
        },
    ),
    "batch.ramp_share": KnobFacts(
        "Batch ramp-up steps",
        "batch ramp-up",
        alters_learning=True,
        acts=lambda now: now["batch.ramp_from"] not in (None, now["batch.global_batch"]),
        reset_when_inactive=True,
        suggested=suggestions.ramp_shares,
        why_only_at_start=_LEARNED_OTHERWISE,
        changes=("speed", "loss"),
        trade="longer: more updates, fewer of a whole batch",
    ),
    "train.learning_rate": KnobFacts(
        "Learning rate",
        "learning rate",
        alters_learning=True,
        searched_by_default=True,
        suggested=suggestions.learning_rates,
        why_only_at_start=_LEARNED_OTHERWISE,
        changes=("loss",),
        trade="larger steps, until they are too large",
    ),
    "train.learning_rate_warmup": KnobFacts(
        "Warm-up steps",
        "warm-up steps",
        alters_learning=True,
        suggested=suggestions.warmups,
        why_only_at_start=_LEARNED_OTHERWISE,
        changes=("loss",),
        trade="the learning rate rises slowly: larger ones are safe",
    ),
    "train.learning_rate_schedule": KnobFacts(
        "Learning-rate schedule",
        "learning-rate schedule",
        alters_learning=True,
        suggested=lambda search: ["constant", "linear", "cosine", "one_cycle"] if search.in_time else None,
        why_only_at_start=_LEARNED_OTHERWISE,
        changes=("loss",),
        trade="a falling rate ends lower, and knows the number of steps",
    ),
    "train.learning_rate_scaling": KnobFacts(
        "Learning-rate scaling with batch",
        "rate scaling",
        alters_learning=True,
        acts=lambda now: now["train.learning_rate_batch"] not in (None, now["batch.global_batch"]),
        reset_when_inactive=True,
        suggested=suggestions.scalings,
        why_only_at_start=_LEARNED_OTHERWISE,
        changes=("loss",),
        trade="a larger batch takes fewer, larger steps: in a line while it rises slowly, by the root for Adam",
    ),
}
OPTIMIZER: dict[str, KnobFacts] = {
    "train.optimizer": KnobFacts(
        "Optimizer",
        "optimizer",
        alters_learning=True,
        suggested=lambda search: _optimizers(offered=True) if search.in_time else None,
        unselected_values=lambda search: _optimizers(offered=False) if search.in_time else [],
        why_only_at_start=_LEARNED_OTHERWISE,
        changes=("speed", "memory", "loss"),
        trade="each has learning rates of its own; sgd keeps least, muon wants whole matrices",
    ),
}
