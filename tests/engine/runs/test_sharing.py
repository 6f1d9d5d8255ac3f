"""Tied embeddings and shared layers: all layouts compute what one process does with torch's plain tied modules."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

from benchmarks import _plain as plain
from benchmarks._ranks import whole_weights
from engine.config.errors import InputError
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.config.validation.rules import problems
from engine.model.data import open_corpus
from engine.run import run_folder
from engine.session import Session
from profilers.records.reader import RunRecords
from profilers.records.schema import StepSample
from tests.support.runs import execute, small

LOSS_TOLERANCE = 1e-5
NORM_TOLERANCE = 1e-4
#: Eight thin layers: stages enough to cut groups of two and of four in the middle.
DEEP = {"model__layers": 8, "model__hidden": 32, "model__ffn_hidden": 64}
TIED, ALL, FOUR, BOTH = (
    {"model__tied_embeddings": True},
    {"model__layer_groups": 1},
    {"model__layer_groups": 4},
    {"model__tied_embeddings": True, "model__layer_groups": 2},
)
KINDS = (TIED, ALL, FOUR, BOTH)
_PP3 = {"parallel__pp": 3}
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"parallel__tp": 2},
    {"parallel__pp": 2},
    _PP3,
    {"parallel__dp": 2},
    {"parallel__dp": 2, "parallel__zero_stage": 1},
    {"parallel__dp": 2, "parallel__zero_stage": 2},
    {"parallel__dp": 2, "parallel__zero_stage": 3},
    {"parallel__dp": 2, "parallel__pp": 2},
    {"parallel__dp": 2, "parallel__pp": 2, "parallel__zero_stage": 1, "overlap__bucket_mb": 0.02},
    {"parallel__dp": 2, "parallel__pp": 2, "parallel__zero_stage": 2},
    {"parallel__dp": 2, "parallel__pp": 2, "parallel__zero_stage": 3},
    {"parallel__tp": 2, "parallel__pp": 2, "parallel__tp_regather": True},
    {"parallel__cp": 2, "parallel__pp": 2},
    {"parallel__dp": 4, "parallel__zero_stage": 3, "parallel__shard_ranks": 2},
    {"parallel__dp": 2, "parallel__tp": 2, "parallel__zero_stage": 3, "overlap__prefetch": 2},
    {"parallel__dp": 2, "parallel__zero_stage": 3, "memory__recompute": "full"},
    {"parallel__dp": 2, "parallel__zero_stage": 1, "overlap__gather_with_optimizer": True},
    {"parallel__pp": 2, "schedule__kind": "interleaved", "schedule__chunks": 2, "memory__recompute": "full"},
    {"parallel__pp": 2, "schedule__kind": "zb_v", "schedule__chunks": 2},
    {"parallel__pp": 2, "schedule__kind": "zb_h1", "parallel__dp": 2, "parallel__zero_stage": 1},
    {"schedule__kind": "layered", "schedule__chunks": 4, "parallel__dp": 2},
    {
        "parallel__pp": 2,
        "parallel__dp": 2,
        "schedule__kind": "interleaved",
        "schedule__chunks": 2,
        "parallel__zero_stage": 1,
        "overlap__gather_with_optimizer": True,
    },
    {"memory__recompute": "selective", "memory__recompute_layers": 1},
    {"memory__block_actions": ["keep", "full", "offload", "selective", "keep", "full", "offload", "keep"]},
    {"parallel__dp": 2, "memory__offload": "both"},
]


def name(values: dict[str, Any]) -> str:
    """A short test id."""
    return "-".join(f"{key.split('__')[1]}{value}" for key, value in values.items()) or "alone"


def plain_steps(config: RunConfig) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step by a loop whose modules are tied by hand."""
    train, batch, model = config.train, config.batch, config.model
    made = plain.PlainDecoder(plain.Sizes(**asdict(resolve(model))), config.data.sequence_length)
    made.load_state_dict(whole_weights(config))
    if model.tied_embeddings:
        made.head.weight = made.embedding.weight
    each = len(made.blocks) // (model.layer_groups or len(made.blocks))
    for place in range(len(made.blocks)):
        made.blocks[place] = made.blocks[place // each * each]
    recipe = plain.Recipe(batch.micro_batch, train.learning_rate, train.weight_decay, train.clip_norm)
    loop = plain.Loop(made, recipe)
    corpus = open_corpus(config.data, train.seed)
    windows = [corpus.training(step * batch.global_batch, batch.global_batch) for step in range(train.steps)]
    return [loop.step(torch.from_numpy(window)) for window in windows]


@pytest.fixture(scope="module")
def references() -> dict[str, list[tuple[float, float]]]:
    """By kind of sharing."""
    return {name(kind): plain_steps(small(**DEEP, **kind)) for kind in KINDS}


def engine_steps(session: Session, config: RunConfig) -> list[tuple[float, float]]:
    """The same by a run of the engine: losses of the summary, norms from the records of rank 0."""
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    records = RunRecords(session.home / summary.id / run_folder.RECORDS)
    steps: list[StepSample] = records.table(0, "step").rows()  # type: ignore[assignment]
    return [(loss, step.gradient_norm or 0.0) for loss, step in zip(summary.losses, steps, strict=True)]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("layout", LAYOUTS, ids=name)
@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_every_layout_equals_plain_tied_modules(
    session: Session,
    references: dict[str, list[tuple[float, float]]],
    kind: dict[str, Any],
    layout: dict[str, Any],
) -> None:
    ours = engine_steps(session, small(**DEEP, **kind, **layout))
    for (loss, norm), (plain_loss, plain_norm) in zip(ours, references[name(kind)], strict=True):
        assert loss == pytest.approx(plain_loss, abs=LOSS_TOLERANCE, rel=0)
        assert norm == pytest.approx(plain_norm, rel=NORM_TOLERANCE)


def test_sharing_changes_what_is_learned(references: dict[str, list[tuple[float, float]]]) -> None:
    plain_ones = plain_steps(small(**DEEP))
    for losses in references.values():
        assert abs(losses[-1][0] - plain_ones[-1][0]) > 10 * LOSS_TOLERANCE


LARGE = {"parallel__dp": 2, "parallel__pp": 2}
SHARED = {"model__tied_embeddings": True, "model__layer_groups": 1}


def losses(session: Session, **values: Any) -> list[float]:
    """Of a run that ends well."""
    outcome, summary = execute(session, small(**DEEP, **values))
    assert outcome.good, outcome
    return summary.losses


@pytest.mark.parametrize(
    "values",
    [
        {"compression__method": "fp16", "compression__start_step": 0},
        {"compression__method": "int8", "compression__start_step": 0},
        {"compression__method": "powersgd", "compression__start_step": 0, "parallel__zero_stage": 0},
        {"overlap__delay": 1},
        {"outer__method": "diloco", "outer__period": 1},
        {"outer__method": "streaming", "outer__period": 2, "outer__overlap": 0},
        {"train__optimizer": "lamb"},
        {"train__optimizer": "lars", "parallel__zero_stage": 1},
        {"model__experts": 4, "parallel__ep": 2},
        {"model__experts": 4, "parallel__zero_stage": 1},
        {"model__experts": 4, "parallel__ep": 2, "parallel__zero_stage": 3},
        {"memory__offload": "optimizer"},
    ],
    ids=name,
)
def test_a_pipeline_learns_the_same_beside_everything_else(session: Session, values: dict[str, Any]) -> None:
    """What acts on gradients sees the sum over stages."""
    alone = losses(session, **SHARED, **values, parallel__dp=2)
    split = losses(session, **SHARED, **values, **LARGE)
    assert split == pytest.approx(alone, abs=LOSS_TOLERANCE, rel=0)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_narrow_weights_and_messages_stay_close(session: Session, stage: int) -> None:
    """Norms are apart there; and slices are compressed stage by stage."""
    wide = losses(session, **SHARED)
    for more in ({"precision": "bf16"}, {"compression__method": "int8", "compression__start_step": 0}):
        for layout in ({"parallel__dp": 2}, LARGE):
            found = losses(session, **SHARED, **layout, **more, parallel__zero_stage=stage)
            assert found == pytest.approx(wide, abs=0.05, rel=0)


CHANGES = [
    ({"parallel__pp": 2}, {"parallel__tp": 2}),
    ({"parallel__dp": 2, "parallel__zero_stage": 3}, {"parallel__pp": 3}),
    (
        LARGE | {"parallel__zero_stage": 1},
        {"schedule__kind": "zb_v", "schedule__chunks": 2, "parallel__pp": 2},
    ),
    (LARGE | {"parallel__zero_stage": 3, "compression__method": "int8"}, LARGE | {"parallel__zero_stage": 2}),
]


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=str)
def test_a_checkpoint_goes_on_in_another_layout(
    session: Session, before: dict[str, Any], after: dict[str, Any]
) -> None:
    both = {"model__tied_embeddings": True, "model__layer_groups": 2}
    through = losses(session, **both, train__steps=4)
    folders: list[Any] = []
    config = small(**DEEP, **both, **before, train__steps=2, checkpoint__every_steps=2)
    outcome, _ = execute(session, config, on_start=folders.append)
    assert outcome.good, outcome
    more = losses(session, **both, **after, train__steps=4, train__resume=str(folders[0]))
    tolerance = 0.02 if "compression__method" in before else LOSS_TOLERANCE
    assert more == pytest.approx(through[2:], abs=tolerance, rel=0)


