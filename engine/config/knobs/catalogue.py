"""Knobs: the keys of a configuration that a search can turn, and all that is said of each. Pure, without torch.

Rules are asked of all of a run's values under their dotted keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.config.environment import SECTION, VARIABLES
from engine.config.knobs import conditions, suggestions
from engine.config.knobs.communication import COMMUNICATION
from engine.config.knobs.facts import ACTIVATIONS, TRAINER, Context, KnobFacts, Refusal, Values
from engine.config.knobs.fixed_settings import EXTENT, SETTINGS, TIMEOUTS
from engine.config.knobs.parallel import DERIVED, PARALLEL, PARALLEL_OF_SOME
from engine.config.knobs.pipeline_stages import PIPELINE_STAGES
from engine.config.knobs.training import LEARNING, MICRO_BATCH, OPTIMIZER, TRAINED_PARTS
from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig
from engine.config.sections import KnobValues

#: Sections that decide what is learned, but for keys whose entries say otherwise.
_MODEL, _LEARNING = "model.", ("data.", "train.")
#: Sections that a fair comparison needs to hold still as a whole.
_FIXED_SECTIONS = (_MODEL, *_LEARNING, "profile.")
#: An environment variable that stays as the machine has it.
UNSET = "unset"
#: Sections whose keys act only beside a value that loses something.
_SECTIONS = ("compression.", "outer.")

#: Why no study turns where experts lie.
_EXPERT_MEMORY = "how much memory experts may take is for people to say"

_NO_FACTS, _FIXED = KnobFacts(), KnobFacts(fixed_in_study=True)
_DEFAULTS = RunConfig().flat()
#: By dotted key, in the order in which forms and spaces have them.
KNOBS: dict[str, KnobFacts] = {
    **PARALLEL,
    **MICRO_BATCH,
    "memory.budget_gib": KnobFacts(
        "Activation budget (GiB)",
        "activation budget",
        "activations_gib",
        unset="none",
        user_extendable=True,
        acts=lambda now: now["memory.block_actions"] is None,
        reset_when_inactive=True,  # not neutral: the baseline has to keep a limit, too
        reset_order=6,
        why_not_searched="how much memory activations may take is for people to say",
        why_only_at_start="blocks are measured before the model is there; it would take measuring them beside it",
        changes=("speed", "memory"),
        trade="the fastest mix of keeping, computing again and copying away, block by block, that fits",
        not_predicted="the plan is made when the run starts; seconds are those of blocks that keep everything",
        refused={
            Context.OTHER_MODEL: Refusal(
                "only the decoder's blocks are known before they run",
                remedy="give memory.block_actions instead",
            ),
            Context.FROZEN_MODEL: "a plan measures blocks that learn",
            Context.WHOLE_DOCUMENTS: "",
            Context.PARTIAL_PRODUCTS: "a plan of activations measures whole products",
        },
    ),
    "memory.block_actions": KnobFacts(
        "Action per block",
        "block actions",
        unset="as said for all",
        neutral_default=True,
        live=ACTIVATIONS,
        why_not_searched="memory.budget_gib finds them",
        changes=("speed", "memory"),
        trade="each block keeps, computes again or copies away its activations",
        not_predicted="seconds are those of blocks that keep everything",
        refused={
            Context.FROZEN_MODEL: "activations are few, and stay where they are",
            Context.WHOLE_DOCUMENTS: "",
        },
    ),
    "memory.recompute": KnobFacts(
        "Recompute",
        "recompute",
        always_in_label=True,
        acts=conditions.treats_blocks_alike,
        neutral_default=True,
        searched_by_default=True,
        suggested=suggestions.recomputations,
        live=ACTIVATIONS,
        reset_order=7,
        changes=("speed", "memory"),
        trade="less memory for activations, up to a third more computation",
        refused={
            Context.OTHER_MODEL: Refusal("only the decoder knows its attention core", legal=("full",)),
            Context.FROZEN_MODEL: "a frozen block's backward is not made again",
            Context.BLOCK_ACTIONS: "decides it block by block",
        },
    ),
    "memory.recompute_layers": KnobFacts(
        "Recomputed layers",
        "recomputed layers",
        unset="all",
        acts=lambda now: bool(now["memory.recompute"] != "none"),
        inactive_problem="nothing is recomputed; leave it out, or set memory.recompute to selective or full",
        neutral_default=True,
        suggested=suggestions.parts_of_layers,
        live=ACTIVATIONS,
        why_not_searched="all or nothing is recomputed; a part of the layers is for those who ask",
        changes=("speed", "memory"),
        trade="only some layers: between all and nothing recomputed",
        not_predicted="all layers are taken to be computed again",
    ),
    "memory.offload": KnobFacts(
        "Offload to host memory",
        "offload",
        neutral_default=True,
        suggested=suggestions.anywhere("none", "activations", "optimizer", "both"),
        why_not_searched="slow; for what does not fit otherwise",
        live=ACTIVATIONS,
        changes=("speed", "memory"),
        trade="less memory on the device, copies to the host and back",
        not_predicted="copies to and from the host are not modelled",
        refused={
            Context.OWN_STEP: "keeps what it needs itself",
            Context.FROZEN_MODEL: "activations and state are small, and stay where they are",
            Context.WHOLE_DOCUMENTS: Refusal(legal=("optimizer",)),
            Context.BLOCK_ACTIONS: Refusal(
                "decides block by block where activations go", legal=("optimizer",)
            ),
            Context.EXPERT_SLOTS: Refusal("says already where experts lie", legal=("activations",)),
        },
    ),
    "data.ahead": KnobFacts(
        "Prefetched batches",
        "prefetched batches",
        neutral_default=True,
        suggested=lambda search: None if is_decoder(search.base.model) else [0, 2],
        why_not_searched="helps where steps wait for data, as the verdict input_bound says",
        outside_arithmetic=True,
        why_only_at_start="its thread begins with the run; it would take one that begins and ends between two steps",
        changes=("speed",),
        trade="a thread makes batches while a step computes, and takes a core for it",
        refused={
            Context.WHOLE_DOCUMENTS: "their plan is made ahead already",
        },
    ),
    "memory.expert_slots": KnobFacts(
        "Expert slots",
        unset="none",
        neutral_default=True,
        why_not_searched=_EXPERT_MEMORY,
        trade="seldom chosen experts lie elsewhere, and are fetched",
        why_only_at_start="experts move to their homes as the model is made; it would take moving them back",
        not_predicted="experts are taken to lie where they are used",
        refused={
            Context.WHOLE_DOCUMENTS: "",
        },
    ),
    "memory.expert_home": KnobFacts(
        "Expert storage",
        neutral_default=True,
        why_not_searched=_EXPERT_MEMORY,
        why_only_at_start="experts move to their homes as the model is made; it would take moving them again",
        trade="on disk they take no memory",
    ),
    "memory.expert_ahead": KnobFacts(
        "Expert prefetch",
        neutral_default=True,
        why_not_searched=_EXPERT_MEMORY,
        why_only_at_start="as the slots, which have it",
        trade="off: products wait for each expert that is not there",
    ),
    "memory.parameters": KnobFacts(
        "Parameter dtype",
        "parameter dtype",
        neutral_default=True,
        suggested=lambda search: ["fp32", "bf16"] if search.base.precision == "bf16" else None,
        why_only_at_start="parameters would get another dtype; it would take new master weights and buckets",
        changes=("speed", "memory"),
        trade="bf16: half the memory and bytes of weights, an fp32 copy beside",
        alters_numbers=True,
        refused={
            Context.OTHER_MODEL: Refusal(
                "its matrices may be of any kind",
                remedy="set it to fp32: precision bf16 computes under autocast",
            ),
            Context.FROZEN_MODEL: "frozen parameters are kept as they were saved",
            Context.EXPERT_SLOTS: "needs fp32 parameters",
        },
    ),
    "compile": KnobFacts(
        "torch.compile",
        searched_by_default=True,
        suggested=lambda search: [False, True] if search.ranks == 1 else None,
        why_not_searched="it would compile anew for every layout",
        why_only_at_start="compiled blocks stand in for the plain ones; it would take both beside each other",
        changes=("speed",),
        trade="fused kernels, a minute or more before the first step",
        not_predicted="kernels are taken as blocks are written",
        refused={
            Context.FROZEN_MODEL: "compiled blocks have no place for factors",
            Context.WHOLE_DOCUMENTS: "would compile each length anew",
            Context.PARTIAL_PRODUCTS: "compiled blocks have no such products",
        },
    ),
    **PIPELINE_STAGES,
    **PARALLEL_OF_SOME,
    **COMMUNICATION,
    **{
        f"{SECTION}.{name}": KnobFacts(
            acts=conditions.reaches(name),
            reset_when_inactive=True,
            unset=UNSET,
            live=variable.live,
            why_only_at_start=variable.why_only_at_start,
        )
        for name, variable in VARIABLES.items()
    },
    **LEARNING,
    "memory.sample_tokens": KnobFacts(
        "Tokens sampled for weight gradients",
        "sampled tokens",
        acts=conditions.keeps_inputs,
        neutral_default=True,
        suggested=suggestions.of_the_decoder(suggestions.anywhere(1.0, 0.3)),
        live=ACTIVATIONS,
        changes=("speed", "memory", "loss"),
        loses_more="lower",
        trade="matrices keep a part of their inputs, and their gradients scatter around the exact ones",
        product_share=True,
        not_predicted="seconds are those of whole weight gradients",
        refused={
            Context.FROZEN_MODEL: "a frozen matrix has no gradient to sample",
            Context.WHOLE_DOCUMENTS: "",
            Context.TRAINED_SLICE: "sampled products take whole matrices",
        },
    ),
    **TRAINED_PARTS,
    **OPTIMIZER,
    **SETTINGS,
    **EXTENT,
    **TIMEOUTS,
    **DERIVED,
}


def facts_of(key: str) -> KnobFacts:
    """What is said of a key; of one that has no entry only whether its section is fixed, and it acts."""
    return KNOBS.get(key) or (_FIXED if f"{key}.".startswith(_FIXED_SECTIONS) else _NO_FACTS)


def acts(key: str, now: Values) -> bool:
    """Whether a knob changes what runs; one that nothing is known about does."""
    return facts_of(key).acts(now)


def default_of(key: str) -> Any:
    """The default of its field; None where there is no such field."""
    return _DEFAULTS.get(key)


def baseline_values() -> KnobValues:
    """What plain data parallelism means beside dp = ranks, where a run has these keys at other values."""
    return {key: default_of(key) for key, knob in KNOBS.items() if knob.neutral_default}


def exact_values() -> KnobValues:
    """The values that send all there is, at once; anything else changes what is learned. Precision is no part of it: it
    is chosen for a model, not for its network.
    """
    return {key: default_of(key) for key, knob in KNOBS.items() if knob.is_lossy}


def deciding_knobs() -> tuple[str, ...]:
    """Knobs on whose values it depends whether others act; each one may depend on those before it."""
    ordered = sorted((knob.reset_order, key) for key, knob in KNOBS.items() if knob.reset_order)
    return tuple(key for _, key in ordered)


def live_parts() -> dict[str, str]:
    """The keys that may change while a run goes, and the part that each turns; any other is decided at its start."""
    return {key: knob.live for key, knob in KNOBS.items() if knob.live}


def live_part(key: str) -> str:
    """The part that a key turns while a run goes; empty of one that is decided at its start."""
    return TRAINER if key.startswith(f"{TRAINER}.") else facts_of(key).live


def why_at_start(key: str) -> str:
    """Why it is decided when a run starts, in words; empty of a key that turns, or that is no knob."""
    return "" if live_part(key) else facts_of(key).why_only_at_start


def lossy(values: Mapping[str, Any]) -> KnobValues:
    """Those of a run's values, under their dotted keys, that lose something; missing ones are exact."""
    return {key: values[key] for key, exact in exact_values().items() if values.get(key, exact) != exact}


