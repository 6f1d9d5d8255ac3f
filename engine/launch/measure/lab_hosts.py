"""What joins the hosts of a lab: one rank on each, started, asked, and gone."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from engine.config.errors import InputError, RankError
from engine.config.formulas.network import shape_of
from engine.config.sections import Lab
from engine.launch.lab import lab as labs
from engine.launch.measure.calibrate import Progress
from engine.launch.measure.pairs import MOST_HOSTS, PATIENCE, Member, host_links, measure
from engine.launch.pool import RankHosts, call_without_stderr
from engine.launch.workers import PRELOAD, Worker, begin
from engine.rank.worker import join
from engine.run.calibration.host_links import HostLinks
from engine.run.processes import die_with
from profilers.torch_private import own_store


def measure_lab(
    lab: Lab, should_stop: Callable[[], bool], tell: Callable[[Progress], None]
) -> HostLinks | None:
    """Of the lab that a configuration asks for; None if it was stopped.

    Raises:
        InputError: it asks for none, for one that cannot be set up here, or for one host or too many.
        LabError: the lab could not be set up.
        RankError: a rank died, failed or hung.
    """
    shape = shape_of(lab)
    if shape is None:
        raise InputError(
            "lab.hosts", None, "there is no lab; set lab.hosts or lab.islands, or name another file"
        )
    if not 2 <= shape.hosts <= MOST_HOSTS:
        raise InputError("lab.hosts", shape.hosts, f"links join from 2 to {MOST_HOSTS} hosts")
    labs.require(lab)
    began, place, workers = time.monotonic(), RankHosts(lab), list[Worker]()
    try:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        for rank, namespace in enumerate(place.namespaces(shape.hosts)):
            workers.append(_start(context, rank, shape.hosts, str(namespace), place))
        rates = _answer(workers, should_stop, _setup_counter(tell, shape.hosts * (shape.hosts - 1)))
    finally:
        for worker in workers:
            worker.kill()
        place.close()
    if rates is None:
        return None
    names = [f"host {host}" for host in range(shape.hosts)]
    return host_links(shape.code(), names, rates, "gloo", time.monotonic() - began)


def _setup_counter(tell: Callable[[Progress], None], total: int) -> Callable[[str], None]:
    """Tells how many ways from host to host were begun before the one that is said now."""
    begun = itertools.count()
    tell(Progress("setting up the lab", 0, total))
    return lambda label: tell(Progress(label, min(next(begun), total), total))


def _start(context: Any, rank: int, world_size: int, namespace: str, place: RankHosts) -> Worker:
    answers, host_end = context.Pipe()
    their_lifeline, lifeline = context.Pipe(duplex=False)
    seat = (rank, world_size, namespace, place.store_address, place.store.port)
    process = context.Process(target=_serve, args=(seat, host_end, their_lifeline), daemon=True)
    begin(process)
    host_end.close()
    their_lifeline.close()
    return Worker(process, answers, lifeline, namespace)


def _serve(seat: tuple[int, int, str, str, int], answers: Connection, lifeline: Connection) -> None:
    """Body of a rank; ends at once with its controller."""
    rank, world_size, namespace, address, port = seat
    join(namespace)
    die_with(lifeline.fileno())
    try:
        store = call_without_stderr(lambda: dist.TCPStore(address, port, is_master=False))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=PATIENCE)
        me = Member(rank, world_size, torch.device("cpu"), own_store("host-links"))
        answers.send(measure(me, answers.send))
    except Exception as error:
        answers.send(error if isinstance(error, RankError) else RankError(f"{type(error).__name__}: {error}"))


def _answer(
    workers: list[Worker], should_stop: Callable[[], bool], tell: Callable[[str], None]
) -> tuple[list[list[float]], ...] | None:
    """What the first rank found, once all are done; all find the same."""
    pipes: dict[Any, int] = {worker.tasks: rank for rank, worker in enumerate(workers)}
    answers, last = dict[int, Any](), time.monotonic()
    while len(answers) < len(workers):
        if should_stop():
            return None
        waiting: list[Any] = [pipe for pipe, rank in pipes.items() if rank not in answers]
        ready: list[Any] = wait(waiting, timeout=0.2)
        for pipe in ready:
            rank, last = pipes[pipe], time.monotonic()
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                raise RankError(f"the rank on host {rank} died") from None
            if isinstance(message, RankError):
                raise RankError(f"the rank on host {rank} failed: {message}")
            if isinstance(message, str):
                tell(message)
            else:
                answers[rank] = message
        if time.monotonic() - last > PATIENCE.total_seconds():
            raise RankError(f"no host answered in {PATIENCE.total_seconds():.0f} s")
    first: tuple[list[list[float]], ...] = answers[0]
    return first
