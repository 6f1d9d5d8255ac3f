"""The rules about what ranks send: compression, overlap and outer loops, with the nearest legal values. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError, several
from engine.config.formulas.expert_rows import format_share, is_bucketed
from engine.config.formulas.network import DATA, INSIDE
from engine.config.knobs.facts import Context
from engine.config.layout import layout_of
from engine.config.methods.compression_methods import COMPRESSION_METHODS, one_way, planned_methods
from engine.config.methods.outer_methods import OUTER_METHODS
from engine.config.presets import ModelShape, is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.validation.refusals import refused_settings


def compression_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule about compression."""
    method, layout = config.compression.method, layout_of(config)
    yield from _format_problems(config)
    if config.compression.plan != "none" and method not in planned_methods():
        remedy = (
            f"method {method} has no value to choose for each layer; set plan to none, or method to one of "
        )
        yield LayoutError("compression.plan", config.compression.plan, remedy + ", ".join(planned_methods()))
    if method == "none":
        return
    if layout.inner == 1:
        place_text = "with dp=1" if layout.data == 1 else "in replicas of one data rank"
        other = "raise dp" if layout.data == 1 else "lower outer.replicas"
        yield LayoutError(
            "compression.method", method, f"{place_text} no gradient is sent; set it to none or {other}"
        )
    if config.parallel.zero_stage and not COMPRESSION_METHODS[method].one_way:
        yield LayoutError(
            "compression.method",
            method,
            f"needs zero_stage 0 (whole gradient buckets); set one of the two, or method to {' or '.join(one_way())}",
        )
    for glob, value in config.compression.layers.items():
        layer_value = COMPRESSION_METHODS[method].layer_value
        if value == "none":
            continue
        if layer_value is None:
            remedy = f'{method} has no value for parameters; give "none", or leave it out'
            yield LayoutError(f"compression.layers.{glob}", value, remedy)
        elif problem := layer_value.problem(value):
            yield LayoutError(
                f"compression.layers.{glob}", value, f"is {layer_value.unit} with {method}; {problem}"
            )
    if COMPRESSION_METHODS[method].has("rank") and is_decoder(config.model):
        yield from _rank_problem(config, resolve(config.model))


def _format_problems(config: RunConfig) -> Iterator[LayoutError]:
    experts = config.compression.experts
    if experts == "bf16" and config.precision == "bf16":
        yield LayoutError("compression.experts", experts, "tokens are bf16 already; set it to none or int8")
    if is_bucketed(config):
        yield from _bucket_problems(config)


def _bucket_problems(config: RunConfig) -> Iterator[LayoutError]:
    key, experts, rate = "compression.experts", config.compression.experts, config.compression.expert_rate
    if config.model.capacity_factor is not None:
        remedy = "an expert's slots are as many whatever is sent; leave out model.capacity_factor, or set this to int8"
        yield LayoutError(key, experts, remedy)
    if config.model.experts is not None and rate >= (least := format_share(config)) and experts == "lsh_int8":
        remedy = f"int8 alone sends {least:.4g} of the bytes; choose less, or set compression.experts to int8"
        yield LayoutError("compression.expert_rate", rate, remedy)


