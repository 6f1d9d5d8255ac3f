"""What a window may cost the run that it is made on: time, and its ranks' memory. Pure.

What the run was measured to hold is taken for true; formulas say only by how much a turn would change it.
"""

from __future__ import annotations

from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig
from engine.footprint.footprint import largest
from engine.run.outcome import EarlyEnd, Ending
from profilers.model.run_summary import RunSummary
from tuning.analysis.measures import free_bytes
from tuning.execution.live.ongoing_run import StepRange
from tuning.spec.terms import Live

_MIB = 2**20


class SlowdownBudget:
    """Windows of a run, each beside as many steps of the baseline: of the first one, unless it is known what a step of
    the ``baseline`` took (seconds), as it is when a search goes on.
    """

    def __init__(self, live: Live, baseline: float | None = None) -> None:
        self._live, self._baseline = live, baseline
        #: What a step takes now over what it took when the baseline was measured: a machine becomes slower and faster.
        self.level = 1.0
        self._windows: list[tuple[StepRange, bool, float]] = []

    def note(self, stretch: StepRange, undone: bool = False) -> None:
        """A window is over; it may be ``undone``, and is lost as a whole then."""
        if self._baseline is None and stretch.steps:
            self._baseline = stretch.seconds / stretch.steps
        self._windows.append((stretch, undone, self.level))

    def too_dear(self, stretch: StepRange, undone: bool = False) -> EarlyEnd | None:
        """How a window ends that makes the last ``over_steps`` slower than ``max_slowdown`` allows; None: it may go on.

        What earlier windows of these steps lost counts; what others gained does not.
        """
        if self._baseline is None or not stretch.measured_steps:
            return None
        live, now = self._live, stretch.first + stretch.steps
        recent = [
            window for window in self._windows if window[0].first + window[0].steps > now - live.over_steps
        ]
        lost_seconds = sum(
            max(0.0, self._lost_seconds(*part)) for part in (*recent, (stretch, undone, self.level))
        )
        allowed = live.max_slowdown * live.over_steps * self._baseline * self.level
        if lost_seconds <= allowed:
            return None
        return EarlyEnd(
            Ending.PRUNED,
            f"stopped early: the last {live.over_steps:,} steps took {lost_seconds:.2f} s longer than the "
            f"baseline's would, {allowed:.2f} s are allowed",
        )

    def _lost_seconds(self, stretch: StepRange, undone: bool, level: float) -> float:
        return stretch.seconds - (0 if undone else stretch.steps) * level * (self._baseline or 0.0)


def memory_shortage(measured: RunConfig, summary: RunSummary, wanted: RunConfig) -> str:
    """Why values are not turned to, from what a window of the ``measured`` ones held; empty where they fit, or where
    nothing is known of a rank's memory.
    """
    if (
        wanted.trainer
        or not is_decoder(wanted.model)
        or (free := free_bytes(summary, wanted.memory.limit_gib)) is None
    ):
        return ""
    additional = largest(wanted).total_bytes - largest(measured).total_bytes
    if additional <= max(free, 0.0):
        return ""
    return (
        f"predicted not to fit: a rank would hold {additional / _MIB:,.0f} MiB more than in the window before, and "
        f"{max(free, 0.0) / _MIB:,.0f} MiB are free"
    )
