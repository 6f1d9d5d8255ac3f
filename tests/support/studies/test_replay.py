"""A recorded table answers a study; the benchmark's priors never see what they are scored on."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import _search_methods as methods
from benchmarks import _search_runs as runs
from benchmarks.published import playbook
from engine.config.errors import InputError
from engine.run.outcome import Ending
from profilers.model.run_summary import RunSummary
from tests.support.studies import replay
from tests.support.studies.fake import run_study
from tuning.predict.model import constants

HEADING = "model,nodes,mbs,grad_acc,gbs,dp,pp,tp,zero_stage,mfu_pct,tok_s_gpu,tok_s,gpu_memory_gb,status,gbs_consistent"
FAILED = ",,,,,crashed_or_oom,1"
#: One cell of 8 GPUs: a configuration listed three times, one that failed twice, one inconsistent row, one time-out.
ROWS = (
    "1B,1,1,32,256,8,1,1,0,38,30000,240000,36,ok,1",
    "1B,1,1,32,256,8,1,1,0,38,10000,80000,36,ok,1",
    "1B,1,1,32,256,8,1,1,0" + FAILED,
    "1B,1,2,16,256,8,1,1,0" + FAILED,
    "1B,1,2,16,256,8,1,1,0" + FAILED,
    "1B,1,1,64,256,4,1,2,0,38,20000,160000,20,ok,1",
    "1B,1,1,64,256,4,2,1,0,38,25000,200000,20,ok,0",
    "1B,1,2,32,256,4,1,2,0,,,,,timeout,1",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("\n".join((HEADING, *ROWS)) + "\n", encoding="utf-8")
    return path


def execute(cell: replay.Recorded, **values: object) -> tuple[Ending, str, RunSummary]:
    config = replay.study(cell).config.with_values(values)
    outcome, summary = replay.Replay(cell)(config, {}, lambda: False)
    return outcome.ending, outcome.reason, summary


def test_a_configuration_listed_twice_is_one_with_the_median_of_its_successes(table: Path) -> None:
    cell = replay.cell("1B", 1, table)
    assert len(cell) == 4
    ending, _, summary = execute(cell, **{"parallel.dp": 8, "batch.micro_batch": 1})
    assert ending is Ending.COMPLETED
    seconds = 256 * 4096 * (1 / 240_000 + 1 / 80_000) / 2
    assert summary.step_seconds is not None
    assert summary.step_seconds.median == pytest.approx(seconds)
    assert summary.tokens_per_second == pytest.approx(256 * 4096 / seconds)
    assert summary.peak_memory_bytes == 36 * 2**30


def test_failures_end_as_the_table_says(table: Path) -> None:
    cell = replay.cell("1B", 1, table)
    ending, reason, summary = execute(cell, **{"parallel.dp": 8, "batch.micro_batch": 2})
    assert (ending, summary.tokens_per_second) == (Ending.OOM, None)
    assert "does not tell a crash from too little memory" in reason
    ending, reason, _ = execute(cell, **{"parallel.dp": 4, "parallel.tp": 2, "batch.micro_batch": 2})
    assert (ending, reason) == (Ending.TIMED_OUT, "recorded as timeout")


def test_what_was_not_recorded_is_told(table: Path) -> None:
    cell = replay.cell("1B", 1, table)
    ending, reason, _ = execute(cell, **{"parallel.dp": 8, "batch.micro_batch": 4})
    assert ending is Ending.ILLEGAL
    assert "no such row" in reason
    with pytest.raises(InputError, match="1B on 1"):
        replay.cell("8B", 4, table)


def test_a_whole_study_runs_on_a_table(table: Path, tmp_path: Path) -> None:
    cell = replay.cell("1B", 1, table)
    document = run_study(replay.study(cell, trials=4), tmp_path / "study", replay.Replay(cell))
    assert document["state"] == "ended"
    assert document["best"]["config"]["parallel.tp"] == 2
    outcomes = {trial["outcome"] for trial in document["trials"]}
    assert {"completed", "oom"} <= outcomes
    json.dumps(document)


@pytest.mark.parametrize("unseen", ["cell", "size"])
def test_a_prior_is_never_fitted_to_what_it_is_scored_on(unseen: runs.Unseen) -> None:
    table = runs.Replayed(playbook.TRIALS, {})
    trials = table.shipped.trials
    for split, cells in table.folds(unseen):
        for seed in range(2):
            drawn = table.drawn(split, seed)
            assert len(drawn) == len(table.training(split)) > 1000
            for cell in cells:
                own = trials["model"][drawn] == cell.model
                assert not (own & (unseen == "size" or trials["nodes"][drawn] == cell.nodes)).any()
    assert not np.array_equal(table.drawn(split, 0), table.drawn(split, 1))


def test_fits_depend_on_their_own_rows_only() -> None:
    """Other seconds in the cell that is left out change nothing of what is believed of it."""
    split: runs.Split = ("size", "80B", 0)
    plain, other = runs.Replayed(playbook.TRIALS, {}), runs.Replayed(playbook.TRIALS, {})
    out = other.shipped.trials["model"] == "80B"
    other.shipped.trials["iteration_seconds"][out] *= 7
    other.shipped.trials["failed"][out] = ~other.shipped.trials["failed"][out]
    rows = plain.training(split)
    some = rows[:: len(rows) // 150]
    start = constants.START
    assert runs.physics.learned(plain.shipped, some, start) == runs.physics.learned(
        other.shipped, some, start
    )


def test_every_method_executes_ten_different_rows() -> None:
    cell = replay.cell("3B", 1)
    for name, method in methods.WITHOUT_PRIOR.items():
        if name == "GP":
            continue
        meter = methods.Meter(cell)
        method(cell, meter, 3)
        assert len(set(meter.rows)) == len(meter.rows) == 10, name
    with pytest.raises(ValueError, match="executed"):
        meter(meter.rows[0])


def test_a_small_cell_is_executed_as_far_as_it_goes(table: Path) -> None:
    cell = replay.cell("1B", 1, table)
    meter = methods.Meter(cell)
    methods.paddle(cell, meter, 0)
    assert sorted(meter.rows) == [0, 1, 2, 3]
    found = runs.scored(cell, meter)
    assert found == {"score": 1.0, "failed": pytest.approx(2 / 4)}


def test_orders_of_tuners() -> None:
    """DeepSpeed begins without model parallelism and grows the micro-batch; Paddle with most tensor parallelism."""
    cell = replay.cell("1B", 8)
    columns, first = cell.columns, {}
    for method in (methods.deepspeed, methods.paddle):
        meter = methods.Meter(cell)
        method(cell, meter, 0)
        first[method.__name__] = [
            (int(columns["tp"][row]), int(columns["micro_batch"][row])) for row in meter.rows
        ]
    assert first["deepspeed"][0] == (1, 1)
    assert first["paddle"][0] == (8, 1)
