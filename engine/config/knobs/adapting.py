"""Knobs of what is trained beside a frozen model. A part of the catalogue."""

from __future__ import annotations

from engine.config.knobs.facts import KnobFacts, Search, Values, never

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


ADAPTING: dict[str, KnobFacts] = {
    "train.adapt": KnobFacts(
        "Trained beside a frozen model",
        "adapted by",
        acts=_may_freeze,
        at_rest="none",
        plain="none",
        exact="none",
        offered=lambda search: _from_checkpoint(search, KINDS),
        usual=never,
        changes=("speed", "memory", "loss"),
        decides=9,
        trade="gradients, their messages and the optimizer are of a few factors; what can be learned is of low rank",
    ),
    "train.adapt_rank": KnobFacts(
        "Rank of what is trained beside it",
        "adapter rank",
        acts=_adapts,
        offered=lambda search: _from_checkpoint(search, _RANKS),
        usual=never,
        changes=("speed", "memory", "loss"),
        trade="more can be learned; more is sent, kept and saved",
    ),
}
