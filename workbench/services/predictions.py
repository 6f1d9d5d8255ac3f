"""Predictions for a study on this machine: there are some where it is calibrated for as many ranks.

What a configuration that somebody types would need of this machine, and how long its steps would take.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config.errors import InputError, several
from engine.config.layout import layout_of
from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig
from engine.footprint import footprint
from engine.run.calibration import fingerprint
from workbench.text.output import say

if TYPE_CHECKING:
    from tuning.predict.forecast_document import Range
    from tuning.predict.model.headroom import Allowance
    from tuning.predict.target import Target
    from tuning.search.prediction_prior import PredictionPrior, PriorMaker
    from tuning.space.space import Space
    from tuning.spec.study_file import StudyFile


def prior_maker(home: Path, file: StudyFile) -> PriorMaker | None:
    """What predicts a study's space; it says why, once the study begins, where nothing can. The formulas that play a
    simulated study would know its trials beforehand: they say only whether anything runs.
    """
    if file.prior == "none" or file.config.trainer or (file.simulate is not None and file.turns_work):
        return None

    def make_prior(space: Space) -> PredictionPrior | None:
        from tuning.search.prediction_prior import PredictionPrior

        target = _target(home, file) if file.simulate is None else _simulated_target(file)
        may_propose = file.simulate is None and not file.turns_learning
        return None if target is None else PredictionPrior(space, target, file.seed, may_propose)

    return make_prior


def _simulated_target(file: StudyFile) -> Target | None:
    from tuning.predict.target import parse_target

    return parse_target(file.simulate.cluster, None, file.ranks) if file.simulate else None


def _target(home: Path, file: StudyFile) -> Target | None:
    from workbench.home.calibrations import target_of

    if not is_decoder(file.config.model):
        say(f"no predictions: formulas know the decoder alone, and {file.config.model.workload} is trained")
        return None
    if file.turns_work:
        say("no predictions: the study turns its ranks or the tokens of a step")
        return None
    try:
        target = target_of(home, None, None, file.ranks)
        target.check(file.ranks)
    except InputError as error:
        say(f"no predictions: {error.remedy.partition(', or name a cluster')[0]}")
        return None
    return target


@dataclass(frozen=True, slots=True)
class MemoryGauge:
    """Bytes of the rank that holds most: those that the formula counts, and a range with what it leaves out (libraries,
    the allocator's gaps). ``limit_bytes`` is what that rank may have, None where nobody told; ``limit`` says of what.
    """

    rank: int
    counted_bytes: int
    bytes: Range
    limit_bytes: int | None
    limit: str
    out_of_memory_probability: float | None


@dataclass(frozen=True, slots=True)
class Gauge:
    """What is known of a configuration before it runs. What is None says why in ``unknown``. ``left_out`` are settings
    whose time is not modelled; ``notes`` have them, and whence the prediction of a step is.
    """

    memory: MemoryGauge | None
    step_seconds: Range | None
    tokens_per_second: float | None
    unknown: str
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_target(home: Path) -> Target | str:
    """This machine with what its runs taught, for several gauges; else why nothing can be predicted."""
    from workbench.home.calibrations import target_of

    try:
        return target_of(home, None, None, None)
    except InputError as error:
        return error.remedy.partition(", or name a cluster")[0]


def gauge(config: RunConfig, target: Target | str) -> Gauge:
    """Of a configuration that keeps every rule. Formulas alone: nothing runs, and no torch is loaded."""
    from tuning.predict import forecast_document
    from tuning.predict.forecast import forecasts

    on_cpu, memory = _on_cpu(config), None
    try:
        memory = _gauge_memory(config, target, on_cpu)
        if isinstance(target, str) or (why := _why_not_here(config, target, on_cpu)):
            return Gauge(memory, None, None, target if isinstance(target, str) else why)
        (step,) = forecasts([config], target)
    except InputError as error:
        return Gauge(memory, None, None, str(error))
    left_out = tuple(forecast_document.notes(config, step.target.in_lab))
    return Gauge(memory, step.step_seconds, step.tokens_per_second, "", left_out, step.notes)


def _why_not_here(config: RunConfig, target: Target, on_cpu: bool) -> str:
    """What was not calibrated; empty where it was."""
    if target.on_cpu != on_cpu:
        measured_device, target_device = ("the CPU", "GPUs") if target.on_cpu else ("GPUs", "the CPU")
        return f"calibrated for ranks on {measured_device}, and these would be on {target_device}"
    ranks, most = layout_of(config).world_size, target.most_ranks
    return (
        f"calibrated for {several(most, 'ranks')} at the most, and this has {ranks:,}" if ranks > most else ""
    )


def _on_cpu(config: RunConfig) -> bool:
    """Whether its ranks would be on the CPU, as far as that is told without asking torch."""
    if config.device != "auto":
        return config.device == "cpu"
    return config.lab.is_wanted or len(fingerprint.this_machine().gpus) < layout_of(config).world_size


def _gauge_memory(config: RunConfig, target: Target | str, on_cpu: bool) -> MemoryGauge:
    """Beside what the rank is allowed.

    Raises:
        InputError: formulas do not know the model.
    """
    import numpy as np

    from tuning.predict.forecast_document import Range
    from tuning.predict.model import headroom

    footprints = footprint.largest(config)
    limit, of_what = _limit(config, on_cpu)
    allowance: Allowance = headroom.ON_CPU if on_cpu else headroom.ON_GPU
    if not isinstance(target, str) and target.on_cpu == on_cpu:
        allowance = target.allowance
    overheads = headroom.overhead_columns([headroom.rank_overhead(config, on_cpu)])
    counted_bytes = np.array([footprints.total_bytes], np.float64)
    needs = headroom.predict_memory(counted_bytes, limit or np.inf, allowance, overheads)
    range_ = Range(*(float(column[0]) for column in needs[:3]))
    probability = None if limit is None else float(needs.probability[0])
    return MemoryGauge(footprints.rank, footprints.total_bytes, range_, limit, of_what, probability)


def _limit(config: RunConfig, on_cpu: bool) -> tuple[int | None, str]:
    """Bytes that a rank may have, and what they are of."""
    from tuning.predict.cluster.this_machine import memory_of_rank

    memory = memory_of_rank(fingerprint.this_machine(), layout_of(config).world_size, on_cpu=on_cpu)
    limit = config.memory.limit_gib
    if on_cpu and limit is not None and (memory is None or limit * 2**30 < memory):
        return int(limit * 2**30), "memory.limit_gib"
    return memory, "its part of this host's memory" if on_cpu else "its GPU's memory"