def test_a_checkpoint_of_other_sharing_is_refused(session: Session) -> None:
    folders: list[Any] = []
    config = small(**DEEP, model__layer_groups=2, train__steps=2, checkpoint__every_steps=2)
    execute(session, config, on_start=folders.append)
    with pytest.raises(InputError, match=r"model\.layer_groups is 2 there and None here"):
        execute(session, small(**DEEP, train__steps=4, train__resume=str(folders[0])))


MASKED = {"model__workload": "masked_text", "model__tied_embeddings": True, "model__layer_groups": 2}


@pytest.mark.parametrize(
    "layout",
    [
        {"parallel__pp": 2},
        LARGE,
        {"parallel__dp": 2, "parallel__zero_stage": 3},
        LARGE | {"parallel__zero_stage": 2},
    ],
    ids=name,
)
def test_a_masked_model_shares_in_every_layout(session: Session, layout: dict[str, Any]) -> None:
    outcome, alone = execute(session, small(**MASKED))
    assert outcome.good, outcome
    outcome, split = execute(session, small(**MASKED, **layout))
    assert outcome.good, outcome
    assert split.losses == pytest.approx(alone.losses, abs=LOSS_TOLERANCE, rel=0)
    assert (split.parameters, split.shared_parameters) == (alone.parameters, alone.shared_parameters)
    _, own = execute(session, small(model__workload="masked_text"))
    assert own.parameters == alone.parameters + alone.shared_parameters  # type: ignore[operator]
    # Two of four blocks, and a head without its bias.
    assert alone.shared_parameters == 2 * BLOCK + 257 * 64


