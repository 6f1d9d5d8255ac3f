"""Which values are suggested for a knob, asked of a study's base and its number of ranks. Pure, without torch.

A function of a :class:`Search` returns them as a study file has them, None where there is nothing to search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.config.formulas.learning import SCALINGS
from engine.config.formulas.network import DATA, shape_of
from engine.config.knobs.facts import AUTO, FROM_BASE, Search
from engine.config.methods.compression_methods import CompressionMethod
from engine.config.methods.outer_methods import OuterMethod
from engine.config.presets import blocks_of, is_decoder, resolve
from engine.config.sections import SEQUENCE_DEGREES
from engine.schedules.registry import ScheduleFacts

#: From this length on, activations of one sequence are what a rank may not hold: context parallelism splits them.
LONG_SEQUENCE = 8_192
#: More ranks than usual machines have: copies that are whole on each machine spare the network between them.
MANY_RANKS = 9
#: From so many words on a study tries to spare the embedding's gradient.
MANY_WORDS = 8_192
#: Widths of hybrid sharding that are suggested: no wider than one usual machine.
WIDEST_SHARD = 8


def has_many_words(search: Search) -> bool:
    """Whether the embedding's gradient is a large message."""
    return is_decoder(search.base.model) and resolve(search.base.model).vocabulary >= MANY_WORDS


def groups_of_documents(search: Search) -> list[int | str] | None:
    """Where samples are whole documents: the sizes that divide the ranks, and as a plan has them."""
    if search.base.data.documents != "whole":
        return None
    return [*(degree for degree in SEQUENCE_DEGREES if search.ranks % degree == 0), "planned"]


def islands_of_experts(search: Search) -> list[int | None] | None:
    """Where links differ: straight to their ranks, or as many on an island as divide the ranks."""
    sizes = [size for size in search.degrees if 1 < size < search.ranks]
    if not sizes or search.base.model.experts is None or not has_uneven_links(search):
        return None
    return [None, *sizes]


def has_uneven_links(search: Search) -> bool:
    """Whether ranks lie on islands of a lab: some are nearer to each other."""
    shape = shape_of(search.base.lab)
    return shape is not None and len(shape.islands) > 1


def placements(search: Search) -> Any:
    """As the base has its ranks, and what suits the layout, where they lie on islands of a lab."""
    uneven = search.ranks > 1 and has_uneven_links(search)
    return [FROM_BASE if search.base.parallel.placement else None, AUTO] if uneven else None


def has_second_cards(search: Search) -> bool:
    """Whether hosts of a lab have a second card for their island."""
    shape = shape_of(search.base.lab)
    return shape is not None and bool(shape.inside_kbit) and search.ranks > 1


def island_networks(search: Search) -> Any:
    """The second card, or the one that reaches all hosts."""
    return [None, DATA] if has_second_cards(search) else None


def anywhere(*values: Any) -> Callable[[Search], Any]:
    return lambda search: list(values)


def on_several_ranks(*values: Any) -> Callable[[Search], Any]:
    return lambda search: list(values) if search.ranks > 1 else None


def names_of(methods: Mapping[str, CompressionMethod | OuterMethod]) -> Callable[[Search], Any]:
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
    sizes = [size for size in (batch // 2, batch, 2 * batch) if size and text % size == 0]
    return sizes if search.in_time else None


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


def of_the_decoder(values: Callable[[Search], Any]) -> Callable[[Search], Any]:
    """Of another model nobody said how it is split, or what its layers take."""
    return lambda search: values(search) if is_decoder(search.base.model) else None


def recomputations(search: Search) -> list[str]:
    """Only the decoder knows its attention core."""
    return ["none", "selective", "full"] if is_decoder(search.base.model) else ["none", "full"]


def without_experts(values: Callable[[Search], Any]) -> Callable[[Search], Any]:
    return lambda search: values(search) if search.base.model.experts is None else None


def with_experts(values: Callable[[Search], Any]) -> Callable[[Search], Any]:
    return lambda search: None if search.base.model.experts is None else values(search)


def token_formats(search: Search) -> list[str] | None:
    """What ep can send tokens in; in bf16 they are that already."""
    formats = ["none", "int8"] if search.base.precision == "bf16" else ["none", "bf16", "int8"]
    if search.base.model.capacity_factor is None:
        formats += ["lsh", "lsh_int8"]
    return formats if search.ranks > 1 else None


def other_names_of(
    registry: Mapping[str, CompressionMethod | OuterMethod | ScheduleFacts],
) -> Callable[[Search], Sequence[Any]]:
    """The entries that the space of a study that names none leaves out."""
    return lambda search: [name for name, entry in registry.items() if not entry.offered]


def parts_of_layers(search: Search) -> list[int | None] | None:
    """All layers of a stage, or a half and a quarter of the model's; a stage that has fewer refuses them."""
    layers = blocks_of(search.base.model) or 1
    parts = sorted({layers // 2, layers // 4} - {0})
    return [None, *parts] if parts else None
