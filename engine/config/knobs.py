"""Knobs: the keys of a configuration that a search can turn, and all that is said of each. Pure, without torch.

Rules are asked of all of a run's values under their dotted keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.config.compression_methods import METHODS, CompressionMethod
from engine.config.environment import SECTION, VARIABLES, silent
from engine.config.outer_methods import OUTER_METHODS, OuterMethod
from engine.config.run_config import RunConfig
from engine.config.sections import Outer
from engine.schedules.registry import KINDS

Values = Mapping[str, Any]

#: No value: None is one.
UNSAID: Any = object()
#: Parts of a run that can be turned while it goes; ``engine/rank/reconfigure.py`` has a function for each.
GRADIENTS, SCHEDULE, ACTIVATIONS, ROUNDS = "gradients", "schedule", "activations", "rounds"
#: From this length on, activations of one sequence are what a rank may not hold: context parallelism splits them.
LONG_SEQUENCE = 8_192
#: More ranks than usual machines have: copies that are whole on each machine spare the network between them.
MANY_RANKS = 9
#: Widths of hybrid sharding that are offered: no wider than one usual machine.
WIDEST_SHARD = 8
#: Sections that a fair comparison needs to hold still as a whole.
_FIXED_SECTIONS = ("model.", "data.", "train.", "profile.")
#: An environment variable that stays as the machine has it.
UNSET = "unset"
#: Sections whose keys act only beside a value that loses something.
_SECTIONS = ("compression.", "outer.")
#: Left out where two runs are compared: they change nothing that is learned.
_BESIDE = (
    "parallel.world_size",
    "train.validate_every",
    "train.timeout_seconds",
    "train.step_timeout_seconds",
)


class Search(NamedTuple):
    """What the offered values of a knob depend on: a study's base and how many ranks there are."""

    base: RunConfig
    ranks: int

    @property
    def degrees(self) -> list[int]:
        """What divides the ranks."""
        return [degree for degree in range(1, self.ranks + 1) if self.ranks % degree == 0]


@dataclass(frozen=True)
class KnobFacts:
    """All that is said of one key.

    ``title`` is its name on a form, ``short`` that of a column, ``label`` its word in a trial's name; without them the
    key serves. Most knobs are left out of that name where they stand as in the study's base; those that are
    ``named_anyway`` are not. ``acts`` tells whether it changes what runs. Where it does not, it stands ``at_rest``,
    whatever the base says, if another value would break a rule. ``plain`` is its value in plain data parallelism,
    ``exact`` the only one with which nothing is sent late or with less than there is. ``offered`` are the values of a
    study that names none, as its file has them (None: no such knob there), and ``usual`` tells whether such a study
    turns it. ``live`` is the part of a run that it turns while the run goes. Where other knobs ask for its value to
    tell whether they act, ``decides`` is above 0: the order in which such knobs are put to rest before the others.

    A ``fixed`` key stays the same inside a study, or its trials could not be compared; a ``derived`` one follows from
    other keys. A ``degree`` is a count of ranks. A form lets people ``extend`` the values that it offers. ``unset`` is
    the word for no value.
    """

    title: str = ""
    short: str = ""
    label: str = ""
    named_anyway: bool = False
    acts: Callable[[Values], bool] = lambda now: True
    at_rest: Any = UNSAID
    plain: Any = UNSAID
    exact: Any = UNSAID
    offered: Callable[[Search], Any] = lambda search: None
    usual: Callable[[Search], bool] = lambda search: True
    live: str = ""
    decides: int = 0
    fixed: bool = False
    derived: bool = False
    degree: bool = False
    extend: bool = False
    unset: str = ""


def data_ranks(now: Values) -> int:
    """Ranks that see different tokens."""
    return int(now["parallel.dp"] * now["parallel.cp"])


def reducing_ranks(now: Values) -> int:
    """Of those, the ranks that average gradients at every step: with an outer loop, the ones of a replica."""
    if now["outer.method"] == "none":
        return data_ranks(now)
    return data_ranks(now) // int(now["outer.replicas"] or now["parallel.dp"])


