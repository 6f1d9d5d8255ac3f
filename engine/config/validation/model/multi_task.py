"""The rules of several tasks that are trained together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from engine.config.errors import LayoutError, several
from engine.config.formulas.task_ranks import task_batches
from engine.config.knobs.facts import Context
from engine.config.run_config import RunConfig
from engine.config.validation.refusals import refused_settings

_TASKS, _RANKS = "data.tasks", "parallel.task_ranks"


def task_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule of tasks, their batches and the ranks that they get; none without tasks."""
    tasks, policy = config.data.tasks, config.parallel.task_ranks
    if not tasks:
        if policy != "proportional":
            yield LayoutError(_RANKS, policy, f"there are no tasks to deal; list {_TASKS}, or leave this out")
        return
    names = [task.name for task in tasks]
    repeated = next((name for name, times in Counter(names).items() if times > 1), None)
    if repeated is not None:
        yield LayoutError(_TASKS, names, f"names {repeated} twice; give each task a name of its own")
    for setting in refused_settings(config, Context.TASKS):
        # Ranks of one group may have unequal numbers of micro-batches where they meet once a step alone.
        yield LayoutError(_TASKS, names, f"{setting.why}; {setting.named_remedy}, or leave out the tasks")
    sizes = list(_size_problems(config))
    yield from sizes or _rank_problems(config)


def _size_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Each task's share of the batch is a whole number of micro-batches."""
    batch, shares = config.batch, [task.share for task in config.data.tasks]
    sum_of_shares = sum(shares)
    for task, size in zip(config.data.tasks, task_batches(config), strict=True):
        if size * sum_of_shares == batch.global_batch * task.share and size % batch.micro_batch == 0 and size:
            continue
        unit = sum_of_shares * batch.micro_batch
        nearest = max(unit, round(batch.global_batch / unit) * unit)
        remedy = (
            f"task {task.name} has {task.share} of {sum_of_shares} shares, which is no whole number of "
            f"micro-batches of {batch.micro_batch}; nearest that always is: {nearest}"
        )
        yield LayoutError("batch.global_batch", batch.global_batch, remedy)
        return


def _rank_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every rank has something to do."""
    dp, tasks, micro = config.parallel.dp, len(config.data.tasks), config.batch.micro_batch
    if config.parallel.task_ranks == "proportional":
        count = config.batch.global_batch // micro
        if count < dp:
            yield LayoutError(
                "parallel.dp",
                dp,
                f"a batch has {several(count, 'micro-batches')} in all; choose at most {count}",
            )
    elif dp % tasks and tasks % dp:
        remedy = (
            f"{dp} dp ranks cannot be dealt evenly to {tasks} tasks; set it to proportional, or dp to {tasks}"
        )
        yield LayoutError(_RANKS, "even", remedy)
    else:
        least = min(task_batches(config)) // micro
        if least < dp // tasks:
            few, ranks = several(least, "micro-batches"), several(dp // tasks, "ranks")
            remedy = f"the smallest task has {few} for {ranks}; set it to proportional"
            yield LayoutError(_RANKS, "even", remedy)
