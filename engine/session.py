"""From a configuration to a finished run folder: check, launch, sample the machine, sum up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from engine.checkpoint import resume
from engine.config.errors import InputError, LayoutError
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.dry_run.inspection import inspect_workload
from engine.footprint.budget import check_budget
from engine.launch.lab import lab
from engine.launch.supervisor import Launch, Launcher
from engine.lifecycle import finish, network_of, note_start, summary_of_refused
from engine.model.workloads.task_texts import check_texts
from engine.run import run_folder
from engine.run.commands import stop_commanded
from engine.run.devices import interfaces, selection
from engine.run.outcome import Ending, RunOutcome, StopAnswer
from profilers.model.run_summary import RunSummary
from profilers.records.writer import RecordWriter
from profilers.system.sampler import Sampler

OnStart = Callable[[Path], None]


class Session:
    """Runs one configuration after the other on warm ranks under one home folder.

    With ``fresh_on_cpu`` each run on CPUs has processes of its own, so that their memory can be compared.
    """

    def __init__(self, home: Path, launcher: Launcher | None = None, fresh_on_cpu: bool = False) -> None:
        self.home = home
        self._launcher, self._fresh_on_cpu = launcher, fresh_on_cpu

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._launcher is not None:
            self._launcher.close()

    def execute(
        self,
        config: RunConfig,
        labels: dict[str, str],
        should_stop: Callable[[], StopAnswer],
        on_start: OnStart | None = None,
    ) -> tuple[RunOutcome, RunSummary]:
        """One run, from its folder to its summary. What ranks do becomes an outcome, never an exception.
        ``should_stop`` is asked several times a second; ranks end at a common step once it says so.

        Raises:
            InputError: the home folder, workload, data, device or checkpoint to continue from cannot be used.
        """
        inspect_workload(config)
        try:
            layout = rules.check(config)
            check_budget(config)
        except LayoutError as problem:
            return RunOutcome(Ending.ILLEGAL, str(problem)), summary_of_refused(config, "none")
        if config.trainer:
            remedy = (
                "are values of a trainer that is not this project's; a study with live.trainer turns them"
            )
            raise InputError("trainer", ", ".join(config.trainer), remedy)
        check_texts(config)
        resume.find(config)
        lab.require(config.lab)
        chosen = selection.choose(config, layout.world_size)
        interfaces.require(config, chosen)
        folder = run_folder.create(self.home, config, labels)
        with run_folder.check_writable(self.home):
            note_start(folder, config, chosen, network_of(config.lab))
        if on_start is not None:
            on_start(folder)
        outcome = self._launch(config, folder, chosen, should_stop)
        return outcome, finish(folder, config, chosen.backend, outcome)

    def _launch(
        self,
        config: RunConfig,
        folder: Path,
        chosen: selection.Devices,
        should_stop: Callable[[], StopAnswer],
    ) -> RunOutcome:
        writer = RecordWriter(folder / run_folder.RECORDS, "launcher")
        sampler = Sampler(writer, config.profile.host_interval_seconds)

        def note(pids: list[int]) -> None:
            with contextlib.suppress(OSError):
                run_folder.update_status(folder, rank_pids=pids)
            sampler.watch(pids)

        launch = Launch(config, folder, chosen, lambda: should_stop() or stop_commanded(folder), note)
        try:
            with sampler:
                return self._ranks().run(launch)
        finally:
            writer.close()

    def _ranks(self) -> Launcher:
        if self._launcher is None:
            from engine.launch.pool import LocalPool  # torch is loaded with the first run, not before

            self._launcher = LocalPool(self._fresh_on_cpu)
        return self._launcher
