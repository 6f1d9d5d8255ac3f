"""Knobs: the keys of a configuration that a search can turn, and all that is said of each. Pure, without torch.

Rules are asked of all of a run's values under their dotted keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.config.environment import SECTION, VARIABLES
from engine.config.knobs import facts as rules
from engine.config.knobs.communication import COMMUNICATION
from engine.config.knobs.facts import (
    ACTIVATIONS,
    THREADS,
    TRAINER,
    UNSAID,
    KnobFacts,
    Values,
)
from engine.config.knobs.parallel import DERIVED, PARALLEL, PARALLEL_OF_SOME
from engine.config.knobs.pipeline_stages import PIPELINE_STAGES
from engine.config.knobs.training import LEARNING, MICRO_BATCH, OPTIMIZER, PATIENCE, TRAINED_PARTS
from engine.config.presets import is_decoder

#: Sections that a fair comparison needs to hold still as a whole.
_FIXED_SECTIONS = ("model.", "data.", "train.", "profile.")
#: Environment variables that can act late, and the part that each turns; the others have a reason ``at_start``.
_LATE_VARIABLES = {"OMP_NUM_THREADS": THREADS}
#: An environment variable that stays as the machine has it.
UNSET = "unset"
#: Sections whose keys act only beside a value that loses something.
_SECTIONS = ("compression.", "outer.")

_NO_FACTS, _FIXED = KnobFacts(), KnobFacts(fixed=True)
#: By dotted key, in the order in which forms and spaces have them.
KNOBS: dict[str, KnobFacts] = {
    **PARALLEL,
    **MICRO_BATCH,
    "memory.budget_gib": KnobFacts(
        "Budget of activations (GiB)",
        "activation budget",
        "activations_gib",
        unset="none",
        extend=True,
        acts=lambda now: now["memory.block_actions"] is None,
        at_rest=None,  # no plain value: the baseline has to keep a limit, too
        usual=rules.never,
        decides=6,
        left_alone="how much memory activations may take is for people to say",
        at_start="blocks are measured before the model is there; it would take measuring them beside it",
        changes=("speed", "memory"),
        trade="the fastest mix of keeping, computing again and copying away, block by block, that fits",
    ),
    "memory.block_actions": KnobFacts(
        "Action of each block",
        "block actions",
        unset="as said for all",
        plain=None,
        usual=rules.never,
        live=ACTIVATIONS,
        left_alone="memory.budget_gib finds them",
        changes=("speed", "memory"),
        trade="each block keeps, computes again or copies away its activations",
    ),
    "memory.recompute": KnobFacts(
        "Recompute",
        "recompute",
        named_anyway=True,
        acts=rules.says_one_for_all,
        at_rest="none",
        plain="none",
        offered=rules.recomputations,
        live=ACTIVATIONS,
        decides=7,
        changes=("speed", "memory"),
        trade="less memory for activations, up to a third more computation",
    ),
    "memory.recompute_layers": KnobFacts(
        "Recomputed layers",
        "recomputed layers",
        unset="all",
        acts=lambda now: bool(now["memory.recompute"] != "none"),
        at_rest=None,
        plain=None,
        offered=rules.parts_of_layers,
        usual=rules.never,
        live=ACTIVATIONS,
        left_alone="all or nothing is recomputed; a part of the layers is for those who ask",
        changes=("speed", "memory"),
        trade="only some layers: between all and nothing recomputed",
    ),
    "memory.offload": KnobFacts(
        "Offload to host",
        "offload",
        plain="none",
        offered=rules.always_offered("none", "activations", "optimizer", "both"),
        usual=rules.never,
        left_alone="slow; for what does not fit otherwise",
        live=ACTIVATIONS,
        changes=("speed", "memory"),
        trade="less memory on the device, copies to the host and back",
    ),
    "data.ahead": KnobFacts(
        "Batches ahead",
        "ahead",
        plain=0,
        offered=lambda search: None if is_decoder(search.base.model) else [0, 2],
        usual=rules.never,
        left_alone="helps where steps wait for data, as the verdict input_bound says",
        outside_arithmetic=True,
        at_start="its thread begins with the run; it would take one that begins and ends between two steps",
        changes=("speed",),
        trade="a thread makes batches while a step computes, and takes a core for it",
    ),
    "memory.expert_slots": KnobFacts(
        "Slots of experts",
        unset="none",
        plain=None,
        trade="seldom chosen experts lie elsewhere, and are fetched",
        at_start="experts move to their homes as the model is made; it would take moving them back",
    ),
    "memory.expert_home": KnobFacts(
        "Home of experts",
        plain="host",
        at_start="experts move to their homes as the model is made; it would take moving them again",
        trade="on disk they take no memory",
    ),
    "memory.expert_ahead": KnobFacts(
        "Experts fetched ahead",
        plain=True,
        at_start="as the slots, which have it",
        trade="off: products wait for each expert that is not there",
    ),
    "memory.parameters": KnobFacts(
        "Parameters in",
        "parameters",
        plain="fp32",
        offered=lambda search: ["fp32", "bf16"] if search.base.precision == "bf16" else None,
        usual=rules.never,
        at_start="parameters would get another dtype; it would take new master weights and buckets",
        changes=("speed", "memory"),
        trade="bf16: half the memory and bytes of weights, an fp32 copy beside",
    ),
    "compile": KnobFacts(
        "torch.compile",
        offered=lambda search: [False, True] if search.ranks == 1 else None,
        left_alone="it would compile anew for every layout",
        at_start="compiled blocks stand in for the plain ones; it would take both beside each other",
        changes=("speed",),
        trade="fused kernels, a minute or more before the first step",
    ),
    **PIPELINE_STAGES,
    **PARALLEL_OF_SOME,
    **COMMUNICATION,
    **{
        f"{SECTION}.{name}": KnobFacts(
            acts=rules.reaches(name),
            at_rest=None,
            unset=UNSET,
            live=_LATE_VARIABLES.get(name, ""),
            at_start=rules.why_read_early(name),
        )
        for name in VARIABLES
    },
    **LEARNING,
    "memory.sample_tokens": KnobFacts(
        "Tokens of weight gradients",
        "sampled tokens",
        acts=rules.keeps_inputs,
        at_rest=1.0,
        plain=1.0,
        exact=1.0,
        offered=rules.offer_decoder(rules.always_offered(1.0, 0.3)),
        usual=rules.never,
        live=ACTIVATIONS,
        changes=("speed", "memory", "loss"),
        loses_more="lower",
        trade="matrices keep a part of their inputs, and their gradients scatter around the exact ones",
    ),
    **TRAINED_PARTS,
    **OPTIMIZER,
    **dict.fromkeys(("precision", "device", "memory.limit_gib", "tokens_told"), _FIXED),
    **PATIENCE,
    **DERIVED,
}


#: Keys whose values ``AUTO`` stands for lists that a study works out.
AUTOMATIC = tuple(key for key, knob in KNOBS.items() if knob.automatic)


def facts_of(key: str) -> KnobFacts:
    """What is said of a key; of one that has no entry only whether its section is fixed, and it acts."""
    return KNOBS.get(key) or (_FIXED if f"{key}.".startswith(_FIXED_SECTIONS) else _NO_FACTS)


def acts(key: str, now: Values) -> bool:
    """Whether a knob changes what runs; one that nothing is known about does."""
    return facts_of(key).acts(now)


def plain_values() -> dict[str, Any]:
    """What plain data parallelism means beside dp = ranks, where a run has these keys at other values."""
    return {key: knob.plain for key, knob in KNOBS.items() if knob.plain is not UNSAID}


def exact_values() -> dict[str, Any]:
    """The values that send all there is, at once; anything else changes what is learned. Precision is no part of it: it
    is chosen for a model, not for its network.
    """
    return {key: knob.exact for key, knob in KNOBS.items() if knob.exact is not UNSAID}


def deciding_knobs() -> tuple[str, ...]:
    """Knobs on whose values it depends whether others act; each one may depend on those before it."""
    found = sorted((knob.decides, key) for key, knob in KNOBS.items() if knob.decides)
    return tuple(key for _, key in found)


def live_parts() -> dict[str, str]:
    """The keys that may change while a run goes, and the part that each turns; any other is decided at its start."""
    return {key: knob.live for key, knob in KNOBS.items() if knob.live}


def live_part(key: str) -> str:
    """The part that a key turns while a run goes; empty of one that is decided at its start."""
    return TRAINER if key.startswith(f"{TRAINER}.") else facts_of(key).live


def why_at_start(key: str) -> str:
    """Why it is decided when a run starts, in words; empty of a key that turns, or that is no knob."""
    return "" if live_part(key) else facts_of(key).at_start


def lossy(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run's values, under their dotted keys, that lose something; missing ones are exact."""
    return {key: values[key] for key, exact in exact_values().items() if values.get(key, exact) != exact}


