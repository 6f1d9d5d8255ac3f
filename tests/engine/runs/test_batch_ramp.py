"""A batch that grows: the losses of a plain loop with the same batches, in all layouts, with its tokens counted."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import _plain as plain
from benchmarks._ranks import whole_weights
from engine.checkpoint.checkpoint_folder import Manifest
from engine.checkpoint.resume import ResumePoint, first_batch
from engine.config.formulas.batch_ramp import batch_of
from engine.config.presets import resolve
from engine.config.validation.rules import problems
from engine.model.data import open_corpus
from engine.rank import loop, reconfigure
from engine.run.commands import StopControl
from engine.run.progress import Progress
from engine.session import Session
from profilers.records.reader import RunRecords
from profilers.records.schema import StepSample
from tests.support.runs import execute, small

LOSS_TOLERANCE = 1e-5
SIZES = {"model__layers": 4, "model__hidden": 32, "model__ffn_hidden": 64}
GROWING: dict[str, Any] = {
    **SIZES,
    "batch__global_batch": 12,
    "batch__ramp_from": 4,
    "batch__ramp_share": 0.5,
    "train__steps": 8,
    "train__warmup": 0,
}
#: Four steps grow, two with each of the smaller batches.
BATCHES = [4, 4, 8, 8, 12, 12, 12, 12]
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"parallel__dp": 2, "batch__micro_batch": 2},
    {"parallel__dp": 2, "parallel__zero_stage": 3},
    {"parallel__dp": 2, "parallel__zero_stage": 2, "parallel__reduce_every_micro_batch": True},
    {"parallel__pp": 2, "batch__micro_batch": 4},
    {"parallel__pp": 2, "schedule__kind": "interleaved", "schedule__chunks": 2},
    {"parallel__pp": 2, "schedule__kind": "zb_v", "schedule__chunks": 2, "parallel__dp": 2},
    {"parallel__tp": 2, "parallel__dp": 2, "parallel__zero_stage": 1},
    {"parallel__dp": 2, "overlap__delay": 0, "memory__recompute": "full"},
]


@pytest.fixture(scope="module")
def reference() -> list[float]:
    """Losses of a plain loop."""
    config = small(**GROWING)
    made = plain.PlainDecoder(plain.Sizes(**asdict(resolve(config.model))), config.data.sequence_length)
    made.load_state_dict(whole_weights(config))
    train = config.train
    loop = plain.Loop(made, plain.Recipe(1, train.learning_rate, train.weight_decay, train.clip_norm))
    corpus = open_corpus(config.data, train.seed)
    firsts = [sum(BATCHES[:step]) for step in range(len(BATCHES))]
    windows = [corpus.training(first, batch) for first, batch in zip(firsts, BATCHES, strict=True)]
    return [loop.step(torch.from_numpy(window))[0] for window in windows]


def test_it_grows_in_equal_stretches() -> None:
    config = small(**GROWING)
    assert [batch_of(config, step) for step in range(8)] == BATCHES


@pytest.mark.drawn(4)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_losses_are_those_of_a_plain_loop(
    session: Session, reference: list[float], layout: dict[str, Any]
) -> None:
    folders: list[Path] = []
    outcome, summary = execute(session, small(**GROWING, **layout), on_start=folders.append)
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(reference, abs=LOSS_TOLERANCE, rel=0)
    rows: list[StepSample] = RunRecords(folders[0] / "records").table(0, "step").rows()  # type: ignore[assignment]
    assert [row.tokens for row in rows] == [batch * 64 // layout.get("parallel__dp", 1) for batch in BATCHES]
    told = [(row.step, row.key, row.old, row.new, row.by) for row in summary.changes]
    assert told == [
        (2, "batch.global_batch", 4, 8, "batch.ramp_from"),
        (4, "batch.global_batch", 8, 12, "batch.ramp_from"),
    ]
    # What is measured are steps with the whole batch.
    assert summary.tokens_per_step == 12 * 64


def test_held_out_text_is_the_same_whatever_the_batch(session: Session) -> None:
    losses = []
    for values in (GROWING, GROWING | {"batch__ramp_from": 12}):
        folders: list[Path] = []
        config = small(**values, train__learning_rate=1e-12, train__validate_every=3)
        outcome, _ = execute(session, config, on_start=folders.append)
        assert outcome.good, outcome
        events = RunRecords(folders[0] / "records").events(0)
        losses.append([(e.data["step"], e.data["loss"]) for e in events if e.kind == "validation"])
    assert [step for step, _ in losses[0]] == [3, 6, 8]
    growing, whole = ([loss for _, loss in found] for found in losses)
    assert growing == pytest.approx(whole, abs=1e-6, rel=0)


def test_a_checkpoint_goes_on_where_the_data_were(session: Session, reference: list[float]) -> None:
    folders: list[Path] = []
    half = small(**GROWING, checkpoint__every_steps=3)
    # The first run is stopped early, as if its machine had gone.
    outcome, _ = execute(session, half, on_start=folders.append)
    assert outcome.good, outcome
    point = folders[0] / "checkpoints" / "step-000006"
    later = small(**GROWING, train__resume=str(point), parallel__pp=2)
    outcome, summary = execute(session, later)
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(reference[6:], abs=LOSS_TOLERANCE, rel=0)
    assert summary.tokens_per_step == 12 * 64  # it had no smaller batch


def test_within_a_time_it_goes_on_with_the_batch_that_was_reached(session: Session) -> None:
    """How many steps it will have is not known at its first one, and the ramp would begin anew."""
    folders: list[Path] = []
    saving = small(**GROWING, checkpoint__every_steps=3, checkpoint__keep=3)
    outcome, _ = execute(session, saving, on_start=folders.append)
    assert outcome.good, outcome
    point = folders[0] / "checkpoints" / "step-000003"
    later = small(**GROWING | {"train__resume": str(point), "train__seconds": 3.0})
    outcome, summary = execute(session, later, on_start=folders.append)
    assert outcome.good, outcome
    rows: list[StepSample] = RunRecords(folders[1] / "records").table(0, "step").rows()  # type: ignore[assignment]
    taken = [(row.tokens or 0) // 64 for row in rows]
    assert taken[0] == 8
    assert taken == sorted(taken)
    assert summary.tokens_per_step == taken[-1] * 64


@pytest.mark.parametrize(
    ("values", "reached", "first"),
    [
        ({"train__seconds": 9.0}, 12, 12),
        ({"train__seconds": 9.0, "batch__global_batch": 8}, 12, 8),
        ({"train__seconds": 9.0, "batch__ramp_from": 3}, 8, 6),
        ({"train__seconds": 9.0}, 2, 4),
        ({"train__seconds": 9.0}, None, 4),  # saved by a run whose batch did not grow
        ({"train__seconds": 9.0, "batch__ramp_from": None}, 8, None),
        ({}, 12, 8),  # by the number of steps
    ],
    ids=str,
)
def test_the_first_batch_after_a_checkpoint_is_one_of_the_ramps(
    values: dict[str, Any], reached: int | None, first: int | None
) -> None:
    point = ResumePoint(Path("checkpoint"), Manifest(3, {}, {}, {}, batch=reached))
    assert first_batch(small(**GROWING | values), point) == first


def test_what_was_taken_before_a_step_is_known_when_a_run_went_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of a step that is done again was saved with the place in the data of the steps that are undone."""
    monkeypatch.setattr(reconfigure, "_schedule", lambda *_: None)
    config = small(**GROWING)
    quiet = SimpleNamespace(event=lambda *_, **__: None, start_anew=lambda _: None)
    rank: Any = SimpleNamespace(
        rank=0, sequences=0, config=config, step_config=config, batch=None, writer=quiet
    )
    growing = reconfigure.GrowingBatch(rank, quiet, quiet, quiet, 0)  # type: ignore[arg-type]
    for step, batch in enumerate(BATCHES):
        growing.begin_step(step)
        rank.step_config = config.with_values({"batch.global_batch": batch})
    assert [growing.sequences_and_batch(step) for step in range(1, 9)] == [
        (sum(BATCHES[:step]), BATCHES[step - 1]) for step in range(1, 9)
    ]


