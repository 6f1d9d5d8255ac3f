"""One function on several real gloo ranks, each a process of its own."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
import uuid
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from engine.config.sections import Lab
from engine.launch.pool import RankHosts
from engine.launch.workers import PRELOAD
from engine.rank.worker import join

PATIENCE_SECONDS = 60.0


def on_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``function(rank, *arguments)`` returns on each rank of a fresh default group; it has to be picklable.

    Raises:
        AssertionError: a rank failed; with the traceback of the first one that did.
    """
    place = RankHosts(Lab())
    try:
        return on_ranks_of(place, world_size, function, *arguments)
    finally:
        place.close()


def on_ranks_of(
    place: RankHosts, world_size: int, function: Callable[..., Any], *arguments: Any
) -> list[Any]:
    """The same where a place puts the ranks."""
    methods = multiprocessing.get_context("forkserver")
    methods.set_forkserver_preload(PRELOAD)
    at = place.store_address, place.store.port, uuid.uuid4().hex
    namespaces = place.namespaces(world_size)
    pipes = [methods.Pipe(duplex=False) for _ in range(world_size)]
    ranks = [
        methods.Process(
            target=_rank,
            args=(rank, world_size, namespaces[rank], at, pipes[rank][1], function, arguments),
            daemon=True,
        )
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    try:
        answers = [_answer(reader, rank) for rank, (reader, _) in enumerate(pipes)]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    failed = [text for text, _ in answers if text]
    assert not failed, "\n".join(failed)
    return [value for _, value in answers]


def _answer(reader: Connection, rank: int) -> tuple[str, Any]:
    if not reader.poll(PATIENCE_SECONDS):
        return f"rank {rank} gave no answer in {PATIENCE_SECONDS:.0f} s", None
    answer: tuple[str, Any] = pickle.loads(reader.recv_bytes())
    return answer


def _rank(
    rank: int,
    world_size: int,
    namespace: str | None,
    at: tuple[str, int, str],
    results: Connection,
    function: Callable[..., Any],
    arguments: Any,
) -> None:
    if namespace is not None:
        join(namespace)
    torch.set_num_threads(1)
    address, port, prefix = at
    store = dist.PrefixStore(prefix, dist.TCPStore(address, port, is_master=False))
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=PATIENCE_SECONDS / 2)
    )
    try:
        answer = function(rank, *arguments)
        dist.barrier()
        _send(results, "", answer)
    except BaseException:
        _send(results, traceback.format_exc(), None)
    dist.destroy_process_group()


def _send(results: Connection, failure: str, answer: Any) -> None:
    """As bytes: torch would share each tensor's memory, and who keeps the tensor keeps a descriptor open for it."""
    results.send_bytes(pickle.dumps((failure, answer)))