def is_lossy(values: Mapping[str, Any]) -> bool:
    """Whether any does."""
    return any(values.get(key, exact) != exact for key, exact in exact_values().items())


def decides_numbers(key: str) -> bool:
    """Whether another value gives a step other numbers, beyond rounding: a run that resumes says so. Nothing that makes
    another model does: no checkpoint of another one is resumed.
    """
    facts = facts_of(key)
    if facts.outside_steps or facts.outside_arithmetic:
        return False
    alters = facts.alters_learning or facts.alters_numbers or facts.decides_loss
    return alters or key.startswith((*_SECTIONS, *_LEARNING))


def decides_learning(key: str) -> bool:
    """Whether runs that differ in it, and lose nothing, learn otherwise: their losses are not compared."""
    facts = facts_of(key)
    if facts.outside_steps or facts.outside_arithmetic or facts.decides_loss:
        return False
    return facts.alters_learning or key.startswith((_MODEL, *_LEARNING))


def _loss_keys(*runs: Mapping[str, Any]) -> set[str]:
    """Of runs' values those that decide what is lost: lossy knobs, and the details of them."""
    keys = {key for key, knob in KNOBS.items() if knob.decides_loss}
    return {key for values in runs for key in values if key in keys or key.startswith(_SECTIONS)}