def _rank_problem(config: RunConfig, shape: ModelShape) -> Iterator[LayoutError]:
    """A rank at which no matrix gets smaller; of those at which some do, the others are left alone."""
    rank, sizes = config.compression.rank, _matrices(config, shape)
    legal, rows, columns = max((max(1, n * m // (2 * (n + m))), n, m) for n, m in sizes)
    if rank <= legal:
        return
    largest = f"the largest matrix of a rank is {rows:,} x {columns:,}"
    remedy = (
        "that is more than it has rows or columns"
        if rank > min(rows, columns)
        else "that saves less than half"
    )
    yield LayoutError("compression.rank", rank, f"{largest}; {remedy}; nearest legal: {legal}")


def _matrices(config: RunConfig, shape: ModelShape) -> list[tuple[int, int]]:
    tp, hidden = config.parallel.tp, shape.hidden
    width = (
        shape.ffn_hidden
        if config.model.experts is None
        else config.model.expert_ffn_hidden or shape.ffn_hidden
    )
    return [(max(1, size // tp), hidden) for size in (shape.vocabulary, hidden, width)]


def overlap_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule about what is sent beside computation."""
    if config.overlap.gather_with_optimizer and config.memory.offload in ("optimizer", "both"):
        remedy = "weights come back from the host all at once; set it to false, or offload less"
        yield LayoutError("overlap.gather_with_optimizer", True, remedy)
    yield from _chunk_rules(config)
    if config.outer.method == "none":
        return
    # An outer loop takes weights and gives new ones between steps: nothing may be under way then.
    for setting in refused_settings(config, Context.OUTER_LOOP):
        why = setting.why or f"not beside outer.method {config.outer.method}"
        yield LayoutError(setting.key, setting.value, f"{why}; {setting.remedy}")


def _chunk_rules(config: RunConfig) -> Iterator[LayoutError]:
    chunks, parallel = config.overlap.tp_chunks, config.parallel
    if chunks == 1 or parallel.tp == 1:
        return
    if config.compile:
        yield LayoutError(
            "overlap.tp_chunks", chunks, "chunks run outside compiled code; set it to 1, or compile to false"
        )
    ranks, length = parallel.cp * parallel.tp, config.data.sequence_length
    if length % ranks == 0 and (length // ranks) % chunks:
        chunk = length // ranks
        nearest = min((n for n in range(1, chunk + 1) if chunk % n == 0), key=lambda n: (abs(n - chunks), n))
        yield LayoutError(
            "overlap.tp_chunks",
            chunks,
            f"must divide a rank's part of the sequence, {several(chunk, 'tokens')}; nearest legal: {nearest}",
        )


def outer_problems(config: RunConfig, layers: int | None) -> Iterator[LayoutError]:
    """Every broken rule about outer loops; ``layers`` are those of the model, None where nobody knows them yet."""
    method = config.outer.method
    if method == "none" or config.parallel.dp == 1:
        return
    yield from _replica_problems(config)
    if OUTER_METHODS[method].has("fragments"):
        yield from _fragment_problems(config, layers)


def _replica_problems(config: RunConfig) -> Iterator[LayoutError]:
    parallel, replicas = config.parallel, config.outer.replicas or config.parallel.dp
    if parallel.dp % replicas:
        legal = [n for n in range(2, parallel.dp + 1) if parallel.dp % n == 0]
        nearest = min(legal, key=lambda n: abs(n - replicas))
        yield LayoutError(
            "outer.replicas", replicas, f"must divide dp={parallel.dp}; nearest legal: {nearest}"
        )
        return
    inner = layout_of(config).inner
    for field, value in (("parallel.ep", parallel.ep), ("parallel.shard_ranks", parallel.shard_ranks or 1)):
        if inner % value:
            yield LayoutError(
                field,
                value,
                f"must divide the {inner} data ranks of one replica ({replicas} replicas); "
                "lower it or outer.replicas",
            )


def _fragment_problems(config: RunConfig, layers: int | None) -> Iterator[LayoutError]:
    outer = config.outer
    most = outer.period if layers is None else min(layers, outer.period)
    if outer.fragments > most:
        text = f"layers={layers} in rounds of {several(outer.period, 'steps')}"
        yield LayoutError(
            "outer.fragments",
            outer.fragments,
            f"at most one a layer and a step: {text}; nearest legal: {most}",
        )
        return
    between = outer.period // outer.fragments
    if outer.overlap >= between:
        yield LayoutError(
            "outer.overlap",
            outer.overlap,
            f"the next fragment is sent {several(between, 'steps')} later, and one is under way at a time; "
            f"nearest legal: {between - 1}",
        )


def network_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule about the networks that groups send over."""
    network, islands = config.network, config.network.island_devices
    if config.lab.is_wanted:
        yield from _lab_network_problems(config)
    elif network.inside is not None and islands is None:
        remedy = "nobody told which ranks are on one island; set network.island_devices, or leave it out"
        yield LayoutError("network.inside", network.inside, remedy)
    elif islands is not None:
        if network.inside is None:
            remedy = "nothing is sent otherwise inside of islands; set network.inside, or leave it out"
            yield LayoutError("network.island_devices", islands, remedy)
        yield from _island_problems(islands, layout_of(config).world_size)


def _lab_network_problems(config: RunConfig) -> Iterator[LayoutError]:
    network = config.network
    if network.island_devices is not None:
        remedy = "the lab has islands of its own; leave it out"
        yield LayoutError("network.island_devices", network.island_devices, remedy)
    second = config.lab.inside_mbit is not None
    legal = {"inside": [DATA, INSIDE] if second else [DATA], "between": [DATA]}
    for key, names in legal.items():
        if (name := getattr(network, key)) is not None and name not in names:
            card_hint = "" if second or key == "between" else "; lab.inside_mbit gives them a second card"
            remedy = f"hosts of the lab reach each other there over {' or '.join(names)}{card_hint}"
            yield LayoutError(f"network.{key}", name, remedy)


def _island_problems(islands: int | list[int], ranks: int) -> Iterator[LayoutError]:
    if isinstance(islands, list):
        if sum(islands) != ranks:
            these = several(sum(islands), "devices")
            remedy = f"these are {these}, and this layout has {several(ranks, 'ranks')}; give as many"
            yield LayoutError("network.island_devices", islands, remedy)
    elif ranks % islands:
        near = [size for size in range(1, ranks + 1) if ranks % size == 0]
        remedy = f"must divide the {several(ranks, 'ranks')}; legal: {', '.join(map(str, near))}, or a list"
        yield LayoutError("network.island_devices", islands, remedy)
