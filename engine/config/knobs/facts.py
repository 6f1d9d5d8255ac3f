"""What is said of a knob: when it acts, asked of all of a run's values under their dotted keys, and which values a
search offers, asked of a study's base. Pure, without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from engine.config.environment import ineffective_reason
from engine.config.formulas.learning import SCALINGS
from engine.config.formulas.network import DATA, shape_of
from engine.config.methods.compression_methods import METHODS, CompressionMethod
from engine.config.methods.outer_methods import OUTER_METHODS, OuterMethod
from engine.config.presets import blocks_of, is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import SEQUENCE_DEGREES
from engine.schedules.registry import SCHEDULES, ScheduleFacts

Values = Mapping[str, Any]
Change = Literal["speed", "memory", "loss"]

#: A value of a study's space, never of a run: the value that suits the rest of the point.
AUTO = "auto"
#: A value of such knobs as well: the list that the base has.
GIVEN = "base"
#: No value: None is one.
UNSAID: Any = object()
#: Parts of a run that can be turned while it goes; ``engine/rank/reconfigure.py`` has a function for each.
GRADIENTS, SCHEDULE, ACTIVATIONS, ROUNDS = "gradients", "schedule", "activations", "rounds"
PRODUCTS, UPDATES, THREADS = "products", "updates", "threads"
#: Of a trainer that is not this project's: it turns them itself.
TRAINER = "trainer"
#: What a turn of each part costs, beside the step or two until all ranks make it at once.
TURNS = {
    GRADIENTS: "buckets are dealt and methods made anew; nothing is sent",
    SCHEDULE: "another plan of micro-batches, with buffers for its messages",
    ACTIVATIONS: "nothing: the next forward keeps other activations",
    ROUNDS: "nothing: the next round has the new length, the next message the new values",
    PRODUCTS: "nothing: the next products are cut another way",
    UPDATES: "updates are grouped anew, each with the state that it has",
    THREADS: "nothing: the next operators have as many threads",
}

#: From this length on, activations of one sequence are what a rank may not hold: context parallelism splits them.
LONG_SEQUENCE = 8_192
#: More ranks than usual machines have: copies that are whole on each machine spare the network between them.
MANY_RANKS = 9
#: From so many words on a study tries to spare the embedding's gradient.
MANY_WORDS = 8_192
#: Widths of hybrid sharding that are offered: no wider than one usual machine.
WIDEST_SHARD = 8


class Search(NamedTuple):
    """What the offered values of a knob depend on: a study's base and how many ranks there are."""

    base: RunConfig
    ranks: int
    #: Whether the study asks for a time to a loss.
    in_time: bool = False

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
    turns it. ``live`` is the part of a run that it turns while the run goes; one without says why it is decided
    ``at_start``, and what it would take to turn it. Where other knobs ask for its value to
    tell whether they act, ``decides`` is above 0: the order in which such knobs are put to rest before the others.

    A knob that ``alters_learning`` changes what is learned of a token: only times to a loss compare such trials.

    An ``automatic`` knob has two values: None, and ``AUTO``, which stands for what suits a point's layout; where the
    base has a list, that is a third one, ``GIVEN``.

    ``left_alone`` says why a study that names no space does not turn it, where that is not plain from the rest.

    ``changes`` is what another value may change, and ``trade`` says in a few words what is gained and what it costs.
    ``loses_more`` tells towards which values a lossy method or loop loses more, all else being as it is.
    ``rare`` values are listed by a form beside the offered ones, and chosen only if somebody wants them.

    A ``fixed`` key stays the same inside a study, or its trials could not be compared; a ``derived`` one follows from
    other keys. One ``outside_arithmetic`` says nothing of what a run computes: it may differ between a run and its
    exact baseline. A ``degree`` is a count of ranks. A form lets people ``extend`` the values that it offers. ``unset``
    is the word for no value.
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
    rare: Callable[[Search], Sequence[Any]] = lambda search: ()
    left_alone: str = ""
    changes: tuple[Change, ...] = ()
    trade: str = ""
    loses_more: Literal["", "lower", "higher"] = ""
    live: str = ""
    at_start: str = ""
    decides: int = 0
    fixed: bool = False
    derived: bool = False
    outside_arithmetic: bool = False
    degree: bool = False
    automatic: bool = False
    alters_learning: bool = False
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


def reaches(name: str) -> Callable[[Values], bool]:
    def acts_here(now: Values) -> bool:
        return ineffective_reason(name, "cuda" if may_use_gpus(now) else "cpu", _ranks(now)) is None

    return acts_here


def has_several_ranks(now: Values) -> bool:
    return _ranks(now) > 1


def _ranks(now: Values) -> int:
    return data_ranks(now) * int(now["parallel.tp"] * now["parallel.pp"])


def shares_data(now: Values) -> bool:
    return data_ranks(now) > 1