def may_use_gpus(now: Values) -> bool:
    """Whether a run's ranks can be on GPUs, as far as its configuration says."""
    in_lab = now["lab.hosts"] is not None or isinstance(now["lab.islands"], list)
    return bool(now["device"] != "cpu") and not in_lab


def _reaches(name: str) -> Callable[[Values], bool]:
    def acts_here(now: Values) -> bool:
        ranks = data_ranks(now) * int(now["parallel.tp"] * now["parallel.pp"])
        return silent(name, "cuda" if may_use_gpus(now) else "cpu", ranks) is None

    return acts_here


def _shares_data(now: Values) -> bool:
    return data_ranks(now) > 1


def _pipelines(now: Values) -> bool:
    return bool(now["parallel.pp"] > 1)


def _has_outer(now: Values) -> bool:
    return bool(now["parallel.dp"] > 1 and now["outer.method"] != "none")


def _reduces(now: Values) -> bool:
    return reducing_ranks(now) > 1


def _shards(now: Values) -> bool:
    return _reduces(now) and now["parallel.zero_stage"] >= 2


def _compresses(now: Values) -> bool:
    """ZeRO sends slices to their owners, which few methods can code."""
    return _reduces(now) and (now["parallel.zero_stage"] == 0 or _method_has("one_way", now))


def _buckets(now: Values) -> bool:
    return _reduces(now) and now["parallel.zero_stage"] < 2


def _splits_matrices(now: Values) -> bool:
    return bool(now["parallel.tp"] > 1)


def _method_has(fact: str, now: Values) -> bool:
    method = METHODS.get(now["compression.method"])
    return method is not None and bool(getattr(method, fact))


def _with_field_of_method(key: str) -> Callable[[Values], bool]:
    """Whether the method of the key's section runs at all, and is one with which this field of the section acts."""
    section, _, field = key.partition(".")
    methods, runs = (METHODS, _compresses) if section == "compression" else (OUTER_METHODS, _has_outer)

    def acts_here(now: Values) -> bool:
        method = methods.get(now[f"{section}.method"])
        return method is not None and method.has(field) and runs(now)

    return acts_here


def _loses(now: Values) -> bool:
    return _compresses(now) and now["compression.method"] != "none"


def _is_planned(now: Values) -> bool:
    return _compresses(now) and _method_has("errors", now)


def _plans(now: Values) -> bool:
    return _is_planned(now) and now["parallel.zero_stage"] == 0 and now["compression.plan"] != "none"


def _never(search: Search) -> bool:
    return False


def _always_offered(*values: Any) -> Callable[[Search], Any]:
    return lambda search: list(values)


def _between_ranks(*values: Any) -> Callable[[Search], Any]:
    return lambda search: list(values) if search.ranks > 1 else None


def _offered_methods(methods: Mapping[str, CompressionMethod | OuterMethod]) -> Callable[[Search], Any]:
    return lambda search: (
        ["none", *(name for name, method in methods.items() if method.offered)] if search.ranks > 1 else None
    )


def _degrees(search: Search) -> list[int] | None:
    return search.degrees if search.ranks > 1 else None


def _micro_batches(search: Search) -> list[int]:
    whole = search.base.batch.global_batch
    powers = [2**power for power in range(5) if whole % 2**power == 0]
    return sorted({*powers, search.base.batch.micro_batch})


def _splits_sequences(search: Search) -> bool:
    """Where a sequence is long, or a step has fewer of them than there are ranks."""
    return search.base.data.sequence_length >= LONG_SEQUENCE or search.base.batch.global_batch < search.ranks


def _of_experts(values: Callable[[Search], Any]) -> Callable[[Search], Any]:
    return lambda search: None if search.base.model.experts is None else values(search)