#: Of masked_text at its usual width.
BLOCK = 4 * 64 * 64 + 2 * 64 * 4 * 64 + 4 * 64 + 4 * 64 + 64 + 4 * 64


def test_what_cannot_be_shared_is_refused_in_one_line() -> None:
    cases = {
        "model.layer_groups": {"model__layer_groups": 3},
        "parallel.zero_stage": {
            "model__tied_embeddings": True,
            "parallel__dp": 2,
            "parallel__pp": 2,
            "parallel__zero_stage": 3,
            "schedule__kind": "interleaved",
            "schedule__chunks": 2,
        },
        "outer.gap": {
            "model__tied_embeddings": True,
            **LARGE,
            "parallel__zero_stage": 1,
            "outer__method": "co2",
            "outer__gap": "element",
        },
    }
    for field, values in cases.items():
        (problem,) = problems(small(**DEEP, **values))
        assert problem.field == field
        assert "\n" not in str(problem)
    assert "nearest legal: 2 or 4" in str(next(problems(small(**DEEP, **cases["model.layer_groups"]))))


def test_a_workload_that_names_no_tied_parameters_is_refused(session: Session) -> None:
    with pytest.raises(InputError, match="vision does not name them"):
        execute(session, small(model__workload="vision", model__tied_embeddings=True))
