"""Settings that no study turns, where there is more to say of them than their section does. A part of the catalogue."""

from __future__ import annotations

from engine.config.knobs.facts import Context, KnobFacts

_NO_CHECKPOINT = "has state that no checkpoint knows"

SETTINGS: dict[str, KnobFacts] = {
    "model.workload": KnobFacts(
        fixed_in_study=True,
        refused={
            Context.TASKS: "texts are read by the built-in decoder alone",
            Context.PARTIAL_PRODUCTS: "only the decoder's matrices can",
        },
    ),
    "model.experts": KnobFacts(
        fixed_in_study=True,
        not_predicted="tokens sent to them, and their uneven number, are not modelled",
        refused={
            Context.FROZEN_MODEL: "only dense blocks have factors",
            Context.ACTIVATION_BUDGET: "tokens per expert, and their bytes, change from step to step",
        },
    ),
    "model.layer_groups": KnobFacts(
        fixed_in_study=True,
        refused={
            Context.FROZEN_MODEL: "layers that share matrices would have factors of their own",
            Context.TRAINED_SLICE: "layers that share parameters would be cut differently",
            Context.EXPERT_SLOTS: "needs experts of its own for each layer",
        },
    ),
    "model.tied_embeddings": KnobFacts(
        fixed_in_study=True, refused={Context.FROZEN_MODEL: "a frozen head is a matrix of its own"}
    ),
    "model.capacity_factor": KnobFacts(
        fixed_in_study=True,
        alters_learning=True,
        refused={
            Context.WHOLE_DOCUMENTS: "goes without whole documents, as ranks have unequal numbers of tokens"
        },
    ),
    "model.balance_weight": KnobFacts(fixed_in_study=True, alters_learning=True),
    "data.path": KnobFacts(
        fixed_in_study=True, refused={Context.TASKS: "each task has a text of its own, and data.path is set"}
    ),
    "data.documents": KnobFacts(
        fixed_in_study=True, refused={Context.OTHER_MODEL: "is of the built-in decoder"}
    ),
    "precision": KnobFacts(
        fixed_in_study=True,
        alters_learning=True,
        refused={Context.OWN_STEP: "computes in the precision of its parameters"},
    ),
    **dict.fromkeys(("device", "memory.limit_gib", "tokens_told"), KnobFacts(fixed_in_study=True)),
    "checkpoint.every_steps": KnobFacts(refused={Context.OWN_STEP: _NO_CHECKPOINT}),
    "train.resume": KnobFacts(
        fixed_in_study=True, outside_steps=True, refused={Context.OWN_STEP: _NO_CHECKPOINT}
    ),
}
#: How long a run is, and what of it is measured.
EXTENT: dict[str, KnobFacts] = dict.fromkeys(
    ("train.steps", "train.warmup", "train.validation_batches"),
    KnobFacts(fixed_in_study=True, outside_steps=True),
)
#: How long anybody waits, and how often held-out text is looked at.
TIMEOUTS: dict[str, KnobFacts] = dict.fromkeys(
    ("train.validate_every", "train.timeout_seconds", "train.step_timeout_seconds"),
    KnobFacts(fixed_in_study=True, outside_arithmetic=True),
)