_NO_FACTS, _FIXED = KnobFacts(), KnobFacts(fixed=True)
#: By dotted key, in the order in which forms and spaces have them.
KNOBS: dict[str, KnobFacts] = {
    "parallel.tp": KnobFacts("Tensor parallel (tp)", degree=True, offered=_degrees),
    "parallel.pp": KnobFacts("Pipeline parallel (pp)", degree=True, offered=_degrees),
    "parallel.cp": KnobFacts("Context parallel (cp)", degree=True, offered=_degrees, usual=_splits_sequences),
    "parallel.cp_method": KnobFacts(
        "Context parallel by",
        "cp method",
        named_anyway=True,
        acts=lambda now: bool(now["parallel.cp"] > 1),
        offered=_between_ranks("ring", "ulysses"),
        usual=_splits_sequences,
    ),
    "parallel.ep": KnobFacts(
        "Expert parallel (ep)",
        degree=True,
        acts=lambda now: now["model.experts"] is not None and _shares_data(now),
        at_rest=1,
        offered=_of_experts(_degrees),
    ),
    "parallel.zero_stage": KnobFacts(
        "ZeRO stage", "ZeRO", acts=_shares_data, plain=0, offered=_between_ranks(0, 1, 2, 3), decides=2
    ),
    "parallel.shard_ranks": KnobFacts(
        "Ranks per sharded copy",
        "shard ranks",
        degree=True,
        unset="all",
        acts=_shards,
        at_rest=None,
        plain=None,
        offered=lambda search: (
            [None, *(width for width in search.degrees[1:-1] if width <= WIDEST_SHARD)]
            if search.ranks > 1
            else None
        ),
        usual=lambda search: search.ranks >= MANY_RANKS,
    ),
    "parallel.reduce_every_micro_batch": KnobFacts(acts=_shards, at_rest=False, plain=False),
    "parallel.tp_regather": KnobFacts(acts=_splits_matrices, at_rest=False, plain=False),
    "batch.micro_batch": KnobFacts(
        "Micro-batch", "micro-batch", extend=True, offered=_micro_batches, live=SCHEDULE
    ),
    "memory.recompute": KnobFacts(
        "Recompute",
        "recompute",
        named_anyway=True,
        plain="none",
        offered=_always_offered("none", "selective", "full"),
        live=ACTIVATIONS,
    ),
    "memory.recompute_layers": KnobFacts(
        "Recomputed layers", "recomputed layers", unset="all", live=ACTIVATIONS
    ),
    "memory.offload": KnobFacts("Offload to host", "offload"),
    "memory.parameters": KnobFacts("Parameters in", "parameters"),
    "compile": KnobFacts(
        "torch.compile", offered=lambda search: [False, True] if search.ranks == 1 else None
    ),
    "schedule.kind": KnobFacts(
        "Pipeline schedule",
        "schedule",
        "schedule",
        named_anyway=True,
        acts=_pipelines,
        offered=lambda search: (
            [name for name, kind in KINDS.items() if kind.offered] if search.ranks > 1 else None
        ),
        decides=5,
    ),
    "schedule.chunks": KnobFacts(
        "Stages per rank",
        "stages per rank",
        acts=lambda now: _pipelines(now) and len(KINDS[now["schedule.kind"]].chunks) > 1,
        offered=_between_ranks(1, 2),
    ),
    "compression.method": KnobFacts(
        "Gradient compression",
        "compression",
        "compression",
        named_anyway=True,
        acts=_compresses,
        plain="none",
        exact="none",
        offered=_offered_methods(METHODS),
        live=GRADIENTS,
        decides=3,
    ),
    "compression.ratio": KnobFacts(
        "Compression ratio",
        "ratio",
        named_anyway=True,
        acts=_with_field_of_method("compression.ratio"),
        offered=lambda search: {"low": 0.01, "high": 0.25, "log": True} if search.ranks > 1 else None,
        live=GRADIENTS,
    ),
    "compression.rank": KnobFacts(
        "PowerSGD rank",
        "rank",
        named_anyway=True,
        acts=_with_field_of_method("compression.rank"),
        offered=_between_ranks(1, 2, 4, 8),
        live=GRADIENTS,
    ),
    **{
        f"compression.{name}": KnobFacts(acts=_with_field_of_method(f"compression.{name}"), live=GRADIENTS)
        for name in ("bucket_values", "stochastic")
    },
    **{
        f"compression.{name}": KnobFacts(acts=_loses, live=GRADIENTS)
        for name in ("start_step", "error_feedback", "layers")
    },
    "compression.plan": KnobFacts(acts=_is_planned, live=GRADIENTS, decides=4),
    **{
        f"compression.{name}": KnobFacts(acts=_plans, live=GRADIENTS) for name in ("plan_every", "plan_alpha")
    },
    "outer.method": KnobFacts(
        "Outer loop",
        "outer loop",
        "outer",
        named_anyway=True,
        acts=lambda now: bool(now["parallel.dp"] > 1),
        plain="none",
        exact="none",
        offered=_offered_methods(OUTER_METHODS),
        usual=_never,
        decides=1,
    ),
    "outer.period": KnobFacts(
        "Steps a round",
        "steps a round",
        "outer_period",
        named_anyway=True,
        acts=_has_outer,
        offered=_between_ranks(2, 4, 8, 12),
        usual=_never,
        live=ROUNDS,
    ),
    "outer.replicas": KnobFacts(acts=_has_outer, at_rest=None),
    **{
        f"outer.{name}": KnobFacts(acts=_with_field_of_method(f"outer.{name}"))
        for name in Outer.model_fields
        if name not in ("method", "period", "replicas")
    },
    "overlap.bucket_mb": KnobFacts(
        "Bucket size, MB",
        "bucket MB",
        extend=True,
        acts=_buckets,
        offered=_between_ranks(1.0, 5.0, 25.0),
        live=GRADIENTS,
    ),
    "overlap.prefetch": KnobFacts(
        "Layers gathered ahead",
        "prefetched layers",
        acts=_shards,
        at_rest=0,
        plain=0,
        offered=_between_ranks(0, 1, 2),
        usual=_never,
        live=GRADIENTS,
    ),
    "overlap.gather_with_optimizer": KnobFacts(
        "Gather beside the update",
        "gather beside update",
        acts=lambda now: _reduces(now) and now["parallel.zero_stage"] == 1,
        at_rest=False,
        plain=False,
        offered=_between_ranks(False, True),
        usual=_never,
    ),
    "overlap.tp_chunks": KnobFacts(
        "Tensor parallel in chunks",
        "tp chunks",
        acts=_splits_matrices,
        at_rest=1,
        plain=1,
        offered=_between_ranks(1, 2, 4),
        usual=_never,
    ),
    "overlap.delay": KnobFacts(
        "Steps gradients come late",
        "late gradients",
        acts=_buckets,
        at_rest=0,
        plain=0,
        exact=0,
        offered=_between_ranks(0, 1),
        usual=_never,
    ),
    "compression.weights": KnobFacts(
        "Weights sent in",
        "weights sent in",
        acts=_shards,
        at_rest="none",
        plain="none",
        exact="none",
        offered=_between_ranks("none", "int8"),
        usual=_never,
        live=GRADIENTS,
    ),
    "compression.experts": KnobFacts(
        "Expert tokens sent in",
        "tokens sent in",
        acts=lambda now: bool(now["parallel.ep"] > 1),
        at_rest="none",
        plain="none",
        exact="none",
        offered=_of_experts(_between_ranks("none", "bf16", "int8")),
        usual=_never,
    ),
    **{f"{SECTION}.{name}": KnobFacts(acts=_reaches(name), at_rest=None, unset=UNSET) for name in VARIABLES},
    **dict.fromkeys(("batch.global_batch", "precision", "device", "memory.limit_gib"), _FIXED),
    **dict.fromkeys(("schedule.stage_layers", "parallel.placement"), _FIXED),
    **dict.fromkeys(("parallel.dp", "parallel.world_size"), KnobFacts(derived=True)),
}


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


def deciding() -> tuple[str, ...]:
    """Knobs on whose values it depends whether others act; each one may depend on those before it."""
    found = sorted((knob.decides, key) for key, knob in KNOBS.items() if knob.decides)
    return tuple(key for _, key in found)


def live_parts() -> dict[str, str]:
    """The keys that may change while a run goes, and the part that each turns; any other is decided at its start."""
    return {key: knob.live for key, knob in KNOBS.items() if knob.live}


def lossy(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run's values, under their dotted keys, that lose something; missing ones are exact."""
    return {key: values[key] for key, exact in exact_values().items() if values.get(key, exact) != exact}


def is_lossy(values: Mapping[str, Any]) -> bool:
    """Whether any does."""
    return any(values.get(key, exact) != exact for key, exact in exact_values().items())


def exactly(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
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
        key: value for key, value in values.items() if not key.startswith(left_out) and key not in _BESIDE
    }
