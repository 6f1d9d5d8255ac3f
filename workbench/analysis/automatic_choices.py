"""What a study picked for its winner, what was foretold of each pick, and what was measured with another value.

Of studies in which something was worked out: an order of ranks, layers of stages, a plan for activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config.knobs.catalogue import facts_of
from engine.config.knobs.facts import AUTO
from engine.run import run_folder
from tuning.space.points import WORLD_DEGREES
from workbench.text import words

if TYPE_CHECKING:
    from engine.config.run_config import RunConfig
    from tuning.report.study_result import Entry, Measurement, StudyResult, TrialRow
    from tuning.space.space import Space
    from tuning.spec.study_file import StudyFile

PLACEMENT, STAGE_LAYERS = "parallel.placement", "schedule.stage_layers"
BLOCK_ACTIONS = "memory.block_actions"


@dataclass(frozen=True, slots=True)
class ChoicePrediction:
    """A number that speaks for a pick, ``what`` it is of, and the same number ``instead``, with something else."""

    what: str
    value: float
    other: float
    instead: str
    unit: str

    @property
    def line(self) -> str:
        """``messages of a step by the rates of links: 30.0 ms, 120.0 ms with ranks at 0,2,1,3``."""
        texts = [
            words.seconds(amount) if self.unit == "s" else f"{amount:.3g} {self.unit}"
            for amount in (self.value, self.other)
        ]
        return f"{self.what}: {texts[0]}, {texts[1]} {self.instead}"


@dataclass(frozen=True, slots=True)
class ChoiceMeasurement:
    """What the search measured of the winner and of the best ``trial`` with another value, both as they are shown, one
    run each. ``alike``: that one differs in nothing else.
    """

    value: str
    other_value: str
    trial: int
    other: str
    alike: bool

    @property
    def line(self) -> str:
        """``2.8 loss in the search, 3.3 loss with in order (trial 4, which differs in other settings, too)``."""
        condition = "all else the same" if self.alike else "other settings differ, too"
        return f"{self.value} in the search, {self.other_value} with {self.other} (trial {self.trial}, {condition})"


@dataclass(frozen=True, slots=True)
class AutomaticChoice:
    """The value of one key in the winner, and in the baseline, in words."""

    key: str
    title: str
    picked: str
    baseline: str
    foretold: ChoicePrediction | None = None
    measured: ChoiceMeasurement | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, and the sentence."""
        return asdict(self) | {"line": line(self)}

    @property
    def reason(self) -> str:
        """What speaks for it."""
        return "; ".join(
            prediction.line for prediction in (self.foretold, self.measured) if prediction is not None
        )


def line(pick: AutomaticChoice) -> str:
    """The pick and what speaks for it, in one sentence."""
    baseline_text = "as in the baseline" if pick.picked == pick.baseline else f"the baseline: {pick.baseline}"
    return "; ".join(filter(None, (f"{pick.title}: {pick.picked} ({baseline_text})", pick.reason)))


def explain_choices(result: StudyResult, file: StudyFile | None, home: Path) -> list[AutomaticChoice]:
    """Of each knob that acts in the best trial, and of the plan for its activations; none where nothing was worked
    out.
    """
    best = result.best
    if file is None or best is None or not best.resolved:
        return []
    space, chosen_keys = (
        file.search_space,
        [knob.key for knob in file.knobs if len(knob.grid()) > 1 or knob.contains(AUTO)],
    )
    keys = [key for key in chosen_keys if space.is_active(key, best.config)]
    config = space.config(best.config)
    choices = [_pick(key, result, best, space, _predict_gain(key, config, space)) for key in keys]
    if BLOCK_ACTIONS in best.resolved:
        choices.append(_pick(BLOCK_ACTIONS, result, best, space, _plan_foretold(home, best)))
    return choices


def _pick(
    key: str, result: StudyResult, best: Entry, space: Space, prediction: ChoicePrediction | None
) -> AutomaticChoice:
    measured = None if key == BLOCK_ACTIONS else _compare_with_others(key, result, best, space)
    baseline = words.NOTHING if result.baseline is None else _value_text(key, result.baseline, space)
    return AutomaticChoice(
        key, facts_of(key).title, _value_text(key, best, space), baseline, prediction, measured
    )


