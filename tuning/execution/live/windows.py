"""``Execute`` on a run that goes on: it is turned to a trial's values, and the steps that follow are summed up.

A window has a run folder of its own: the configuration that held, the summary of its steps, and in its status the run
and the steps that it covers. The run itself is started when the first window wants it. Where it died it goes on from
its last checkpoint with the values that held before the window that it died in.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.knobs.catalogue import is_lossy
from engine.config.layout import least_steps
from engine.config.run_config import RunConfig
from engine.lifecycle import summary_of
from engine.run import run_folder
from engine.run.commands import BACK
from engine.run.outcome import EarlyEnd, Ending, RunOutcome
from engine.run.ownership import this_process
from profilers.model.run_summary import RunSummary
from tuning.execution.executor import EndOfTrialsError, OnStart, Ran, ShouldStop
from tuning.execution.live.leader import MOST_BESIDE, Leader, may_lead_after_all, needs_after
from tuning.execution.live.limits import SlowdownBudget, memory_shortage
from tuning.execution.live.ongoing_run import BY_STUDY, OngoingRun, UnansweredError
from tuning.execution.live.pinned_values import PinnedValues
from tuning.execution.live.starter import RevertibleSteps, Starter
from tuning.execution.live.transition import WindowStart, WindowTransitions, has_all_steps, live_values
from tuning.execution.live.window_value import LEAST_STEPS
from tuning.storage.state import CHECK

_POLL_SECONDS = 0.1
#: If no window begins for so long, the run is given the fastest values so far.
IDLE_SECONDS = 2.0
#: The purpose of windows that measure a leader again: their speed counts, not their loss. The other way round: CHECK.
CONFIRM, BASELINE = "confirm", "baseline"
#: Of those that nobody asked for by hand.
_SEARCHING = ("sampler", "prior")
_OVER = "the run has done all of its steps"
_SHORT = "{steps} steps: the leader became as much slower"
_LATE = "an earlier order of the study was carried out within the window"
#: What is copied from the run's status to that of a window.
_OF_THE_RUN = ("backend", "backend_reason", "world_size", "layout", "devices", "placement", "lab_hosts", "fingerprint",
               "calibration", "calibration_reason")  # fmt: skip


class LiveWindows:
    """Measures trials on one run; where it ``races`` a window ends as soon as it cannot lead any more. :meth:`rest` or
    :meth:`leave` when the search is over.
    """

    def __init__(
        self,
        home: Path,
        starter: Starter,
        slowdown: SlowdownBudget,
        transitions: WindowTransitions | None = None,
        races: bool = False,
    ) -> None:
        self._home, self._starter, self._slowdown = home, starter, slowdown
        self._transitions = transitions or WindowTransitions()
        self._next_step = 0
        self._on_copy: list[Path] = []
        #: What the run was given last: other values were set by hand.
        self._last_given: RunConfig | None = None
        self._hand = PinnedValues(starter.study)
        self._leader, self._races = Leader(), races
        #: The number of the baseline's trial.
        self._baseline_trial: int | None = None
        #: The last window that measured its steps: what its ranks held says what others would.
        self._last_measured: tuple[RunConfig, RunSummary] | None = None
        #: The step from which on the run has the leader's values, where a window may follow that is held beside it.
        self._leader_since: int | None = None
        self._measuring = threading.Lock()
        self._idle = threading.Timer(0, lambda: None)

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        self._idle.cancel()
        with self._measuring:
            ran = self._window(config, labels, should_stop, on_start)
        self._idle = threading.Timer(IDLE_SECONDS, self._rest_meanwhile, [labels["study"]])
        self._idle.daemon = True
        self._idle.start()
        return ran

    def _rest_meanwhile(self, study: str) -> None:
        """Nobody measures, say while the study is paused: the run goes on with the fastest values so far, and with all
        that was set by hand.
        """
        with self._measuring:
            if (fastest := self._leader.config) is not None:
                self._give(fastest.with_values(self._hand.values), f"{BY_STUDY}{study}, the fastest so far")

    @property
    def _fastest(self) -> RunConfig | None:
        """The leader, with what was set by hand beside what is searched."""
        return (
            None
            if self._leader.config is None
            else self._leader.config.with_values(self._hand.values_not_searched)
        )

    def _window(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart
    ) -> Ran:
        """Measure one trial: the leader's steps, the window's own, and the leader's again where that may tell more."""
        run = self._ready(config, labels)
        self._adopt_manual_values(run, labels)
        config = config.with_values(self._hand.values_not_searched)
        self._check_worth_measuring(run, config, labels)
        folder = self._create_folder(run, config, labels, on_start)
        safe_values = self._transitions.safe_config(run)
        self._starter.keep(safe_values)
        began_at, first_step = time.monotonic(), run.step
        leader_before = self._leader_steps(run, config, labels, should_stop)
        level = self._leader.level(leader_before)
        self._slowdown.level = level or self._slowdown.level
        start, outcome = self._measure_with_reference(run, config, labels, should_stop, leader_before)
        if outcome.ending is Ending.COMPLETED and not has_all_steps(run, config, start):
            self._end(folder, run, RunOutcome(Ending.STOPPED, _OVER), start, config)
            raise EndOfTrialsError(_OVER)
        if run.outcome() is not None:
            self._starter.note_death(safe_values)
            self._last_given = None
        summary = self._end(folder, run, outcome, start, config, level)
        if outcome.good and labels.get("purpose") == BASELINE:
            self._baseline_trial = int(labels["trial"])
        if outcome.good and start.undone and (reference := self._transitions.baseline_steps(config)):
            baseline, seconds = reference
            outcome, summary = self._compare_with_leader(folder, seconds, [], outcome, summary, baseline)
        elif outcome.good and leader_before and summary.step_samples:
            is_leader_due = needs_after(leader_before, summary.step_samples)
            leader_after = self._leader_steps(run, config, labels, should_stop) if is_leader_due else []
            outcome, summary = self._compare_with_leader(
                folder, leader_before, leader_after, outcome, summary
            )
        self._last_measured = (config, summary) if outcome.good else self._last_measured
        self._rank(config, summary, labels)
        if labels.get("purpose") in _SEARCHING:
            took, steps = time.monotonic() - began_at, run.step - first_step
            self._leader.note_cost(took, steps, summary.leader_level or 1.0)
        return outcome, summary

    def _adopt_manual_values(self, run: OngoingRun, labels: dict[str, str]) -> None:
        """Pin what somebody set by hand since the run was given values last."""
        if (
            self._last_given is None
        ):  # the controller before this one may have been gone when somebody turned it
            self._hold(run.manual_values_since(labels["study"]))
        elif others := live_values(self._last_given, run.config):
            self._hold(run.manual_values(others))

    def _check_worth_measuring(self, run: OngoingRun, config: RunConfig, labels: dict[str, str]) -> None:
        """EndOfTrialsError where pinned values or the steps that are left allow no such window."""
        purpose = labels.get("purpose")
        self._hand.check_undeclared()
        if purpose == CONFIRM:
            self._hand.check_leader(config)
            self._leader.check_round(config, run.steps_left)
        elif purpose in _SEARCHING and self._races:
            self._leader.check_enough(run.steps_left)

    def _create_folder(
        self, run: OngoingRun, config: RunConfig, labels: dict[str, str], on_start: OnStart
    ) -> Path:
        """The window's run folder. Its configuration trains the whole run: who exports a window wants that."""
        self._starter.note_left(False)
        whole_run = config.with_values({"train.steps": run.config.train.steps})
        folder = run_folder.create(self._home, whole_run, labels)
        run_folder.update_status(folder, state="running", owner=this_process(), started_unix=time.time())
        if on_start is not None:
            on_start(folder)
        self._transitions.hold(self._hand.values)
        return folder

    def _rank(self, config: RunConfig, summary: RunSummary, labels: dict[str, str]) -> None:
        """What a window says of who leads."""
        purpose, spoilt = labels.get("purpose"), self._transitions.is_spoilt
        if self._leader.rank(config, summary, purpose in (CONFIRM, CHECK), spoilt, int(labels["trial"])):
            self._leader_since = None
        if purpose == CHECK and spoilt:
            self._leader.rule_out(config)

    def _leader_for(self, config: RunConfig, labels: dict[str, str]) -> RunConfig | None:
        """Whom a window is held beside: the fastest exact one; None of those that are compared otherwise. A lossy one
        is beside the baseline on the same steps, and leaders that are measured again take turns.
        """
        leader = self._fastest
        if leader is None or labels.get("purpose") in (CONFIRM, BASELINE) or is_lossy(config.flat()):
            return None
        return leader if live_values(leader, config) and not self._hand.overridden_keys(leader) else None

    def _leader_steps(
        self, run: OngoingRun, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop
    ) -> list[float]:
        """Seconds of the leader's steps now, before or after a window that is held beside it: as many as half of it,
        within bounds, or more. They cost the run nothing, which has no better values; those after the window before are
        these already.
        """
        leader = self._leader_for(config, labels)
        if leader is None:
            self._leader_since = None
            return []
        half = min(MOST_BESIDE, max(LEAST_STEPS, (config.train.steps - least_steps(config, 0)) // 2))
        run.refresh()
        if self._leader_since is not None and not live_values(leader, run.config):
            seconds = run.step_seconds(self._leader_since)
            if len(seconds) >= half:
                return seconds
        short = leader.with_values({"train.steps": least_steps(leader, 0) + half})
        start, outcome = self._measure_values(run, short, labels | {"purpose": CONFIRM}, should_stop)
        if outcome.ending is not Ending.COMPLETED:
            return []
        self._leader_since = start.first
        self._slowdown.note(run.steps_since(start.first))
        return run.step_seconds(start.first)

    def _compare_with_leader(
        self,
        folder: Path,
        before: list[float],
        after: list[float],
        outcome: RunOutcome,
        summary: RunSummary,
        baseline: RunConfig | None = None,
    ) -> Ran:
        """A window that ended, beside the leader's steps around it, or the ``baseline``'s that it did again. What was
        given up counts after all where the leader became as slow.
        """
        comparison = self._leader.compare_window(summary, before, after, baseline)
        if comparison is None:
            return outcome, summary
        summary = comparison if baseline is None else replace(comparison, leader_trial=self._baseline_trial)
        if outcome.ending is Ending.PRUNED and may_lead_after_all(summary.step_samples, after):
            outcome = RunOutcome(Ending.COMPLETED, _SHORT.format(steps=len(summary.step_samples)))
        with run_folder.check_writable(self._home):
            run_folder.write_json(folder / run_folder.SUMMARY, summary.as_dict())
            run_folder.update_status(folder, outcome=outcome.as_dict())
        return outcome, summary

    def _ready(self, config: RunConfig, labels: dict[str, str]) -> OngoingRun:
        """The run, which has done what it was told before, and is where nothing has to be undone; one that does not
        answer is measured all the same, for its window tells how it ended.
        """
        run = self._starter.run(config)
        try:
            run.settle()
            self._undo_tried(run, config, labels.get("purpose") != CONFIRM, _author(labels))
        except UnansweredError:
            return self._starter.run(config)
        return run

    def _undo_tried(self, run: OngoingRun, config: RunConfig, judged: bool, by: str) -> None:
        """Undo what was tried and never judged, say by a killed controller, unless the turn that follows does."""
        trying = self._starter.revertible_steps
        if trying is None or trying.run != run.id:
            return
        if self._transitions.goes_back(run, config, judged, trying.first):
            return
        with contextlib.suppress(InputError):  # somebody kept another copy by hand since
            run.turn({}, by, BACK)
        self._transitions.forget()
        self._mark_undone([self._home / name for name in trying.windows])
        self._on_copy, self._last_given = [], None
        self._starter.note_revertible_steps(None)

    def _hold(self, values: dict[str, Any]) -> None:
        """What somebody sets by hand is no longer searched: the study is asked to pin it, and says so."""
        if values:
            self._hand.hold(values)
            self._leader_since = None
            if (leader := self._fastest) is not None and self._hand.overridden_keys(leader):
                self._leader.forget()

    def _measure_with_reference(
        self,
        run: OngoingRun,
        config: RunConfig,
        labels: dict[str, str],
        should_stop: ShouldStop,
        before: list[float],
    ) -> tuple[WindowStart, RunOutcome]:
        """A window, after one of the baseline if its loss is to be compared with that."""
        baseline = (
            None if labels.get("purpose") == CONFIRM else self._transitions.needs_reference(run, config)
        )
        if baseline is not None:
            start, outcome = self._measure_values(run, baseline, labels, should_stop)
            self._transitions.judge(run, baseline, start)
            now = self._leader.level(run.step_seconds(start.first), baseline)
            self._slowdown.level = now or self._slowdown.level
            self._slowdown.note(run.steps_since(start.first))
            self._on_copy = []  # what earlier windows did lies before the new copy, and stays
            if outcome.ending is not Ending.COMPLETED or not has_all_steps(run, baseline, start):
                return start, outcome
        return self._measure_values(run, config, labels, should_stop, before)

    def _end(
        self,
        folder: Path,
        run: OngoingRun,
        outcome: RunOutcome,
        start: WindowStart,
        config: RunConfig,
        level: float | None = None,
    ) -> RunSummary:
        """Write what the window measured, and what of the run it covers."""
        run.refresh()
        stretch = run.steps_since(start.first)
        self._next_step = stretch.first + stretch.steps
        summary = summary_of(run.config, "", "none", None)
        losses = self._transitions.judge(run, config, start)
        trying = self._starter.revertible_steps
        if outcome.good:
            recorded = run.summary(start.first)
            first_loss = start.first - recorded.first_step
            own_losses = recorded.losses[first_loss : first_loss + config.train.steps]
            summary = replace(
                recorded,
                losses=own_losses,
                validation_loss=losses.window,
                reference_loss=losses.reference,
                steps_before=losses.steps_before,
                loss_before=losses.loss_before,
                leader_level=level,
            )
            self._slowdown.note(stretch, undone=start.undone)
        summary = replace(summary, id=folder.name)
        copied = {key: getattr(run.status, key) for key in _OF_THE_RUN}
        covered = {
            "run": run.id, "first": stretch.first, "end": self._next_step, "seconds": stretch.seconds,
            "settling": stretch.settling,
        }  # fmt: skip
        with run_folder.check_writable(self._home):
            self._mark(folder, start)
            if trying is not None and not self._transitions.is_spoilt:
                self._starter.note_revertible_steps(None)
            elif trying is not None:
                names = tuple(window.name for window in self._on_copy)
                self._starter.note_revertible_steps(replace(trying, windows=names))
            run_folder.write_json(folder / run_folder.SUMMARY, summary.as_dict())
            run_folder.update_status(
                folder,
                **copied,
                window=covered,
                state="ended",
                ended_unix=time.time(),
                outcome=outcome.as_dict(),
            )
        return summary

    def _mark(self, folder: Path, start: WindowStart) -> None:
        """Windows whose steps were done again say so."""
        if start.undone:
            self._mark_undone(self._on_copy)
        self._on_copy = [folder] if start.on_copy else []

    def _mark_undone(self, windows: list[Path]) -> None:
        for folder in windows:
            window = (run_folder.read_json(folder / run_folder.STATUS) or {}).get("window") or {}
            run_folder.update_status(folder, window=window | {"undone": True})

    def remember(self, config: RunConfig, rate: float, trial: int, baseline: int | None = None) -> None:
        """An earlier controller of the study measured this one, exact as it is, as the fastest, and the ``baseline`` in
        its trial of this number.
        """
        self._leader.remember(config, rate, trial)
        self._baseline_trial = baseline

    def release(self) -> None:
        """What was set by hand need not stay: somebody wants the run to have what it began with."""
        self._hand.release()
        self._starter.note_reverted()

    def leave(self, config: RunConfig, name: str) -> None:
        """Give the run the values that the search ended with, and leave it alone: what is set by hand from now on
        stays, as what was set in the search does.
        """
        self._idle.cancel()
        config = config.with_values(self._hand.values)
        self._starter.note_death(config)
        self._give(config, f"{BY_STUDY}{name}, what it ended with")
        self._starter.note_left()

    def _give(self, config: RunConfig, by: str) -> None:
        run = self._starter.current
        if run is not None and run.outcome() is None:
            with contextlib.suppress(InputError, UnansweredError):  # it ended meanwhile
                run.settle()
                self._undo_tried(run, config, False, by)
                spoilt = self._transitions.is_spoilt
                self._transitions.leave(run, config, by)
                if spoilt:
                    self._mark_undone(self._on_copy)
                self._on_copy = []
                self._last_given = config
                self._starter.note_revertible_steps(None)

    @property
    def starter(self) -> Starter:
        """Of the run that is tuned."""
        return self._starter

    @property
    def has_pending_commands(self) -> bool:
        """Whether somebody asked the study for something, and nobody answered."""
        return self._hand.has_pending_commands

    def _measure_values(
        self,
        run: OngoingRun,
        config: RunConfig,
        labels: dict[str, str],
        should_stop: ShouldStop,
        before: Sequence[float] = (),
    ) -> tuple[WindowStart, RunOutcome]:
        """Turn the run to a window's values, and wait until it has the steps that its trial asks for."""
        start, self._leader_since = WindowStart(run.step), None
        if others := self._hand.overridden_keys(
            config
        ):  # a trial that was proposed before, or is tried again
            return start, RunOutcome(Ending.ILLEGAL, f"{others} was set by hand meanwhile, and stays")
        if self._last_measured is not None and (why := memory_shortage(*self._last_measured, config)):
            return start, RunOutcome(Ending.ILLEGAL, why)  # to find out would cost the run
        judged = labels.get("purpose") != CONFIRM
        try:
            if (first := self._transitions.tries(run, config, judged)) is not None:
                self._starter.note_revertible_steps(
                    RevertibleSteps(run.id, first, tuple(window.name for window in self._on_copy))
                )
            turned = self._transitions.turn(run, config, _author(labels), judged)
            self._last_given = config
            start = turned or WindowStart(max(self._next_step, run.step + 1))
            purpose = labels.get("purpose")
            baseline = self._transitions.baseline_steps(config) or (None, before)
            raced = baseline if self._races and purpose not in (CONFIRM, CHECK, BASELINE) else None
            return start, self._wait_for_end(
                run, config, start, should_stop, raced, may_cost=purpose == CHECK
            )
        except UnansweredError as problem:  # says nothing of the configuration: the run's own ending does
            return start, run.outcome() or RunOutcome(Ending.STOPPED, str(problem))
        except InputError as problem:
            return start, run.outcome() or RunOutcome(Ending.ILLEGAL, str(problem))

    def _wait_for_end(
        self,
        run: OngoingRun,
        config: RunConfig,
        start: WindowStart,
        should_stop: ShouldStop,
        baseline: tuple[RunConfig | None, Sequence[float]] | None,
        may_cost: bool,
    ) -> RunOutcome:
        """How the window ended; one that searches need not go on where it cannot lead: ``baseline`` are steps of the
        leader, or of a configuration that is given with them. One that ``may_cost`` what its steps do ends only with
        them: a part of them tells no loss.
        """
        while True:
            ended = run.outcome()
            run.refresh()
            if others := live_values(config, now := run.config):
                self._last_given = now
                if hand := run.manual_values(others):
                    self._hold(hand)
                    return RunOutcome(Ending.STOPPED, f"{', '.join(hand)} was set by hand within the window")
                return RunOutcome(Ending.STOPPED, _LATE)
            if has_all_steps(run, config, start):
                return RunOutcome(Ending.COMPLETED)
            if ended is not None:
                return ended
            answer = should_stop() or (
                not may_cost and self._slowdown.too_dear(run.steps_since(start.first), undone=start.undone)
            )
            if (
                not answer
                and baseline is not None
                and (
                    why := self._leader.why_behind(
                        config, run.step_seconds(start.first), baseline[1], baseline[0]
                    )
                )
            ):
                answer = EarlyEnd(Ending.PRUNED, why)
            if isinstance(answer, EarlyEnd):
                return RunOutcome(answer.ending, answer.reason)
            if answer:
                return RunOutcome(Ending.STOPPED)
            time.sleep(_POLL_SECONDS)


def _author(labels: dict[str, str]) -> str:
    return f"{BY_STUDY}{labels['study']}, trial {labels['trial']}"