def pipelines(now: Values) -> bool:
    return bool(now["parallel.pp"] > 1)


def may_skip(now: Values) -> bool:
    """Whether micro-batches can leave out stages."""
    return pipelines(now) and SCHEDULES[now["schedule.kind"]].skips


def has_outer(now: Values) -> bool:
    return bool(now["parallel.dp"] > 1 and now["outer.method"] != "none")


def reduces(now: Values) -> bool:
    return reducing_ranks(now) > 1


def shards(now: Values) -> bool:
    return reduces(now) and now["parallel.zero_stage"] >= 2


def compresses(now: Values) -> bool:
    """ZeRO sends slices to their owners, which few methods can code."""
    return reduces(now) and (now["parallel.zero_stage"] == 0 or method_has("one_way", now))


def buckets(now: Values) -> bool:
    return reduces(now) and now["parallel.zero_stage"] < 2


def says_one_for_all(now: Values) -> bool:
    """Whether the same becomes of all blocks' activations."""
    return now["memory.block_actions"] is None and now["memory.budget_gib"] is None


def keeps_inputs(now: Values) -> bool:
    """Whether matrices have products in which they can keep a part of their inputs."""
    plain = not now["parallel.tp_regather"] and now["overlap.tp_chunks"] == 1 and not now["compile"]
    return plain and (now["memory.recompute"] != "full" or now["memory.recompute_layers"] is not None)


def splits_matrices(now: Values) -> bool:
    return bool(now["parallel.tp"] > 1)


def may_split_columns(now: Values) -> bool:
    """Whether data ranks can hold columns of the embedding."""
    whole = now["parallel.tp"] == 1 and now["parallel.zero_stage"] < 2
    return whole and shares_data(now) and now["outer.method"] == "none" and not now["model.tied_embeddings"]


def has_many_words(search: Search) -> bool:
    """Whether the embedding's gradient is a large message."""
    return is_decoder(search.base.model) and resolve(search.base.model).vocabulary >= MANY_WORDS


def groups_of_documents(search: Search) -> list[int | str] | None:
    """Where samples are whole documents: the sizes that divide the ranks, and as a plan has them."""
    if search.base.data.documents != "whole":
        return None
    return [*(one for one in SEQUENCE_DEGREES if search.ranks % one == 0), "planned"]


def islands_of_experts(search: Search) -> list[int | None] | None:
    """Where links differ: straight to their ranks, or as many on an island as divide the ranks."""
    sizes = [size for size in search.degrees if 1 < size < search.ranks]
    if not sizes or search.base.model.experts is None or not has_uneven_links(search):
        return None
    return [None, *sizes]


def method_has(fact: str, now: Values) -> bool:
    method = METHODS.get(now["compression.method"])
    return method is not None and bool(getattr(method, fact))


def method_has_field(key: str) -> Callable[[Values], bool]:
    """Whether the method of the key's section runs at all, and is one with which this field of the section acts."""
    section, _, field = key.partition(".")
    methods, runs = (METHODS, compresses) if section == "compression" else (OUTER_METHODS, has_outer)

    def acts_here(now: Values) -> bool:
        method = methods.get(now[f"{section}.method"])
        return method is not None and method.has(field) and runs(now)

    return acts_here


def loses(now: Values) -> bool:
    return compresses(now) and now["compression.method"] != "none"


def is_planned(now: Values) -> bool:
    return compresses(now) and method_has("errors", now)


def plans(now: Values) -> bool:
    return is_planned(now) and now["compression.plan"] != "none"


def has_uneven_links(search: Search) -> bool:
    """Whether ranks lie on islands of a lab: some are nearer to each other."""
    shape = shape_of(search.base.lab)
    return shape is not None and len(shape.islands) > 1


def placements(search: Search) -> Any:
    """As the base has its ranks, and what suits the layout, where they lie on islands of a lab."""
    uneven = search.ranks > 1 and has_uneven_links(search)
    return [GIVEN if search.base.parallel.placement else None, AUTO] if uneven else None


def has_second_cards(search: Search) -> bool:
    """Whether hosts of a lab have a second card for their island."""
    shape = shape_of(search.base.lab)
    return shape is not None and bool(shape.inside_kbit) and search.ranks > 1


def island_networks(search: Search) -> Any:
    """The second card, or the one that reaches all hosts."""
    return [None, DATA] if has_second_cards(search) else None


def never(search: Search) -> bool:
    return False


def always_offered(*values: Any) -> Callable[[Search], Any]:
    return lambda search: list(values)


def offer_several_ranks(*values: Any) -> Callable[[Search], Any]:
    return lambda search: list(values) if search.ranks > 1 else None


def offered_methods(methods: Mapping[str, CompressionMethod | OuterMethod]) -> Callable[[Search], Any]:
    return lambda search: (
        ["none", *(name for name, method in methods.items() if method.offered)] if search.ranks > 1 else None
    )


