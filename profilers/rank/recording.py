"""One rank of a job that is not ours, recorded: from where its optimizer ends a step to where it ends the next one.

What is not known stays out: the first step, whose begin nobody saw, and what a step computes on.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import traceback
import weakref
from typing import Any

import torch

from profilers import torch_private
from profilers.rank import identity, last_calls
from profilers.rank.job_rank import FLIGHT, PROGRESS, RECORDS, RankRegistration
from profilers.rank.orders.order_reader import JobOrders
from profilers.rank.phases import ForwardHooks, FunctionPatches, JobTimer, watch_data
from profilers.rank.step_records import StepRecords, StepReport, share_of_a_core
from profilers.rank.waits import BackwardPhase, JobRecorder, TensorWaits, axis_of, watch_works
from profilers.records.schema import PHASES
from profilers.records.writer import RecordWriter
from profilers.steps.clock import clock_for
from profilers.steps.resolve import SpanChoice
from profilers.steps.sampling_budget import DetailChoice
from profilers.steps.shared_status import CODES, shared_page
from profilers.steps.wait_sampler import WaitSampler
from profilers.system import memory
from profilers.system.memory_timeline import MemoryTimeline

#: The most that detail may cost of a step, as for ranks of ours (``profile.budget``).
BUDGET = 0.002
#: The first step that counts: DDP makes its buckets anew after the first one, allocators and caches settle.
FIRST_MEASURED = 2
_LAST_LINES = 12
#: No thread has this number.
_FORGOTTEN = -1
_OPTIMIZER = PHASES.index("optimizer")
_UNKNOWN = StepReport(None, None, None)


class RankRecording:
    """From the moment at which a process is known to be a rank. All but ``forget`` is for the thread that trains."""

    def __init__(self, seat: RankRegistration) -> None:
        self.seat = seat
        self._thread = threading.get_ident()
        self._writer = RecordWriter(seat.folder / RECORDS, f"rank-{seat.rank}")
        if seat.restarted:
            self._writer.undo(0)
        self._page = shared_page(seat.folder / PROGRESS, seat.world_size)
        self._status = self._page.status(seat.rank)
        self._status.tell(-1, CODES["building"])
        self._steps: JobSteps | None = None
        #: Whether the job says itself where its steps end.
        self.exact = False
        self._open = contextlib.ExitStack()
        if seat.world_size > 1:
            path, since = seat.folder / FLIGHT / f"rank-{seat.rank}.json", time.time()
            dump_requested = self._page.dump_requested
            self._open.enter_context(
                last_calls.answer_dump_requests(dump_requested, path, lambda: _about(since))
            )

    def steps(self, optimizer: Any = None) -> JobSteps:
        """Made when the first optimizer is about to step, or the job says that its first step begins."""
        if self._steps is None:
            device = _device(optimizer)
            self._introduce(device)
            orders = JobOrders(self.seat, device, self._page, self._writer.event)
            self._steps = JobSteps(self, device, self._status, self._writer, orders)
            self._open.enter_context(self._steps)
        return self._steps

    def optimizer_began(self, optimizer: Any) -> None:
        """Before some optimizer's step."""
        if self.is_training_thread:
            self.steps(optimizer).optimizer_began(optimizer)

    def end_optimizer(self, optimizer: Any) -> None:
        """After it."""
        if self.is_training_thread and self._steps is not None:
            self._steps.end_optimizer(optimizer)

    @property
    def is_training_thread(self) -> bool:
        """Whether the thread that trains asks."""
        return threading.get_ident() == self._thread

    def record_failure(self, error: BaseException) -> None:
        """An exception ends this process."""
        lines = "".join(traceback.format_exception(error)).strip().splitlines()[-_LAST_LINES:]
        reason = (str(error).strip().splitlines() or [""])[0]
        self.seat.tell(
            failed={
                "kind": type(error).__name__,
                "reason": reason,
                "out_of_memory": isinstance(error, MemoryError | torch.OutOfMemoryError),
                "distributed": isinstance(error, torch.distributed.DistError),
                "last_lines": lines,
            }
        )

    def close(self) -> None:
        """The process ends by itself."""
        if self._thread == _FORGOTTEN:
            return
        self._open.close()
        if self._steps is None:
            self._introduce(None)
        self._status.begin_state(self._status.read().step, CODES["finished"])
        self._writer.close()
        self.seat.tell(ended=True, dropped=self._writer.dropped)

    def forget(self) -> None:
        """A process that was forked off this rank is none.

        What torch calls stays in its place, and does nothing: to take it out could wait for a lock that a thread holds
        which is not here.
        """
        self._thread = _FORGOTTEN
        self._open.pop_all()
        if self._steps is not None:
            self._steps.recorder.pause(True)

    def give_up(self) -> None:
        """Record nothing more, and leave no trace of a death."""
        self.forget()
        self.seat.tell(ended=True)

    def _introduce(self, device: torch.device | None) -> None:
        facts = {} if device is None else identity.arithmetic(device)
        self._writer.event("environment", **identity.variables(), **facts, host=socket.gethostname())
        self.seat.tell(device=facts.get("device"))


