"""A trial of a command as any other trial: ``Execute`` of a study, with a run folder, records and an ending.

The trainer is started with the trial's values, its steps are written down as they are told of, and once as many were
measured as the trial asks for it is ended with all that it started, as it is when it hangs, is late, or shall stop.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.config.errors import InputError, several
from engine.config.run_config import RunConfig
from engine.launch import ending as kernel
from engine.lifecycle import finish, note_ranks, note_start, summary_of
from engine.rank.foreign import FOLDER_VARIABLE, VALUES
from engine.run import run_folder
from engine.run.commands import stop_commanded
from engine.run.devices.selection import Devices
from engine.run.outcome import EarlyEnd, Ending, MissingResource, RunOutcome, StopAnswer
from engine.run.progress import Progress
from profilers.records.schema import PHASES, StepSample
from profilers.records.writer import RecordWriter
from profilers.system.sampler import Sampler
from tuning.execution.command import verdict
from tuning.execution.command.allowance import Allowance
from tuning.execution.command.process import Exit, Processes, Rank
from tuning.execution.command.step_source import Sources, Step, StepClock
from tuning.execution.executor import OnStart, Ran, ShouldStop
from tuning.spec.study_file import StudyFile
from tuning.spec.trainers.invocation import ARGUMENTS_FILE, FIELD, FOLDER, Invocation

#: What such a run has in place of a backend.
BACKEND = "command"
#: In the run's folder: what the trainer writes and is given, and what it prints.
PLACE, LOG = "trainer", "trainer.log"
#: How long a trainer may take to end once it is asked to.
PATIENCE_SECONDS = 5.0
#: Before its first step a trainer may be silent for so many times the limit of a step.
STARTING = 5.0
_POLL_SECONDS = 0.02
#: How often it is looked whether its ranks got the values.
_LOOK_SECONDS = 0.5
_BASELINE = "baseline"


class CommandTrials:
    """Runs a study's command, one trial after the other."""

    def __init__(self, home: Path, file: StudyFile) -> None:
        assert file.command is not None
        self._home, self._file, self._command = home, file, file.command

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        """One trial.

        Raises:
            InputError: the command cannot be started, or as it is, without any value turned, it comes to nothing, or
                takes so much of the study's time that nothing could be set beside it.
        """
        if why := self._command.refusal(config.trainer):
            return RunOutcome(Ending.ILLEGAL, why), summary_of(config, "", BACKEND, None)
        wanted = self._command.trial_invocation(config.trainer)
        folder = run_folder.create(self._home, config, labels)
        with run_folder.check_writable(self._home):
            invocation = put_in_place(wanted, folder / PLACE, config.trainer)
            note_start(folder, config, Devices("cpu", BACKEND, invocation.text))
            note_ranks(folder, config, invocation.ranks)
        if on_start is not None:
            on_start(folder)
        alone = labels.get("purpose") == _BASELINE
        trial = Trial(
            folder,
            config,
            invocation,
            self._sources(folder / PLACE, invocation),
            Allowance.from_file(self._file),
            alone,
        )
        try:
            outcome = trial.run(should_stop, _changed_words(self._command.today, invocation))
        except InputError as problem:
            finish(folder, config, BACKEND, RunOutcome(Ending.CRASHED, str(problem)), invocation.ranks)
            raise
        summary = finish(folder, config, BACKEND, outcome, trial.ranks)
        if alone:
            self._check_baseline(outcome, trial, folder)
        return outcome, summary

    def _sources(self, place: Path, invocation: Invocation) -> Sources:
        assert self._file.trainer is not None
        return Sources(place, invocation.directory, self._command.lines, self._file.trainer.steps)

    def _check_baseline(self, outcome: RunOutcome, trial: Trial, folder: Path) -> None:
        """A command that cannot do what it is asked as it stands is a mistake to mend, not a trial that failed."""
        if trial.no_room is not None:
            raise trial.no_room
        facts = outcome.ending.facts
        if trial.steps or facts.orderly or facts.missing is MissingResource.MEMORY:
            return
        log_text = f"what it printed is in {folder.name}/{run_folder.LOGS}/{LOG}"
        raise InputError(FIELD, self._command.today.text, f"{outcome.reason}; {_remedy(outcome)}; {log_text}")


def _remedy(outcome: RunOutcome) -> str:
    if verdict.printed_no_step(outcome):
        return r"say how it tells of steps: --set 'trainer.steps.pattern=step (?P<step>\d+)', .file or .tensorboard"
    return "mend the command first: it is the baseline, as it stands"