def is_lossy(values: Mapping[str, Any]) -> bool:
    """Whether any does."""
    return any(values.get(key, exact) != exact for key, exact in exact_values().items())


def loses_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether all that decides what is lost, and how, is the same: runs of one model on one text then learn alike."""
    keys = {key for key in (*one, *other) if key.startswith(_SECTIONS)} | exact_values().keys()
    return all(one.get(key) == other.get(key) for key in keys)


def loses_as_much(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether ``one`` loses what ``other`` does or more: by the same methods, and where a knob ``loses_more`` towards
    some values, turned at least as far.
    """
    keys = {key for key in (*one, *other) if key.startswith(_SECTIONS)} | exact_values().keys()
    return all(
        one.get(key) == other.get(key) or _turned_further(key, one.get(key), other.get(key)) for key in keys
    )


def _turned_further(key: str, value: Any, other: Any) -> bool:
    way = facts_of(key).loses_more
    if not way or value is None or other is None:
        return False
    return bool(value < other if way == "lower" else value > other)


def exact_changes(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be set in a run's values to make it exact: ``usual`` values, where it has others."""
    exact = exact_values()
    keys = [key for key in values if key.startswith(_SECTIONS) or key in exact]
    return {key: usual[key] for key in keys if key in usual and values[key] != usual[key]}


def arithmetic(values: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs share of which one is the exact baseline of the other: all values but those that lose something,
    what is recorded and saved, and how long anybody waits.
    """
    left_out = (*_SECTIONS, *exact_values(), "profile.", "checkpoint.")
    return {
        key: value
        for key, value in values.items()
        if not key.startswith(left_out) and not facts_of(key).outside_arithmetic
    }