def _value(key: str, row: Entry | Measurement, space: Space) -> Any:
    """As it ran."""
    return row.resolved.get(key, row.config.get(key, space.base_values.get(key)))


def _value_text(key: str, row: Entry | Measurement, space: Space) -> str:
    value = _value(key, row, space)
    if key == BLOCK_ACTIONS:
        return actions(value or [])
    if not space.is_active(key, row.config):
        return words.NOTHING
    if value is None:
        text = facts_of(key).unset
    else:
        text = ",".join(map(str, value)) if isinstance(value, list) else words.value(value)
    return f"{text} ({AUTO})" if row.config.get(key) == AUTO else text


def actions(letters: Sequence[str]) -> str:
    """Of the model's blocks, from first to last: ``2 disk, 6 keep``."""
    return ", ".join(f"{len(list(group))} {action}" for action, group in groupby(letters))


def _compare_with_others(
    key: str, result: StudyResult, best: Entry, space: Space
) -> ChoiceMeasurement | None:
    winner_row = next((row for row in result.trials if row.number == best.trial), None)
    value = _value(key, best, space)
    others = [
        row
        for row in result.trials
        if row.value is not None and space.is_active(key, row.config) and _value(key, row, space) != value
    ]
    if winner_row is None or winner_row.value is None or not others:
        return None
    same = {key, "parallel.dp"} if key in WORLD_DEGREES else {key}
    near_rows = [row for row in others if _differs_in(row, best, space) <= same]
    other: TrialRow = max(near_rows or others, key=lambda row: row.ranking)
    own_value, other_value = (result.aim.words(row.value) for row in (winner_row, other))
    return ChoiceMeasurement(
        own_value, other_value, other.number, _value_text(key, other, space), bool(near_rows)
    )


def _differs_in(row: TrialRow, best: Entry, space: Space) -> set[str]:
    """Keys that act in both."""
    keys = row.config.keys() & best.config.keys()
    active_keys = {key for key in keys if all(space.is_active(key, trial.config) for trial in (row, best))}
    return {key for key in active_keys if row.config[key] != best.config[key]}


def _predict_gain(key: str, config: RunConfig, space: Space) -> ChoicePrediction | None:
    """By formula, of what ``auto`` chooses: beside the base's own value, or what stands there without one."""
    from tuning.predict.placement.automatic import (
        message_seconds,
        slowest_stage_layers,
    )  # most studies ask for neither

    if key == PLACEMENT:
        plain = space.base.parallel.placement
        seconds, other = (
            message_seconds(layout_config) for layout_config in (config, config.with_values({key: plain}))
        )
        if seconds is None or other is None or plain == config.parallel.placement:
            return None
        alternative = f"with ranks at {','.join(map(str, plain))}" if plain else "with ranks in order"
        return ChoicePrediction("messages of a step by the rates of links", seconds, other, alternative, "s")
    if key == STAGE_LAYERS and config.schedule.stage_layers and config.schedule.chunks == 1:
        seconds, other = (
            slowest_stage_layers(layout_config) for layout_config in (config, config.with_values({key: None}))
        )
        label = "the longest stage computes, its head counted"
        return ChoicePrediction(label, seconds, other, "with even stages", "layers")
    return None


def _plan_foretold(home: Path, best: Entry) -> ChoicePrediction | None:
    """By what the run measured before its first step, of the stage for which planning is worth most."""
    summary = run_folder.read_json(home / (best.run or "") / run_folder.SUMMARY) or {}
    rows = [row for row in summary.get("memory_plans") or [] if row.get("uniform_seconds")]
    if not rows:
        return None
    row = max(rows, key=lambda row: row["uniform_seconds"] / row["micro_batch_seconds"])
    label = f"forward and backward of a micro-batch on stage {row['stage']}"
    alternative = f"with {row['uniform']} for all its blocks, the fastest such that fits"
    return ChoicePrediction(label, row["micro_batch_seconds"], row["uniform_seconds"], alternative, "s")