def degrees(search: Search) -> list[int] | None:
    return search.degrees if search.ranks > 1 else None


def micro_batches(search: Search) -> list[int]:
    whole = search.base.batch.global_batch
    powers = [2**power for power in range(5) if whole % 2**power == 0]
    return sorted({*powers, search.base.batch.micro_batch})


def global_batches(search: Search) -> list[int] | None:
    """Half, once and twice the base's, where all of them are whole steps and held-out text of the same length."""
    base, batch = search.base, search.base.batch.global_batch
    text = batch * base.train.validation_batches
    found = [size for size in (batch // 2, batch, 2 * batch) if size and text % size == 0]
    return found if search.in_time else None


def first_batches(search: Search) -> list[int] | None:
    """A quarter, half and all of the base's batch, where those are whole; with all of it nothing grows."""
    batch = search.base.batch.global_batch
    return sorted({batch // part for part in (4, 2, 1) if batch % part == 0}) if search.in_time else None


def ramp_shares(search: Search) -> list[float] | None:
    """Where the base's batch grows."""
    return [0.3, 0.6, 0.9] if search.in_time and search.base.batch.ramp_from is not None else None


def learning_rates(search: Search) -> dict[str, Any] | None:
    """From about a third to three times the base's, in numbers that are short to read."""
    rate = search.base.train.learning_rate
    low, high = (float(f"{bound:.2g}") for bound in (rate / 3, rate * 3))
    return {"low": low, "high": high, "log": True} if search.in_time else None


def scalings(search: Search) -> list[str] | None:
    """Where the base says for which batch its learning rate was chosen."""
    named = search.base.train.learning_rate_batch is not None
    return list(SCALINGS) if search.in_time and named else None


def warmups(search: Search) -> list[int] | None:
    """None, a twentieth and a fifth of the steps."""
    steps = search.base.train.steps
    return sorted({0, steps // 20, steps // 5}) if search.in_time else None


def splits_sequences(search: Search) -> bool:
    """Where a sequence is long, or a step has fewer of them than there are ranks."""
    return search.base.data.sequence_length >= LONG_SEQUENCE or search.base.batch.global_batch < search.ranks


def offer_decoder(values: Callable[[Search], Any]) -> Callable[[Search], Any]:
    """Of another model nobody said how it is split, or what its layers take."""
    return lambda search: values(search) if is_decoder(search.base.model) else None


def recomputations(search: Search) -> list[str]:
    """Only the decoder knows its attention core."""
    return ["none", "selective", "full"] if is_decoder(search.base.model) else ["none", "full"]


def offer_dense(values: Callable[[Search], Any]) -> Callable[[Search], Any]:
    return lambda search: values(search) if search.base.model.experts is None else None


def offer_experts(values: Callable[[Search], Any]) -> Callable[[Search], Any]:
    return lambda search: None if search.base.model.experts is None else values(search)


def buckets_tokens(now: Mapping[str, Any]) -> bool:
    """Tokens that are alike travel as one."""
    return bool(now["parallel.ep"] > 1) and now["compression.experts"] in ("lsh", "lsh_int8")


def token_formats(search: Search) -> list[str] | None:
    """What ep can send tokens in; in bf16 they are that already."""
    formats = ["none", "int8"] if search.base.precision == "bf16" else ["none", "bf16", "int8"]
    if search.base.model.capacity_factor is None:
        formats += ["lsh", "lsh_int8"]
    return formats if search.ranks > 1 else None


def not_offered(
    registry: Mapping[str, CompressionMethod | OuterMethod | ScheduleFacts],
) -> Callable[[Search], Sequence[Any]]:
    """The entries that the space of a study that names none leaves out."""
    return lambda search: [name for name, entry in registry.items() if not entry.offered]


def parts_of_layers(search: Search) -> list[int | None] | None:
    """All layers of a stage, or a half and a quarter of the model's; a stage that has fewer refuses them."""
    layers = blocks_of(search.base.model) or 1
    parts = sorted({layers // 2, layers // 4} - {0})
    return [None, *parts] if parts else None


#: By the beginning of a variable's name: when its library reads it.
_READ_EARLY: dict[str, str] = {
    "NCCL_": "NCCL reads it once, as its first communicator is made; it would take new processes",
    "TORCH_NCCL_": "torch reads it as process groups are made; it would take new groups",
    "MALLOC_": "the C library reads it as a process begins; it would take new processes",
    "CUDA_": "the driver reads it as a process first uses its GPU; it would take new processes",
    "allocator_": "what the GPU allocator holds was cut by the old setting; it would take giving all of it back",
}


def why_read_early(variable: str) -> str:
    """Why an environment variable acts from the start of a run alone; empty where nothing is known of it."""
    return next((why for begin, why in _READ_EARLY.items() if variable.startswith(begin)), "")