class JobSteps:
    """The steps of one rank. ``after`` is told a step's numbers by the job, or knows none."""

    def __init__(
        self,
        rank: RankRecording,
        device: torch.device,
        status: Any,
        writer: RecordWriter,
        orders: JobOrders,
    ) -> None:
        self._rank, self._writer, self._orders = rank, writer, orders
        self.timer = timer = JobTimer(clock_for(device.type), status)
        self._reader = memory.MemoryReader(device)
        self._timeline = MemoryTimeline(self._reader.read)
        backwards = BackwardPhase(timer)
        self.recorder = JobRecorder(timer, backwards.begin_call)
        self.records = StepRecords(
            timer=timer,
            recorder=self.recorder,
            writer=writer,
            choice=DetailChoice(BUDGET, FIRST_MEASURED),
            first_measured=FIRST_MEASURED,
            share=share_of_a_core(rank.seat.world_size),
            spans=SpanChoice(),
            timeline=self._timeline,
        )
        self._forwards = ForwardHooks(timer, self._ours, self._note_evaluation)
        self._evaluations: set[int] = set()
        self._leader: weakref.ref[Any] | None = None
        self._stepping: list[int] = []
        self._since_leader: set[int] = set()
        self._step = 0
        self._backwards, self._replaced = backwards, FunctionPatches()
        self._several = rank.seat.world_size > 1
        self._wait_sampler = WaitSampler(timer, status)

    def __enter__(self) -> JobSteps:
        self.instrument()
        self._wait_sampler.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._wait_sampler.__exit__()
        self.take_out()
        self._orders.end(self._step)
        self.records.end(wait=False)
        if self._step > 0 and not self._forwards.was_called:
            self._writer.event("note", text="no forward of a module was seen: what it took is in other")
        self._reader.close()

    def instrument(self) -> None:
        """Have torch tell of its backwards, data loaders, works and collectives."""
        data = self.timer.phase("data")
        self._replaced.wrap_in_phase(
            torch.autograd, "backward", lambda: self._backwards if self._ours() else _nothing
        )
        watch_data(self._replaced, lambda: data if self._ours() else _nothing)
        if self._several:
            watch_works(self._replaced, self.timer, self._ours)
            self.recorder.start()
            self._tensor_waits = TensorWaits(self.timer, self._ours)
        self._forwards.start()
        self.timer.on_change = self._timeline.change

    def take_out(self) -> None:
        """Leave torch as it was; a later ``instrument`` goes on."""
        self.timer.on_change = None
        self._forwards.stop()
        self._replaced.stop()
        if self._several:
            self.recorder.stop()
            self._tensor_waits.stop()

    def begin(self, parameters: Any) -> None:
        """The first step begins now; the modules that hold these ``parameters`` tell its forwards."""
        self._forwards.look(parameters)
        self._next()

    def end_step(self, report: StepReport) -> None:
        """A step ends now, and the next one begins."""
        if self.timer.running:
            times = self.timer.end()
            self._leave_out_evaluations()
            self.records.finish_step(times, report)
            self._forwards.end_step()
        self._step += 1
        self._next()

    def discard(self) -> None:
        """The loop is over: what was done since the last step ended is no step."""
        if self.timer.running:
            self.timer.end()

    def restart_step(self) -> None:
        """What was done since the last step ended is no part of the one that has begun."""
        self._next()

    def optimizer_began(self, optimizer: Any) -> None:
        """Of some optimizer's step; one inside another is a part of it."""
        self._stepping.append(id(optimizer))
        self.timer.enter(_OPTIMIZER)

    def end_optimizer(self, optimizer: Any) -> None:
        """With it ends a step of the job, if it is the optimizer that leads, and the job does not tell itself."""
        if id(optimizer) not in self._stepping:
            return
        while self._stepping.pop() != id(optimizer):
            self.timer.leave()  # one inside that failed
        self.timer.leave()
        if not self._stepping and not self._rank.exact and self._leads(optimizer):
            if self.timer.running:
                self.end_step(_UNKNOWN)
            else:
                self._step += 1
                self.begin([parameter for group in optimizer.param_groups for parameter in group["params"]])

    def _leads(self, optimizer: Any) -> bool:
        """Whether a step of the job ends with this optimizer's: of several it is always the same one's.

        Where another has stepped twice since, the one that led is of a loop that is over.
        """
        leader = None if self._leader is None else self._leader()
        if leader is None or id(optimizer) in self._since_leader:
            self._leader, leader = weakref.ref(optimizer), optimizer
        if leader is optimizer:
            self._since_leader.clear()
            return True
        self._since_leader.add(id(optimizer))
        return False

    def _next(self) -> None:
        if self._orders.begin_step(self._step):
            self.records.left_out.add(self._step)
        self.records.begin_step(self._step)
        self.timer.begin(self._step)

    def _ours(self) -> bool:
        return self._rank.is_training_thread

    def _note_evaluation(self) -> None:
        self._evaluations.add(self._step)

    def _leave_out_evaluations(self) -> None:
        """A step with an evaluation in it does not count, unless the first ones have it all: then it is a part."""
        if self._step not in self._evaluations or self._rank.exact:
            return
        if not self._evaluations.issuperset((1, 2)):
            self.records.left_out.add(self._step)
        self._evaluations &= {1, 2}


_nothing = contextlib.nullcontext()


def _device(optimizer: Any) -> torch.device:
    """That of an optimizer's first parameter; without one the current accelerator, once it is in use."""
    groups = getattr(optimizer, "param_groups", [])
    first = next((parameter for group in groups for parameter in group["params"]), None)
    if first is not None:
        device: torch.device = first.device
        return device
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _about(since_unix: float) -> last_calls.DumpContext:
    """This rank's groups, for whoever explains a hang."""
    groups = torch_private.groups()
    members = {str(group.group_name): torch.distributed.get_process_group_ranks(group) for group in groups}
    return last_calls.DumpContext(since_unix, {group.group_name: axis_of(group) for group in groups}, members)