@pytest.mark.parametrize(("fixed", "each"), [(0.05, 0.01), (0.0, 0.02), (0.3, 0.001)])
def test_within_a_time_it_grows_about_as_if_the_number_of_steps_had_been_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixed: float, each: float
) -> None:
    """On a clock of its own, by which a step takes ``fixed`` seconds, and ``each`` for a sequence."""
    seconds, now, batches = 60.0, 0.0, list[int]()
    monkeypatch.setattr(loop.time, "monotonic", lambda: now)
    config = small(
        **GROWING | {"batch__global_batch": 16, "batch__ramp_share": 0.6, "train__seconds": seconds}
    )
    writer = SimpleNamespace(event=lambda *_, **__: None)
    control = StopControl(Progress(tmp_path, 1), 0)
    rank: Any = SimpleNamespace(
        rank=0, sequences=0, config=config, step_config=config, control=control, writer=writer
    )
    length, step, batch = loop.RunLength(rank, 0.0), 0, 0
    length.begin(0)
    while True:
        length.begin_step(step, 0.0, None)
        if step >= rank.config.train.steps:
            break
        batch = max(batch, batch_of(rank.config, step))
        rank.step_config = config.with_values({"batch.global_batch": batch})
        batches.append(batch)
        now += fixed + each * batch
        rank.sequences += batch
        step += 1
    assert abs(now - seconds) <= fixed + each * 16
    # What a step takes whatever its batch is not known at first: steps seem to be fewer, and it grows a little sooner.
    starts = [batches.index(size) / len(batches) for size in (8, 12, 16)]
    assert starts == sorted(starts)
    assert starts[-1] == pytest.approx(0.6, abs=0.1 if fixed else 0.02)


def test_a_run_with_a_time_tells_its_batches(session: Session) -> None:
    values = GROWING | {"batch__global_batch": 16, "train__seconds": 8.0, "train__steps": 100}
    folders: list[Path] = []
    outcome, summary = execute(session, small(**values, parallel__dp=2), on_start=folders.append)
    assert outcome.good, outcome
    rows: list[StepSample] = RunRecords(folders[0] / "records").table(0, "step").rows()  # type: ignore[assignment]
    taken = [2 * (row.tokens or 0) // 64 for row in rows]
    assert taken == sorted(taken) and taken[0] == 4
    grown = [(row.step, row.new) for row in summary.changes]
    assert grown == [(step, size) for step, size in enumerate(taken) if step and size != taken[step - 1]]
    assert summary.tokens_per_step == taken[-1] * 64


def test_what_does_not_divide_is_refused_in_one_line() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"batch__ramp_from": 5}, "must divide global_batch=12"),
        ({"batch__ramp_from": 3, "parallel__dp": 2}, "must be a multiple of dp x micro_batch = 2"),
    ]
    for values, words in cases:
        (problem,) = problems(small(**GROWING | values))
        assert problem.field == "batch.ramp_from"
        assert words in str(problem)
        assert "\n" not in str(problem)