class Trial:
    """One run of a command; ``alone`` if others shall follow that cannot be without it."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        invocation: Invocation,
        sources: Sources,
        allowance: Allowance,
        alone: bool = False,
    ) -> None:
        self._folder, self._config, self._given, self._sources = folder, config, invocation, sources
        self._allowance, self._alone = allowance, alone
        self._clock, self._tail = StepClock(), deque[str](maxlen=verdict.KEPT_LINES * 5)
        self._writer = RecordWriter(folder / run_folder.RECORDS, "rank-0")
        self._page = Progress(folder)
        #: Steps that were written down.
        self.steps = 0
        #: When the first of them was told of.
        self._first: float | None = None
        #: What is wrong with the study's budget of time.
        self.no_room: InputError | None = None
        #: As its launcher is asked for, and as many as were seen once they are there.
        self.ranks = invocation.ranks

    def run(self, should_stop: ShouldStop, words: frozenset[str]) -> RunOutcome:
        """Start it, and see it to its end; ``words`` are those that each of its ranks has to get.

        Raises:
            InputError: it cannot be started.
        """
        machine = RecordWriter(self._folder / run_folder.RECORDS, "launcher")
        sampler = Sampler(machine, self._config.profile.host_interval_seconds)
        killed_before = kernel.count()
        variables = {FOLDER_VARIABLE: str(self._folder / PLACE)}
        try:
            with sampler:
                log = self._folder / run_folder.LOGS / LOG
                processes = Processes(self._given, self._folder.name, log, variables)
                try:
                    return self._follow(
                        processes, should_stop, _Ranks(words, self._note_ranks, sampler), killed_before
                    )
                finally:
                    processes.close()
        finally:
            self._note_spacing()
            self._writer.close()
            self._page.close()
            machine.close()

    def _follow(
        self, processes: Processes, should_stop: ShouldStop, ranks: _Ranks, killed_before: int
    ) -> RunOutcome:
        began = heard = time.monotonic()
        deaf = False
        while True:
            # Before the lines: all of them are there once it ended.
            end, over = processes.exit, processes.over
            if not deaf and self._take(processes):
                heard = time.monotonic()
            deaf = over  # steps of somebody who went on in the background are none of the trainer's
            through = self._allowance.why_spent(time.monotonic() - began, self.steps)
            if not over and (through or self.steps >= self._config.train.steps):
                ranks.look(processes, now=True)  # a short trial is over before the next look
                processes.stop(PATIENCE_SECONDS)
                return RunOutcome(Ending.COMPLETED, through)
            if end is not None:
                return self._exit_outcome(end, killed_before)
            if (early := self._early_outcome(should_stop())) is not None:
                processes.stop(PATIENCE_SECONDS)
                return early
            if (late := self._overdue_outcome(began, heard, ranks)) is not None:
                processes.stop(PATIENCE_SECONDS)
                return late
            ranks.look(processes)
            time.sleep(_POLL_SECONDS)

    def _take(self, processes: Processes) -> bool:
        """Write down the steps that were told of; whether there was one."""
        lines = processes.lines()
        self._tail.extend(line for _, line in lines)
        before = self.steps
        for seconds, reading in self._sources.new(lines):
            step = self._clock.step(seconds, reading)
            if step is not None and self.steps < self._config.train.steps:
                self._note(step)
        return self.steps > before

    def _note(self, step: Step) -> None:
        config = self._config
        unknown = dict.fromkeys(f"{name}_seconds" for name in PHASES)
        began = time.time() - (time.monotonic() - step.time) - step.seconds
        self._writer.write(
            StepSample(
                step=self.steps,
                measured=self.steps >= config.train.warmup,
                start_unix=began,
                step_seconds=step.seconds,
                cpu_seconds=0.0,
                tokens=config.tokens_per_step or 0,
                loss=step.loss,
                gradient_norm=None,
                **unknown,
            )
        )
        self._first = self._first or step.time
        self._page.enter_state(0, self.steps, "forward")
        self.steps += 1

    def _early_outcome(self, answer: StopAnswer) -> RunOutcome | None:
        if isinstance(answer, EarlyEnd):
            return RunOutcome(answer.ending, answer.reason)
        if answer or stop_commanded(self._folder):
            return RunOutcome(Ending.STOPPED, "stopped on request")
        return None

    def _overdue_outcome(self, began: float, heard: float, ranks: _Ranks) -> RunOutcome | None:
        train, now = self._config.train, time.monotonic()
        patience = train.step_timeout_seconds * (1.0 if self.steps else STARTING)
        last = tuple(self._tail)[-verdict.KEPT_LINES :]
        if now - heard > patience:
            place = f"after {several(self.steps, 'steps')}" if self.steps else "and never one"
            stopped = ranks.stopped
            stopped_rank = f"; rank {stopped} is stopped" if stopped is not None else ""
            words = f"the trainer told of no step for {patience:g} s, {place}{stopped_rank}"
            return verdict.outcome_of_silence(words, list(self._tail), stopped)
        if self._alone:
            first = None if self._first is None else self._first - began
            self.no_room = self._allowance.no_room(now - began, self.steps, first)
            if self.no_room is not None:
                return RunOutcome(Ending.TIMED_OUT, str(self.no_room), None, None, last)
        if now - began > train.timeout_seconds:
            words = f"longer than train.timeout_seconds={train.timeout_seconds:g}, after {several(self.steps, 'steps')}"
            return RunOutcome(Ending.TIMED_OUT, words, None, None, last)
        return None

    def _exit_outcome(self, end: Exit, killed_before: int) -> RunOutcome:
        """Of a trainer that ended by itself; one that was nearly through counts."""
        train = self._config.train
        least = train.warmup + max(3, (train.steps - train.warmup) // 2)
        if end.code == 0 and self.steps >= least:
            return RunOutcome(
                Ending.COMPLETED, f"the trainer ended by itself after {several(self.steps, 'steps')}"
            )

        killed_for_memory = partial(kernel.was_killed, before=killed_before)
        return verdict.outcome_of_command(end, list(self._tail), self.steps, killed_for_memory)

    def _note_ranks(self, count: int, missing: Mapping[int, str]) -> None:
        if count > self.ranks:  # a launcher that nobody here knows
            self.ranks = count
            note_ranks(self._folder, self._config, count)
        for rank, word in missing.items():
            self._writer.event("note", text=f"rank {rank} did not get {word}: its command line is without it")

    def _note_spacing(self) -> None:
        if (count := self._clock.spacing) > 1:
            text = f"not each step was told of by itself: samples of the time of a step are means of up to {count}"
            self._writer.event("note", text=text)


class _Ranks:
    """Whether the ranks that a launcher started got what a trial changes; told once, when there are some."""

    def __init__(
        self, words: frozenset[str], tell: Callable[[int, Mapping[int, str]], None], sampler: Sampler
    ) -> None:
        self._words, self._tell, self._sampler = words, tell, sampler
        self._known: list[Rank] = []
        self._looked = 0.0
        #: The number of one that somebody stopped.
        self.stopped: int | None = None

    def look(self, processes: Processes, now: bool = False) -> None:
        """Now and then, or ``now``."""
        if not now and time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        ranks = processes.ranks()
        self.stopped = next((rank.number for rank in ranks if rank.stopped), None)
        if ranks and [rank.pid for rank in ranks] == [rank.pid for rank in self._known]:
            return
        if ranks:
            self._known = ranks
            self._sampler.watch([rank.pid for rank in ranks])
            self._tell(len(ranks), missing(ranks, self._words))


def missing(ranks: list[Rank], words: frozenset[str]) -> dict[int, str]:
    """By rank, the first of the words that its command line is without."""
    without = {rank.number: sorted(words - set(rank.words)) for rank in ranks}
    return {number: absent[0] for number, absent in without.items() if absent}


def put_in_place(wanted: Invocation, place: Path, values: Mapping[str, object]) -> Invocation:
    """A trial's own files written into its folder, and the command that names them there. OSError if that fails."""
    place.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(place / VALUES, {"number": 0, "values": dict(values)})
    if wanted.arguments:
        run_folder.write_json(place / ARGUMENTS_FILE, dict(wanted.arguments))
    places = {}
    for number, (word, document) in enumerate(wanted.files.items()):
        path = place / f"{number}-{Path(word).name}"
        path.write_text(json.dumps(document, indent=2).replace(FOLDER, str(place)) + "\n", encoding="utf-8")
        places[word] = str(path)
    words = (word.replace(FOLDER, str(place)) for word in wanted.renamed_words(places))
    return replace(wanted, words=tuple(words), files={})


def _changed_words(today: Invocation, changed: Invocation) -> frozenset[str]:
    """What ranks have to get of a trial that today's command is without."""
    return frozenset(changed.words) - frozenset(today.words)
