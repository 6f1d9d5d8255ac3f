"""Is a layout legal, and what must its ranks hold? For any number of ranks, in seconds, on one process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.dry_run.pool import build_ranks
from engine.dry_run.rank import BuiltStage
from engine.footprint.activations import FP32_BYTES, ActivationBytes
from engine.footprint.budget import check_budget
from engine.footprint.footprint import (
    Footprint,
    activation_bytes,
    clip_to_budget,
    footprints,
    parts_of,
    plan_of,
    sums_whole_gradients,
)
from engine.footprint.weights import offloads_optimizer
from engine.schedules.actions import Action

#: What the numbers leave out or suppose, said where it matters.
_COMPILED = "Compiled blocks keep other activations than these, which are those of the blocks as written."
_EVEN = "Tokens are taken to fall evenly on all experts; in training, some experts get more."
_HOST = "A rank on a CPU has one memory: add what is offloaded to its total."


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a dry run found. ``stages`` has one row for each place of the pipeline, as it was built; ``formulas`` says
    the same by formula. ``mismatches`` name rows whose parameters differ between the two: a mistake of ours.
    """

    problems: tuple[str, ...]
    layout: dict[str, int]
    world_size: int
    stages: tuple[Footprint, ...] = ()
    formulas: tuple[Footprint, ...] = ()
    mismatches: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def legal(self) -> bool:
        """Whether every rule is kept."""
        return not self.problems

    @property
    def largest(self) -> Footprint | None:
        """The row whose ranks hold most."""
        return max(self.stages, key=lambda row: row.total_bytes, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values; each row with its activations by formula beside those that were counted."""
        rows = zip(self.stages, self.formulas, strict=True)
        return {
            "legal": self.legal,
            "problems": list(self.problems),
            "layout": self.layout,
            "world_size": self.world_size,
            "stages": [_row(built, formula) for built, formula in rows],
            "largest_bytes": self.largest.total_bytes if self.largest else None,
            "mismatches": list(self.mismatches),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def dry_run(config: RunConfig) -> DryRun:
    """Check a configuration and build one rank of each kind that its layout has, without memory for its numbers.

    Raises:
        BuildError: a rank could not be built.
    """
    began = time.monotonic()
    layout = layout_of(config)
    result = DryRun(tuple(broken_rules(config)), layout.as_dict(), layout.world_size)
    if result.legal:
        result = _look(result, config)
    return replace(result, seconds=time.monotonic() - began)


def broken_rules(config: RunConfig) -> list[str]:
    """Every rule that a configuration breaks, one line each."""
    try:
        problems = [str(problem) for problem in rules.problems(config)]
        if not problems:
            check_budget(config)
        return problems
    except InputError as problem:
        return [str(problem)]


def _look(result: DryRun, config: RunConfig) -> DryRun:
    formulas = footprints(config)
    stages = _build_footprints(config, formulas)
    mismatches = tuple(filter(None, map(_mismatch, stages, formulas)))
    return replace(
        result, stages=stages, formulas=formulas, mismatches=mismatches, notes=tuple(_notes(config))
    )


def _build_footprints(config: RunConfig, formulas: Sequence[Footprint]) -> tuple[Footprint, ...]:
    """The rows as ranks were built: one rank for all places of the pipeline that hold the same parts of the model."""
    chosen = plan_of(config)
    parts = parts_of(config, chosen)
    kinds = [tuple(parts[stage] for stage in row.stages) for row in formulas]
    ranks = {kind: row.rank for kind, row in zip(kinds[::-1], formulas[::-1], strict=True)}
    # What a micro-batch leaves does not depend on how many there are; their plan is then short.
    once = {
        "batch.global_batch": config.parallel.dp * config.batch.micro_batch,
        "schedule.skip_share": 0.0,
        "data.tasks": [],
    }
    plain = {"compile": False, "device": "cpu", "profile.collectives": False}
    built = build_ranks(config.with_values(once | plain), list(ranks.values()))
    by_kind = dict(zip(ranks, built, strict=True))
    rows = enumerate(zip(formulas, kinds, strict=True))
    return tuple(_as_built(config, row, chosen.actions[place], by_kind[kind]) for place, (row, kind) in rows)


def _as_built(
    config: RunConfig, row: Footprint, actions: Sequence[Action], built: Sequence[BuiltStage]
) -> Footprint:
    """A row with what was counted in place of formulas."""
    counted = [rank.parameter_counts for rank in built]
    activations: dict[int, ActivationBytes] = {
        stage: rank.activations for stage, rank in zip(row.stages, built, strict=True)
    }
    device, host = activation_bytes(actions, activations)
    gradients = sum(counts.gradient_bytes for counts in counted)
    if sums_whole_gradients(config):
        gradients = max(gradients, FP32_BYTES * sum(counts.whole for counts in counted))
    optimizer = sum(counts.optimizer_bytes for counts in counted)
    leaves = offloads_optimizer(config)
    return replace(
        row,
        parameters=sum(counts.parameters for counts in counted),
        parameter_bytes=sum(counts.parameter_bytes for counts in counted),
        gradient_bytes=gradients,
        optimizer_bytes=0 if leaves else optimizer,
        activation_bytes=clip_to_budget(config, device),
        host_bytes=host + (optimizer if leaves else 0),
    )


def _mismatch(built: Footprint, formula: Footprint) -> str | None:
    if built.parameters == formula.parameters:
        return None
    return f"rank {built.rank} was built with {built.parameters:,} parameters; the formula says {formula.parameters:,}"


def _notes(config: RunConfig) -> list[str]:
    limits = {
        _COMPILED: config.compile,
        _EVEN: config.model.experts is not None and config.model.capacity_factor is None,
        _HOST: config.memory.offload != "none",
    }
    return [note for note, applies in limits.items() if applies]


def _row(built: Footprint, formula: Footprint) -> dict[str, Any]:
    tree = built.as_dict()
    stage = {"stage": list(tree.pop("stages"))}
    return stage | tree | {"activation_formula_bytes": formula.activation_bytes}
