"""Which rank takes which micro-batches of several tasks."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest

from engine.config.errors import LayoutError
from engine.config.formulas.task_ranks import deal, task_batches, tasks_of
from engine.config.layout import accumulation, mean_accumulation
from engine.config.run_config import RunConfig, parse
from engine.config.validation import rules
from tests.support.runs import small


def shared(*shares: int, **values: Any) -> RunConfig:
    """Tasks of these shares."""
    tasks = [{"name": f"task {place}", "share": share} for place, share in enumerate(shares)]
    return small(data__tasks=tasks, **values)


def config_of(shares: tuple[int, ...], dp: int, how: str, batch: int, micro: int = 1) -> RunConfig:
    return shared(
        *shares,
        parallel__dp=dp,
        parallel__task_ranks=how,
        batch__global_batch=batch,
        batch__micro_batch=micro,
    )


def test_the_published_example_gets_four_two_one_and_one_ranks() -> None:
    config = config_of((4, 2, 1, 1), 8, "proportional", 1024, micro=128)
    assert task_batches(config) == [512, 256, 128, 128]
    assert [tasks_of(config, rank) for rank in range(8)] == [[0], [0], [0], [0], [1], [1], [2], [3]]


def test_even_ranks_serve_one_task_each_and_few_ranks_equally_many() -> None:
    config = config_of((4, 1), 4, "even", 20)
    assert [tasks_of(config, rank) for rank in range(4)] == [[0] * 8, [0] * 8, [1] * 2, [1] * 2]
    assert accumulation(config) == 8 and accumulation(config, 3) == 2 and mean_accumulation(config) == 5
    config = config_of((4, 2, 1, 1), 2, "even", 16)
    assert [tasks_of(config, rank) for rank in range(2)] == [[0] * 8 + [1] * 4, [2] * 2 + [3] * 2]


def test_a_rank_may_serve_the_end_of_one_task_and_the_beginning_of_the_next() -> None:
    config = config_of((4, 1), 2, "proportional", 20, micro=2)
    assert deal(config) == [range(5), range(5, 10)]
    assert tasks_of(config, 1) == [0, 0, 0, 1, 1]


def test_every_legal_deal_gives_each_micro_batch_once_and_work_to_every_rank() -> None:
    pick, legal = random.Random(7), 0
    for _ in range(2000):
        shares = tuple(pick.randint(1, 5) for _ in range(pick.randint(1, 4)))
        how = pick.choice(["even", "proportional"])
        config = config_of(shares, pick.randint(1, 8), how, pick.randint(1, 48), pick.choice([1, 2]))
        if next(rules.problems(config), None) is not None:
            continue
        legal += 1
        pieces = deal(config)
        sizes = [len(piece) for piece in pieces]
        assert list(chain(*pieces)) == list(range(config.batch.global_batch // config.batch.micro_batch))
        assert min(sizes) >= 1 and sum(sizes) / len(sizes) == mean_accumulation(config)
        assert how == "even" or max(sizes) - min(sizes) <= 1
        served = [len(set(tasks_of(config, rank))) for rank in range(config.parallel.dp)]
        assert how == "proportional" or len(set(served)) == 1
    assert legal > 200


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"data__path": "x.txt"}, "data.path is set; leave out data.path"),
        ({"parallel__zero_stage": 3}, "zero_stage=3 gathers at every micro-batch"),
        ({"parallel__pp": 2, "model__layers": 4}, "set parallel.pp to 1"),
        ({"parallel__dp": 2, "parallel__ep": 2, "model__experts": 4}, "set parallel.ep to 1"),
        ({"parallel__dp": 2, "parallel__embedding": "columns"}, "set parallel.embedding to replicated"),
        ({"parallel__dp": 2, "outer__method": "local"}, "set outer.method to none"),
        ({"batch__ramp_from": 10}, "leave out batch.ramp_from"),
        ({"batch__global_batch": 16}, "no whole number of micro-batches of 2; nearest that always is: 20"),
        ({"batch__global_batch": 15}, "nearest that always is: 20"),
        ({"parallel__dp": 11}, "has 10 micro-batches in all; choose at most 10"),
        ({"parallel__dp": 3, "parallel__task_ranks": "even"}, "set it to proportional, or dp to 2"),
        ({"parallel__dp": 6, "parallel__task_ranks": "even"}, "has 2 micro-batches for 3 ranks"),
        ({"model__workload": "vision"}, "set model.workload to decoder"),
    ],
)
def test_what_cannot_be_dealt_is_refused_in_one_line(values: dict[str, Any], told: str) -> None:
    base = {"batch__global_batch": 20, "batch__micro_batch": 2}
    with pytest.raises(LayoutError) as refused:
        rules.check(shared(4, 1, **(base | values)))
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_names_and_ranks_without_tasks_are_refused() -> None:
    with pytest.raises(LayoutError, match="names a twice"):
        rules.check(small(data__tasks=[{"name": "a"}, {"name": "a"}]))
    with pytest.raises(LayoutError, match="there are no tasks to deal"):
        rules.check(small(parallel__task_ranks="even"))
    with pytest.raises(Exception, match=r"data\.tasks\.0\.share"):
        parse({"data": {"tasks": [{"name": "a", "share": 0}]}})
