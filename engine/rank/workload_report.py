"""Tells what is trained where that is not the decoder, whose numbers follow from the configuration; and what became of
requests for experts that lie elsewhere, and for batches that are made ahead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from engine.comm.context import RankContext
from engine.config.presets import WorkloadFacts
from engine.config.run_config import RunConfig
from engine.model.data import left_out_note
from engine.model.experts.mixture import Mixture
from engine.model.stage import Blueprint, Samples
from engine.model.workloads.batches_ahead import PrefetchedBatches
from engine.model.workloads.blueprint import open_blueprint
from engine.model.workloads.description import describe
from engine.model.workloads.sequential import ListedBlueprint
from engine.model.workloads.text import Windows
from engine.parallel.build import single_rank_axes
from profilers.analysis.events import AHEAD_EVENT, EXPERT_SLOTS_EVENT

#: The kind of the event.
EVENT = "workload"


def workload_facts(config: RunConfig) -> WorkloadFacts:
    """Of the workload that a configuration names, which is not the decoder.

    Raises:
        InputError: its factory, its parts, its weights or its data cannot be used.
    """
    blueprint = open_blueprint(config, single_rank_axes())
    assert isinstance(blueprint, ListedBlueprint)
    return describe(blueprint)


def report_slots(rank: RankContext, mixtures: Iterable[Mixture]) -> None:
    """What became of requests for experts that lie elsewhere, in the whole run."""
    slots = next((mixture.slots for mixture in mixtures if mixture.slots is not None), None)
    if slots is not None:
        facts = {
            "slots": slots.count,
            "experts": slots.experts,
            "slot_bytes": slots.slot_bytes,
            "home": slots.home,
        }
        rank.writer.event(EXPERT_SLOTS_EVENT, rank=rank.rank, **facts, **asdict(slots.use))


def report_ahead(rank: RankContext, samples: Samples) -> None:
    """What making batches ahead was good for, in the whole run."""
    if isinstance(samples, PrefetchedBatches):
        rank.writer.event(AHEAD_EVENT, rank=rank.rank, registers=samples.registers, **asdict(samples.use))


def report_texts(rank: RankContext, samples: Samples) -> None:
    """What of a folder is no text."""
    if isinstance(samples, Windows) and (left_out := samples.corpus.left_out):
        rank.note(left_out_note(left_out, "data.tasks" if rank.config.data.tasks else "data.path"))


def report_workload(rank: RankContext, blueprint: Blueprint) -> None:
    """Once, by rank 0."""
    if rank.rank == 0 and isinstance(blueprint, ListedBlueprint):
        rank.writer.event(EVENT, **asdict(describe(blueprint)))
