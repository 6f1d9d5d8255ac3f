"""What a rank of ours tells of its groups when it hangs, beside its last collectives."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import torch.distributed as dist

from engine.comm.channel import Channel
from engine.comm.context import Groups
from engine.run.progress import Progress
from engine.run.run_folder import FLIGHT
from profilers.rank import last_calls


@contextlib.contextmanager
def answer_dump_requests(
    progress: Progress | None, rank: int, folder: Path, groups: Groups
) -> Iterator[None]:
    """While inside, the launcher can ask this rank for its last collectives, whatever the main thread waits for."""
    if progress is None:
        yield
        return
    context = last_calls.DumpContext(time.time(), groups.axes, _members(groups))
    with last_calls.answer_dump_requests(
        progress.dump_requested, folder / FLIGHT / f"rank-{rank}.json", lambda: context
    ):
        yield


def _members(groups: Groups) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for field in fields(groups):
        named = getattr(groups, field.name)
        group = named.group if isinstance(named, Channel) else named
        if isinstance(group, dist.ProcessGroup):
            members[group.group_name] = dist.get_process_group_ranks(group)
    return members
