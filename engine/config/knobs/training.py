"""Knobs of what is learned: batch, learning rate, optimizer, and which parts of a model are trained.

A part of the catalogue.
"""

from __future__ import annotations

from engine.config.formulas.learning import OPTIMIZERS
from engine.config.knobs import facts as rules
from engine.config.knobs.facts import ACTIVATIONS, SCHEDULE, KnobFacts, Search, Values

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
        extend=True,
        offered=rules.micro_batches,
        live=SCHEDULE,
        changes=("speed", "memory"),
        trade="larger products, more memory, fewer micro-batches to fill a pipeline",
    ),
}
#: What a step trains of a model.
TRAINED_PARTS: dict[str, KnobFacts] = {
    "train.slice_keep": KnobFacts(
        "Share of heads and width trained",
        "trained slice",
        at_rest=1.0,
        plain=1.0,
        exact=1.0,
        offered=rules.offer_decoder(rules.always_offered(1.0, 0.75)),
        usual=rules.never,
        live=ACTIVATIONS,
        changes=("speed", "memory", "loss"),
        loses_more="lower",
        trade="less is computed, kept and sent in a step, which trains a part of each layer",
    ),
    "train.adapt": KnobFacts(
        "Trained beside a frozen model",
        "adapted by",
        acts=_may_freeze,
        at_rest="none",
        plain="none",
        exact="none",
        offered=lambda search: _from_checkpoint(search, KINDS),
        usual=rules.never,
        at_start="what is frozen has no gradients; it would take buckets and an optimizer for all of it",
        changes=("speed", "memory", "loss"),
        decides=9,
        trade="gradients, their messages and the optimizer are of a few factors; what can be learned is of low rank",
    ),
    "train.adapt_rank": KnobFacts(
        "Rank of what is trained beside it",
        "adapter rank",
        acts=_adapts,
        offered=lambda search: _from_checkpoint(search, _RANKS),
        usual=rules.never,
        at_start="factors have that many rows as the model is made; it would take new ones",
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
        offered=rules.global_batches,
        at_start=_LEARNED_OTHERWISE,
        changes=("speed", "memory", "loss"),
        trade="larger: fewer messages a token, fewer updates",
    ),
    "batch.ramp_from": KnobFacts(
        "Batch of the first steps",
        "first batch",
        alters_learning=True,
        offered=rules.first_batches,
        usual=rules.never,
        at_start=_LEARNED_OTHERWISE,
        changes=("speed", "loss"),
        trade="small batches teach most a token at first, whole ones later",
    ),
    "batch.ramp_share": KnobFacts(
        "Steps with a growing batch",
        "growing batch",
        alters_learning=True,
        acts=lambda now: now["batch.ramp_from"] not in (None, now["batch.global_batch"]),
        at_rest=0.6,
        offered=rules.ramp_shares,
        usual=rules.never,
        at_start=_LEARNED_OTHERWISE,
        changes=("speed", "loss"),
        trade="longer: more updates, fewer of a whole batch",
    ),
    "train.learning_rate": KnobFacts(
        "Learning rate",
        "learning rate",
        alters_learning=True,
        offered=rules.learning_rates,
        at_start=_LEARNED_OTHERWISE,
        changes=("loss",),
        trade="larger steps, until they are too large",
    ),
    "train.learning_rate_warmup": KnobFacts(
        "Steps of warm-up",
        "warm-up",
        alters_learning=True,
        offered=rules.warmups,
        usual=rules.never,
        at_start=_LEARNED_OTHERWISE,
        changes=("loss",),
        trade="the learning rate rises slowly: larger ones are safe",
    ),
    "train.learning_rate_schedule": KnobFacts(
        "Learning-rate schedule",
        "schedule of the rate",
        alters_learning=True,
        offered=lambda search: ["constant", "linear", "cosine", "one_cycle"] if search.in_time else None,
        usual=rules.never,
        at_start=_LEARNED_OTHERWISE,
        changes=("loss",),
        trade="a falling rate ends lower, and knows the number of steps",
    ),
    "train.learning_rate_scaling": KnobFacts(
        "Learning rate by batch",
        "rate by batch",
        alters_learning=True,
        acts=lambda now: now["train.learning_rate_batch"] not in (None, now["batch.global_batch"]),
        at_rest="none",
        offered=rules.scalings,
        usual=rules.never,
        at_start=_LEARNED_OTHERWISE,
        changes=("loss",),
        trade="a larger batch takes fewer, larger steps: in a line while it rises slowly, by the root for Adam",
    ),
}
OPTIMIZER: dict[str, KnobFacts] = {
    "train.optimizer": KnobFacts(
        "Optimizer",
        "optimizer",
        alters_learning=True,
        offered=lambda search: _optimizers(offered=True) if search.in_time else None,
        rare=lambda search: _optimizers(offered=False) if search.in_time else [],
        usual=rules.never,
        at_start=_LEARNED_OTHERWISE,
        changes=("speed", "memory", "loss"),
        trade="each has learning rates of its own; sgd keeps least, muon wants whole matrices",
    ),
}
#: How long anybody waits, and how often held-out text is looked at.
PATIENCE: dict[str, KnobFacts] = dict.fromkeys(
    ("train.validate_every", "train.timeout_seconds", "train.step_timeout_seconds"),
    KnobFacts(fixed=True, outside_arithmetic=True),
)
