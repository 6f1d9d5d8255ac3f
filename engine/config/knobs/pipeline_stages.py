"""Knobs of a pipeline: its schedule, its stages, and what waits between them. A part of the catalogue."""

from __future__ import annotations

from engine.config.knobs import conditions, suggestions
from engine.config.knobs.facts import AUTO, SCHEDULE, Context, KnobFacts, Search
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
        always_in_label=True,
        acts=conditions.pipelines,
        searched_by_default=True,
        suggested=lambda search: (
            [name for name, kind in SCHEDULES.items() if kind.offered] if search.ranks > 1 else None
        ),
        unselected_values=suggestions.other_names_of(SCHEDULES),
        live=SCHEDULE,
        reset_order=5,
        changes=("speed", "memory"),
        trade="how long pipeline ranks wait, and how many activations they keep",
        in_budget_plan=True,
    ),
    "schedule.chunks": KnobFacts(
        "Stages per rank",
        "stages per rank",
        acts=lambda now: conditions.pipelines(now) and len(SCHEDULES[now["schedule.kind"]].chunks) > 1,
        searched_by_default=True,
        suggested=_stages_per_rank,
        why_only_at_start="layers would change ranks; it would take moving weights and state",
        changes=("speed", "memory"),
        trade="more, smaller stages: shorter waits, more messages and activations",
        refused={
            Context.OWN_STEP: "has one stage on each rank",
            Context.FROZEN_MODEL: "a frozen model stays in one stage",
            Context.WHOLE_DOCUMENTS: "goes without whole documents, which are one stage's",
            Context.ACTIVATION_BUDGET: "is planned for one stage a rank",
        },
    ),
    "schedule.stage_layers": KnobFacts(
        "Layers per stage",
        "stage layers",
        unset="even",
        acts=lambda now: conditions.pipelines(now) and now["schedule.chunks"] == 1,
        neutral_default=True,
        searched_by_default=True,
        suggested=suggestions.of_the_decoder(suggestions.on_several_ranks(None, AUTO)),
        why_only_at_start="layers would change ranks; it would take moving weights and state",
        changes=("speed", "memory"),
        trade="fewer layers beside the head: stages take equally long, the first ones hold more",
    ),
    "schedule.skip_share": KnobFacts(
        "Share of skipped stages",
        "share of skipped stages",
        acts=conditions.may_skip,
        neutral_default=True,
        suggested=suggestions.of_the_decoder(suggestions.on_several_ranks(0.0, 0.125, 0.25)),
        live=SCHEDULE,
        reset_order=8,
        changes=("speed", "memory", "loss"),
        trade="each micro-batch leaves out stages: less is computed, and each layer learns from fewer tokens",
        in_budget_plan=True,
        not_predicted="seconds are those of all stages; --simulate plays the paths",
        refused={
            Context.OTHER_MODEL: "only the decoder's blocks can be left out",
        },
    ),
    "schedule.skip_order": KnobFacts(
        "Skip order",
        "skip order",
        acts=lambda now: conditions.may_skip(now) and now["schedule.skip_share"] > 0,
        neutral_default=True,
        suggested=suggestions.of_the_decoder(suggestions.on_several_ranks("planned", "unplanned")),
        live=SCHEDULE,
        changes=("speed", "memory"),
        trade="planned: micro-batches do not collide; unplanned: they wait for each other",
        alters_numbers=True,
        in_budget_plan=True,
    ),
    "schedule.registers": KnobFacts(
        "Buffered messages between stages",
        "buffered messages",
        unset="no bound",
        acts=conditions.pipelines,
        neutral_default=True,
        suggested=suggestions.of_the_decoder(suggestions.on_several_ranks(None, 1, 2, 4)),
        live=SCHEDULE,
        changes=("speed", "memory"),
        trade="so many messages wait between two stages: with fewer less memory is held, and a fast stage waits",
        not_predicted="seconds and memory are those without a bound, and without what waits; --simulate plays them",
        refused={
            Context.SKIPPED_STAGES: "micro-batches that skip stages have none",
        },
    ),
}
