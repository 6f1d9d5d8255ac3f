"""How a run comes to the values of a window: turned as it goes on, or from a copy, on steps that the baseline did, too.

What loses something is measured on the very steps of a window of the baseline, from the same weights and on the same
text, so that their losses on held-out text compare. Those steps count once: what the baseline made of them is undone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from engine.config.knobs.catalogue import is_lossy
from engine.config.layout import least_steps, round_steps
from engine.config.run_config import RunConfig
from engine.config.validation import live_changes
from engine.run.commands import BACK, SET, TRY
from tuning.analysis.learning import learning
from tuning.execution.live.ongoing_run import OngoingRun
from tuning.spec.terms import LossGuard


@dataclass(frozen=True, slots=True)
class Reference:
    """``steps`` of a run that the baseline did from a copy on, kept before the ``first`` of them: its loss on held-out
    text at the ``start`` and after them, what those of them took that count (``seconds``), and the configuration that
    held ``before`` them: to go back is to go back to that.
    """

    run: str
    first: int
    steps: int
    before: RunConfig
    start: float | None = None
    loss: float | None = None
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowStart:
    """The ``first`` step of a window under its values; ``loss_before`` which step its loss is taken, None if it is not;
    whether what the run did since its copy was ``undone``, and whether it begins ``on_copy``: it may be returned to.
    """

    first: int
    loss_before: int | None = None
    undone: bool = False
    on_copy: bool = False


@dataclass(frozen=True, slots=True)
class Losses:
    """On held-out text: of a ``window``, of the baseline after the same steps (``reference``), and the
    ``loss_before`` both, which the run had after ``steps_before``. None where one was not taken.
    """

    window: float | None
    reference: float | None = None
    loss_before: float | None = None
    steps_before: int | None = None


def increase(losses: Losses, steps: int) -> float:
    """By what share a window of so many ``steps`` loses more than the baseline does, now or, as it looks, later on;
    infinite where that is not known.
    """
    own_loss, usual = losses.window, losses.reference
    if own_loss is None or not usual:
        return math.inf
    learned = learning(losses, own_loss, usual, steps)
    return max(own_loss / usual - 1, learned.increase if learned else 0.0)


class WindowTransitions:
    """Of the windows of one run. ``baseline``: of a study that turns something that loses; without, losses are nobody's
    concern and every window is turned to as the run goes on.
    """

    def __init__(self, baseline: RunConfig | None = None, guard: LossGuard | None = None) -> None:
        self._given, self._baseline, self._guard = baseline, baseline, guard or LossGuard()
        self._reference: Reference | None = None
        self._spoilt = False

    def hold(self, values: dict[str, Any]) -> None:
        """The baseline has these values, which somebody set by hand, from now on."""
        self._baseline = None if self._given is None else self._given.with_values(values)

    def needs_reference(self, run: OngoingRun, config: RunConfig) -> RunConfig | None:
        """The baseline as it has to be measured before this window; None if there is no need."""
        if self._baseline is None or not self._is_judged(config) or self._is_baseline(config):
            return None
        if self._is_reference(run, config.train.steps):
            return None
        return self._baseline.with_values({"train.steps": config.train.steps})

    def turn(self, run: OngoingRun, config: RunConfig, by: str, judged: bool) -> WindowStart | None:
        """Turn the run to a window's values; None where it has them and goes on. Its loss is to be ``judged``.

        Raises:
            InputError: it is not legal.
            UnansweredError: not all ranks answered.
        """
        steps, reference = config.train.steps, self._reference
        if judged and self._is_baseline(config):
            before = run.config
            began = run.turn(self._values(before, config), by, TRY, steps)
            self._reference, self._spoilt = Reference(run.id, began.step, steps, before), False
            return WindowStart(began.step, began.step + steps, on_copy=True)
        if reference is not None and self.tries(run, config, judged) is not None:
            return self._from_copy(reference, run, config, by, steps)
        if reference is not None and self._spoilt and reference.run == run.id:
            return self._from_copy(reference, run, config, by)
        if not (values := live_values(run.config, config)):
            self._reference = None  # the run goes on with it
            return None
        live_changes.change_config(run.config, values)
        self._reference = None
        return WindowStart(run.turn(values, by, SET).step)

    def tries(self, run: OngoingRun, config: RunConfig, judged: bool) -> int | None:
        """The step of the copy from which on a window does steps that may have to be undone; None if it does not."""
        reference = self._reference
        if reference is None or not judged or not self._is_judged(config) or self._is_baseline(config):
            return None
        return reference.first if self._is_reference(run, config.train.steps) else None

    def goes_back(self, run: OngoingRun, config: RunConfig, judged: bool, first: int) -> bool:
        """Whether :meth:`turn` undoes by itself what the run does since the copy that it kept before this step."""
        reference = self._reference
        if reference is None or (reference.run, reference.first) != (run.id, first):
            return False
        return not (judged and self._is_baseline(config))

    def forget(self) -> None:
        """What a run did since its copy is undone, and it goes on from there."""
        self._reference, self._spoilt = None, False

    def safe_config(self, run: OngoingRun) -> RunConfig:
        """What a run has now; where that lost too much, what it had before."""
        reference = self._reference
        return (
            reference.before
            if reference is not None and self._spoilt and reference.run == run.id
            else run.config
        )

    def judge(self, run: OngoingRun, config: RunConfig, began: WindowStart) -> Losses:
        """A window's loss, and of one that follows the baseline on the same steps what that comes to."""
        own_loss = None if began.loss_before is None else run.loss_before(began.loss_before)
        reference = self._reference
        if reference is None:
            return Losses(own_loss)
        if self._is_baseline(config):
            seconds = tuple(run.step_seconds(began.first))
            start = run.loss_before(reference.first)
            self._reference = replace(reference, start=start, loss=own_loss, seconds=seconds)
            return Losses(own_loss)
        compared = Losses(own_loss, reference.loss, reference.start, reference.first)
        if began.undone:
            self._spoilt = increase(compared, reference.steps) > self._guard.threshold
        return compared

    def baseline_steps(self, config: RunConfig) -> tuple[RunConfig, list[float]] | None:
        """The baseline, and the seconds of its steps that a window of this one does again; None where it does not."""
        if self._baseline is None or self._reference is None or self._is_baseline(config):
            return None
        return (self._baseline, list(self._reference.seconds)) if is_lossy(config.flat()) else None

    @property
    def is_spoilt(self) -> bool:
        """Whether the last window lost too much: the run goes back before anything else."""
        return self._spoilt

    def leave(self, run: OngoingRun, config: RunConfig, by: str) -> None:
        """Turn it to what it goes on with; what lost too much on the way is undone."""
        may_wait = self._reference is not None
        if self.turn(run, config, by, judged=False) is None and may_wait:
            run.turn({}, by, SET)  # nothing comes that ranks would wait for after a window

    def _from_copy(
        self, reference: Reference, run: OngoingRun, config: RunConfig, by: str, steps: int = 0
    ) -> WindowStart:
        values = self._values(reference.before, config)
        self._spoilt = True  # until it is judged or back: an unanswered order may be carried out yet
        began = run.turn(values, by, BACK, steps)
        self._spoilt = False
        if not steps:  # it goes on from here, and the copy grows old
            self._reference = None
        return WindowStart(began.step, began.step + steps if steps else None, undone=True, on_copy=steps > 0)

    def _values(self, now: RunConfig, wanted: RunConfig) -> dict[str, Any]:
        values = live_values(now, wanted)
        live_changes.change_config(now, values)
        return values

    def _is_judged(self, config: RunConfig) -> bool:
        return self._baseline is not None and (is_lossy(config.flat()) or self._is_baseline(config))

    def _is_baseline(self, config: RunConfig) -> bool:
        return self._baseline is not None and not live_values(self._baseline, config)

    def _is_reference(self, run: OngoingRun, steps: int) -> bool:
        reference = self._reference
        return (
            reference is not None
            and (reference.run, reference.steps) == (run.id, steps)
            and reference.loss is not None
        )


def live_values(now: RunConfig, wanted: RunConfig) -> dict[str, Any]:
    """What has to be turned to get from one configuration to the other."""
    return {change.key: change.new for change in live_changes.changes(now, wanted)}


def has_all_steps(run: OngoingRun, config: RunConfig, start: WindowStart) -> bool:
    """Whether as many steps were measured as the trial asks for, in whole rounds, and the loss after them."""
    round_length = round_steps(config)
    steps_of_trial = (config.train.steps - least_steps(config, 0)) // round_length * round_length
    if start.loss_before is not None and run.loss_before(start.loss_before) is None:
        return False
    stretch = run.steps_since(start.first)
    return stretch.measured_steps >= max(round_length, steps_of_trial) or (
        round_length == 1 and stretch.measured_steps > 0 and stretch.steps >= config.train.steps
    )
