"""Which micro-batches of several tasks a data rank takes. Pure, without torch.

A global batch has the sequences of its tasks one after the other, in the order of ``data.tasks``; each rank takes one
piece of it. A gradient is that of all micro-batches, so the deal changes who computes, and nothing that is learned.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from engine.config.run_config import RunConfig


def task_batches(config: RunConfig) -> list[int]:
    """Sequences of each task in a global batch, in the order of ``data.tasks``; rounded down where shares are not
    whole.
    """
    shares = [task.share for task in config.data.tasks]
    return [config.batch.global_batch * share // sum(shares) for share in shares]


def deal(config: RunConfig) -> list[range]:
    """The micro-batches of the global batch that each dp rank takes: all of them, each once."""
    dp = config.parallel.dp
    ends = [0, *accumulate(batch // config.batch.micro_batch for batch in task_batches(config))]
    tasks = len(ends) - 1
    if not tasks:
        return _split_range(range(config.batch.global_batch // config.batch.micro_batch), dp)
    if config.parallel.task_ranks == "proportional":
        return _split_range(range(ends[-1]), dp)
    if dp > tasks:
        ranks_of_task = dp // tasks
        pieces = [_split_range(range(ends[task], ends[task + 1]), ranks_of_task) for task in range(tasks)]
        return [share for piece in pieces for share in piece]
    ranks_of_task = tasks // dp
    return [range(ends[rank * ranks_of_task], ends[(rank + 1) * ranks_of_task]) for rank in range(dp)]


def tasks_of(config: RunConfig, rank: int) -> list[int]:
    """The task of each micro-batch of a dp rank, by its number; empty where there are no tasks."""
    ends = list(accumulate(batch // config.batch.micro_batch for batch in task_batches(config)))
    return [bisect_right(ends, place) for place in deal(config)[rank]] if ends else []


def _split_range(whole: range, parts: int) -> list[range]:
    """As evenly as it goes."""
    size = len(whole)
    return [whole[size * part // parts : size * (part + 1) // parts] for part in range(parts)]
