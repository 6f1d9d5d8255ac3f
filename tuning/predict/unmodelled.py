"""What of a configuration the closed forms leave out, in words: said beside each answer, never guessed. Pure."""

from __future__ import annotations

from engine.config import environment
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig

#: Schedules of which more than the bubble is another than 1F1B's.
_ORDERS = ("breadth_first", "layered")


def notes(config: RunConfig, lab_known: bool = False) -> list[str]:
    """A line for each setting whose time is not modelled; ``lab_known``: its links are those of the lab."""
    said = {**_parallel(config), **_overlap(config), **_memory(config)}
    variables = ", ".join(environment.asked(config.environment))
    said[f"environment: what {variables} changes is not modelled"] = bool(variables)
    kind = config.schedule.kind
    said[f"schedule.kind={kind}: what ZeRO gathers less often is not counted"] = kind in _ORDERS
    said["compile=true: kernels are taken as blocks are written"] = config.compile
    said["lab: links are those of the cluster, not of the lab"] = config.lab.wanted and not lab_known
    return [line for line, applies in said.items() if applies]


def _parallel(config: RunConfig) -> dict[str, bool]:
    parallel, outer, compression = config.parallel, config.outer, config.compression
    return {
        "experts: tokens sent to them, and their uneven number, are not modelled": config.model.experts
        is not None,
        f"parallel.shard_ranks={parallel.shard_ranks}: slices are taken to be spread over all of dp": (
            parallel.shard_ranks is not None and parallel.shard_ranks != layout_of(config).data
        ),
        "parallel.placement: seconds are those of ranks in order": parallel.placement is not None,
        "parallel.tp_regather=true: the second gathers are not counted": parallel.tp_regather,
        f"outer.method={outer.method}: its own step and what replicas average at every step are not counted": (
            outer.method != "none"
        ),
        f"compression.method={compression.method}: its own computation is not counted": compression.method
        != "none",
        "compression.weights: parameters are taken to be gathered as they are": compression.weights != "none",
    }


def _overlap(config: RunConfig) -> dict[str, bool]:
    overlap = config.overlap
    return {
        "overlap.prefetch: what it hides is not modelled": overlap.prefetch > 0,
        "overlap.tp_chunks: what tp hides is not modelled": overlap.tp_chunks > 1,
        "overlap.gather_with_optimizer: the gather is taken to come after the update": overlap.gather_with_optimizer,
        "overlap.delay: gradients are taken to be waited for": overlap.delay > 0,
    }


def _memory(config: RunConfig) -> dict[str, bool]:
    memory = config.memory
    return {
        f"memory.offload={memory.offload}: copies to and from the host are not modelled": memory.offload
        != "none",
        "memory.recompute_layers: all layers are taken to be computed again": memory.recompute_layers
        is not None,
    }
