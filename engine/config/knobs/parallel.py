"""Knobs of which rank does what: degrees, sharding, placement, and the cards that groups send through. A part of the
catalogue.
"""

from __future__ import annotations

from engine.config.knobs import conditions, suggestions
from engine.config.knobs.facts import AUTO, GRADIENTS, Context, KnobFacts, Refusal

#: Why no degree turns while a run goes.
_OTHER_PARTS = (
    "other ranks would hold other parts of the model; it would take new groups, and moving weights and state"
)

PARALLEL: dict[str, KnobFacts] = {
    "parallel.tp": KnobFacts(
        "Tensor parallel (tp)",
        degree=True,
        searched_by_default=True,
        suggested=suggestions.of_the_decoder(suggestions.degrees),
        why_only_at_start=_OTHER_PARTS,
        changes=("speed", "memory"),
        trade="splits matrices: less memory a rank, messages in every layer",
        refused={
            Context.FROZEN_MODEL: "factors are not split over tp",
            Context.WHOLE_DOCUMENTS: "",
        },
    ),
    "parallel.pp": KnobFacts(
        "Pipeline parallel (pp)",
        degree=True,
        searched_by_default=True,
        suggested=suggestions.degrees,
        why_only_at_start=_OTHER_PARTS,
        changes=("speed", "memory"),
        trade="splits layers: less memory a rank, ranks wait for each other",
        refused={
            Context.FROZEN_MODEL: "a frozen model stays in one stage",
            Context.TASKS: "pp={value} has stages meet at every micro-batch",
        },
    ),
    "parallel.cp": KnobFacts(
        "Context parallel (cp)",
        degree=True,
        suggested=suggestions.of_the_decoder(suggestions.degrees),
        searched_by_default=suggestions.splits_sequences,
        why_not_searched="sequences are short, and a step has one for every rank",
        why_only_at_start=_OTHER_PARTS,
        changes=("speed", "memory"),
        trade="splits sequences: less memory for activations, keys and values travel",
        refused={
            Context.FROZEN_MODEL: "what is trained sees whole sequences",
        },
    ),
    "parallel.cp_method": KnobFacts(
        "Context-parallel method",
        "cp method",
        always_in_label=True,
        acts=lambda now: bool(now["parallel.cp"] > 1),
        suggested=suggestions.of_the_decoder(suggestions.on_several_ranks("ring", "ulysses")),
        searched_by_default=suggestions.splits_sequences,
        why_not_searched="sequences are short, and a step has one for every rank",
        why_only_at_start="the groups of its messages are made with the model; it would take both kinds at the start",
        changes=("speed",),
        trade="a ring sends keys and values on, ulysses exchanges heads",
    ),
    "parallel.ep": KnobFacts(
        "Expert parallel (ep)",
        degree=True,
        acts=lambda now: now["model.experts"] is not None and conditions.shares_data(now),
        reset_when_inactive=True,
        searched_by_default=True,
        suggested=suggestions.with_experts(suggestions.degrees),
        why_not_searched="the model has no experts",
        why_only_at_start=_OTHER_PARTS,
        changes=("speed", "memory"),
        trade="spreads experts: less memory a rank, tokens travel",
        refused={
            Context.TASKS: "ep={value} sends tokens at every micro-batch",
        },
    ),
    "parallel.zero_stage": KnobFacts(
        "ZeRO stage",
        "ZeRO",
        acts=conditions.shares_data,
        neutral_default=True,
        reset_when_inactive=False,  # to what the space has
        searched_by_default=True,
        suggested=suggestions.on_several_ranks(0, 1, 2, 3),
        reset_order=2,
        live=GRADIENTS,
        changes=("speed", "memory"),
        trade="shares optimizer (1), gradients (2), weights (3): less memory, more messages",
        refused={
            Context.OWN_STEP: "updates whole parameters",
            Context.TASKS: Refusal("zero_stage={value} gathers at every micro-batch", legal=(1,)),
            Context.EXPERT_SLOTS: "needs every expert's own gradient and update on its rank",
        },
    ),
    "parallel.shard_ranks": KnobFacts(
        "Ranks per sharded copy",
        "shard ranks",
        degree=True,
        unset="all",
        acts=conditions.shards,
        neutral_default=True,
        suggested=lambda search: (
            [None, *(width for width in search.degrees[1:-1] if width <= suggestions.WIDEST_SHARD)]
            if search.ranks > 1
            else None
        ),
        searched_by_default=lambda search: search.ranks >= suggestions.MANY_RANKS,
        why_not_searched="there are few ranks",
        why_only_at_start=_OTHER_PARTS,
        changes=("speed", "memory"),
        trade="fewer ranks a copy: messages stay near, more memory",
    ),
    "parallel.reduce_every_micro_batch": KnobFacts(
        "Reduce gradients every micro-batch",
        "reduce every micro-batch",
        acts=conditions.shards,
        neutral_default=True,
        suggested=suggestions.on_several_ranks(False, True),
        live=GRADIENTS,
        changes=("speed", "memory"),
        trade="less memory for gradients, as many more messages",
    ),
    "parallel.tp_regather": KnobFacts(
        "Regather inputs in backward (tp)",
        "tp regather",
        acts=conditions.splits_matrices,
        inactive_problem="with tp=1 nothing is gathered; set it to false or raise tp",
        neutral_default=True,
        suggested=suggestions.on_several_ranks(False, True),
        why_only_at_start="it is built into each matrix product; it would take products that ask in every forward",
        changes=("speed", "memory"),
        trade="less memory for activations, one more gather in backward",
        not_predicted="the second gathers are not counted",
        refused={
            Context.PARTIAL_PRODUCTS: "what tp gathers again is kept in slices",
            Context.ACTIVATION_BUDGET: "blocks that gather again keep another size",
        },
    ),
    "parallel.tp_replicated": KnobFacts(
        "Matrices replicated over tp",
        "replicated over tp",
        unset="none",
        acts=conditions.splits_matrices,
        inactive_problem="with tp=1 nothing is split; leave it out or raise tp",
        neutral_default=True,
        suggested=suggestions.of_the_decoder(
            suggestions.without_experts(suggestions.on_several_ranks(None, AUTO))
        ),
        searched_by_default=suggestions.splits_sequences,
        why_not_searched="sequences are short, and a step has one for every rank",
        why_only_at_start="matrices would be gathered or cut on every rank; it would take a checkpoint in between",
        changes=("speed", "memory"),
        trade="fewer messages of activations; gradients of these matrices are summed over tp, and take its memory",
        refused={
            Context.OTHER_MODEL: "names matrices of the built-in decoder",
            Context.TRAINED_SLICE: "matrices that are whole on every rank are not cut",
        },
    ),
    "parallel.placement": KnobFacts(
        "Rank placement",
        "placement",
        unset="in order",
        acts=conditions.has_several_ranks,
        reset_when_inactive=True,  # not neutral: where a machine's ranks stand is as the base has it
        searched_by_default=True,
        suggested=suggestions.placements,
        why_not_searched="all links are alike",
        why_only_at_start="ranks would change places; it would take moving all that they hold",
        changes=("speed",),
        trade="ranks that send most to each other lie near each other",
        not_predicted="seconds are those of ranks in order",
    ),
    "network.inside": KnobFacts(
        "Network inside islands",
        "network inside islands",
        unset="by membership",
        acts=conditions.has_several_ranks,
        reset_when_inactive=True,
        suggested=suggestions.island_networks,
        why_not_searched="groups of one island have the second card that hosts of the lab have for them",
        why_only_at_start="groups would have to be made anew, over other connections",
        changes=("speed",),
        trade="groups of one island leave the card that reaches all hosts to the others",
    ),
    "network.between": KnobFacts(fixed_in_study=True),
    "network.island_devices": KnobFacts(fixed_in_study=True),
}
#: Of models with tasks, experts, many words or whole documents.
PARALLEL_OF_SOME: dict[str, KnobFacts] = {
    "parallel.task_ranks": KnobFacts(
        "Ranks per task",
        "task ranks",
        acts=lambda now: bool(now["data.tasks"]) and bool(now["parallel.dp"] > 1),
        neutral_default=True,
        suggested=lambda search: ["proportional", "even"] if search.base.data.tasks else None,
        why_not_searched="in proportion no rank waits longer than for one micro-batch",
        why_only_at_start="ranks would go on with other micro-batches; it would take deals that change in a run",
        changes=("speed",),
        trade="even: a rank serves one task, and waits for those of larger ones",
    ),
    "parallel.ep_island": KnobFacts(
        "Ep ranks per island",
        "ep ranks per island",
        unset="none",
        acts=lambda now: bool(now["parallel.ep"] > 2),
        neutral_default=True,
        searched_by_default=True,
        suggested=suggestions.islands_of_experts,
        why_not_searched="there are no experts on several islands",
        why_only_at_start="the groups of its messages are made with the model; it would take both kinds at the start",
        changes=("speed",),
        trade="fewer and longer messages between islands; inside of them rows travel once more",
    ),
    "parallel.embedding": KnobFacts(
        "Embedding split",
        "embedding",
        acts=conditions.may_split_columns,
        neutral_default=True,
        suggested=suggestions.of_the_decoder(suggestions.on_several_ranks("replicated", "columns")),
        searched_by_default=suggestions.has_many_words,
        why_not_searched="there are few words: the embedding's gradient is small",
        why_only_at_start="columns would change ranks; it would take moving weights and state",
        changes=("speed", "memory"),
        trade="each data rank holds some columns: rows and their gradients are exchanged, and no gradient of the table",
        not_predicted="seconds are those of a whole embedding; --simulate plays its messages",
        refused={
            Context.OTHER_MODEL: "splits the built-in decoder's embedding",
            Context.FROZEN_MODEL: "a frozen embedding sends no gradient that could be spared",
            Context.WHOLE_DOCUMENTS: "",
            Context.TASKS: "columns are exchanged at every micro-batch",
        },
    ),
    "parallel.sequence_groups": KnobFacts(
        "Ranks per document",
        "sequence groups",
        acts=lambda now: bool(now["parallel.dp"] > 1),
        reset_when_inactive=True,
        searched_by_default=True,
        suggested=suggestions.groups_of_documents,
        why_not_searched="samples are windows of text",
        why_only_at_start="groups are made and measured as a run starts; it would take both kinds at the start",
        changes=("speed", "memory"),
        trade="long documents fit and ranks are through together; attention exchanges tokens and heads",
    ),
}
#: What follows from other keys.
DERIVED: dict[str, KnobFacts] = {
    "parallel.dp": KnobFacts(derived_from_keys=True),
    "parallel.world_size": KnobFacts(derived_from_keys=True, outside_arithmetic=True),
}
