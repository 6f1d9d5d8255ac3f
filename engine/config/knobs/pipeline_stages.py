"""Knobs of a pipeline: its schedule, its stages, and what waits between them. A part of the catalogue."""

from __future__ import annotations

from engine.config.knobs import facts as rules
from engine.config.knobs.facts import AUTO, SCHEDULE, KnobFacts, Search
from engine.schedules.registry import SCHEDULES


def _stages_per_rank(search: Search) -> list[int] | None:
    """One and two, and what schedules are shown with that studies offer and that leave a choice."""
    open_ones = [kind for kind in SCHEDULES.values() if kind.offered and len(kind.chunks) > 1]
    return sorted({1, 2, *(kind.shown_chunks for kind in open_ones)}) if search.ranks > 1 else None


PIPELINE_STAGES: dict[str, KnobFacts] = {
    "schedule.kind": KnobFacts(
        "Pipeline schedule",
        "schedule",
        "schedule",
        named_anyway=True,
        acts=rules.pipelines,
        offered=lambda search: (
            [name for name, kind in SCHEDULES.items() if kind.offered] if search.ranks > 1 else None
        ),
        rare=rules.not_offered(SCHEDULES),
        live=SCHEDULE,
        decides=5,
        changes=("speed", "memory"),
        trade="how long pipeline ranks wait, and how many activations they keep",
    ),
    "schedule.chunks": KnobFacts(
        "Stages per rank",
        "stages per rank",
        acts=lambda now: rules.pipelines(now) and len(SCHEDULES[now["schedule.kind"]].chunks) > 1,
        offered=_stages_per_rank,
        at_start="layers would change ranks; it would take moving weights and state",
        changes=("speed", "memory"),
        trade="more, smaller stages: shorter waits, more messages and activations",
    ),
    "schedule.stage_layers": KnobFacts(
        "Layers of each stage",
        "stage layers",
        unset="even",
        automatic=True,
        acts=lambda now: rules.pipelines(now) and now["schedule.chunks"] == 1,
        at_rest=None,
        plain=None,
        offered=rules.offer_decoder(rules.offer_several_ranks(None, AUTO)),
        at_start="layers would change ranks; it would take moving weights and state",
        changes=("speed", "memory"),
        trade="fewer layers beside the head: stages take equally long, the first ones hold more",
    ),
    "schedule.skip_share": KnobFacts(
        "Share of stages skipped",
        "skipped stages",
        acts=rules.may_skip,
        at_rest=0.0,
        plain=0.0,
        exact=0.0,
        offered=rules.offer_decoder(rules.offer_several_ranks(0.0, 0.125, 0.25)),
        usual=rules.never,
        live=SCHEDULE,
        decides=8,
        changes=("speed", "memory", "loss"),
        trade="each micro-batch leaves out stages: less is computed, and each layer learns from fewer tokens",
    ),
    "schedule.skip_order": KnobFacts(
        "Order of skipping",
        "order of skipping",
        acts=lambda now: rules.may_skip(now) and now["schedule.skip_share"] > 0,
        at_rest="planned",
        plain="planned",
        offered=rules.offer_decoder(rules.offer_several_ranks("planned", "unplanned")),
        usual=rules.never,
        live=SCHEDULE,
        changes=("speed", "memory"),
        trade="planned: micro-batches do not collide; unplanned: they wait for each other",
    ),
    "schedule.registers": KnobFacts(
        "Registers between stages",
        "registers",
        unset="no bound",
        acts=rules.pipelines,
        at_rest=None,
        plain=None,
        offered=rules.offer_decoder(rules.offer_several_ranks(None, 1, 2, 4)),
        usual=rules.never,
        live=SCHEDULE,
        changes=("speed", "memory"),
        trade="so many messages wait between two stages: with fewer less memory is held, and a fast stage waits",
    ),
}