def loses_alike(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether all that decides what is lost, and how, is the same: runs of one model on one text then learn alike."""
    keys = _loss_keys(config, other)
    return all(config.get(key) == other.get(key) for key in keys)


def loses_as_much(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether ``config`` loses what ``other`` does or more: by the same methods, and where a knob ``loses_more``
    towards some values, turned at least as far.
    """
    keys = _loss_keys(config, other)
    return all(
        config.get(key) == other.get(key) or _turned_further(key, config.get(key), other.get(key))
        for key in keys
    )


def _turned_further(key: str, value: Any, other: Any) -> bool:
    way = facts_of(key).loses_more
    if not way or value is None or other is None:
        return False
    return bool(value < other if way == "lower" else value > other)


def exact_changes(values: Mapping[str, Any], usual: Mapping[str, Any]) -> KnobValues:
    """What has to be set in a run's values to make it exact: ``usual`` values, where it has others."""
    lossy_keys = _loss_keys(values)
    keys = [key for key in values if key in lossy_keys and key in usual]
    return {key: usual[key] for key in keys if values[key] != usual[key]}


def arithmetic(values: Mapping[str, Any]) -> KnobValues:
    """What two runs share of which one is the exact baseline of the other: all values but those that lose something,
    what is recorded and saved, and how long anybody waits.
    """
    lossy_keys = _loss_keys(values)
    return {
        key: value
        for key, value in values.items()
        if key not in lossy_keys
        and not key.startswith(("profile.", "checkpoint."))
        and not facts_of(key).outside_arithmetic
    }
